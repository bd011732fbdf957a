"""Arguments in Python are checked against the annotations of every public constructor, before training."""

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any, Literal

import cloudpickle
import numpy as np
import pytest
import refusals
import torch

from fedlit.aggregators import Aggregator, FedAvg, FedProx, LocalSCGDAM, Scaffold
from fedlit.core.errors import ConfigError, DataError
from fedlit.data import Dirichlet, ImageTable, VinDrCXR
from fedlit.experiment.phases import Phase
from fedlit.federation.federation import Federation
from fedlit.federation.participation import Timetable
from fedlit.models import ImageClassifier
from fedlit.objectives import AUCSaddle, SoftmaxFocalLoss
from fedlit.schedules import ConstantSchedule, PracticeSchedule, Stage, StageSchedule


def image_classifier(**given: Any) -> ImageClassifier:
    return ImageClassifier(("a",), "small_cnn", **given)


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "FedAvg.weights": (lambda: FedAvg("example"), "'examples' or 'uniform', found 'example'"),
    "LocalSCGDAM.first_order": (lambda: LocalSCGDAM(first_order="no"), "True or False, found 'no'"),
    "AUCSaddle.clamp": (lambda: AUCSaddle(clamp=1), "True or False, found 1"),
    "FedProx.mu": (lambda: FedProx(True), "a number, found True"),
    "Dirichlet.alpha": (lambda: Dirichlet(3, "0.1"), "a number, found '0.1'"),
    "ConstantSchedule.window": (lambda: ConstantSchedule("2"), "a whole number, found '2'"),
    "PracticeSchedule.iterations": (lambda: PracticeSchedule(iterations=2e4), "a whole number, found 20000.0"),
    "StageSchedule.stages": (lambda: StageSchedule(Stage(2)), "a list of Stage, found a Stage"),
    "ImageClassifier.objective": (lambda: image_classifier(objective=AUCSaddle), "Module, found the class AUCSaddle"),
    "ImageClassifier.optimizer": (lambda: image_classifier(optimizer=0.1), "a function, found 0.1"),
    "Phase.aggregators": (lambda: Phase("warm", aggregators=[FedProx]), "found [the class FedProx]"),
    "ImageTable.names": (lambda: ImageTable(names="harmonized"), "or a dict, found 'harmonized'"),
    "Federation.lr_factors['south']": (lambda: Federation(lr_factors={"north": 0.5, "south": True}), "found True"),
    "Federation.lr_factors": (lambda: Federation(lr_factors=[0.5]), "a dict, found [0.5]"),
    "Timetable.rounds['north']": (lambda: Timetable({"north": [True]}), "a list of a whole number, found [True]"),
    "SoftmaxFocalLoss.alpha[1]": (lambda: SoftmaxFocalLoss(alpha=[1, 0]), "found 0"),
    "VinDrCXR.parts": (lambda: VinDrCXR(parts=["val"]), "a list of 'train' or 'test', found ['val']"),
}


@pytest.mark.parametrize("where", WRONG)
def test_an_argument_of_another_type_is_refused_with_its_place(where: str):
    make, found = WRONG[where]
    with pytest.raises((ConfigError, DataError)) as refused:
        make()
    assert str(refused.value).startswith(f"{where}: expected ")
    assert found in str(refused.value)


def public_classes() -> list[type]:
    rooms = [import_module(f"fedlit.{room}") for room in ("aggregators", "objectives", "models", "schedules", "data")]
    named = [getattr(room, n) for room in rooms for n in getattr(room, "__all__", dir(room)) if n[0] != "_"]
    found = [each for each in named if inspect.isclass(each) and each.__module__.startswith("fedlit.")]
    return [*(each for each in found if not issubclass(each, Exception)), Phase, Federation]


def constructors(cls: type) -> list[Callable]:
    """The constructors of a class and of its bases that take arguments and are fedlit's own, the class's first."""
    every = [vars(each)["__init__"] for each in cls.__mro__ if "__init__" in vars(each)]
    own = [init for init in every if (getattr(init, "__module__", "") or "").startswith("fedlit.")]
    return [init for init in own if len(inspect.signature(init).parameters) > 1]


def test_every_public_constructor_with_arguments_is_checked():
    inits = {cls.__name__: init for cls in public_classes() for init in constructors(cls)[:1]}
    unchecked = {name for name, init in inits.items() if not hasattr(init, "__wrapped__")}
    made = {"Client", "ClientContext", "ClientData", "Layout", "Mask", "Measured", "Payload", "Round", "ServerState"}
    assert unchecked == {"CategorisedImages", "Records"} | made, "they are no choices"


def test_numbers_of_numpy_are_numbers_and_become_pythons():
    assert FedProx(np.float32(0.5)).mu == 0.5
    assert type(FedProx(mu=np.float64(0.5)).mu) is float
    stage = Stage(np.int64(2), window=np.int32(3))
    assert (type(stage.rounds), type(stage.window)) == (int, int)
    assert type(Federation(rounds=np.int64(2)).rounds) is int
    assert FedProx(1).mu == 1
    assert AUCSaddle(clamp=np.bool_(True)).clamp is True


class Named(FedAvg):
    """A user's class, with annotations that are not fedlit's."""

    def __init__(
        self, weights: Literal["mine"] = "mine", strength: "torch.nn.NoSuchThing" = 1, *more: int, **rest: int
    ):
        super().__init__("uniform")
        self.given = weights, strength, more, rest


def test_a_subclass_of_ones_own_keeps_its_own_constructor():
    assert Named("yours", object, "x", a="b").given == ("yours", object, ("x",), {"a": "b"})
    assert Named().weights == "uniform"

    class Plain(FedProx):
        pass

    with refusals.refused(ConfigError, "Plain.mu", "a number", "'1'"):
        Plain("1")


def test_what_python_itself_refuses_it_still_refuses():
    for make, name in ((lambda: FedProx(nu=1), "'nu'"), (StageSchedule, "'stages'")):
        with pytest.raises(TypeError, match=name):
            make()


def test_a_checked_class_is_as_it_was():
    assert list(inspect.signature(FedAvg).parameters) == ["weights"]
    assert inspect.signature(Phase).parameters["keep"].default == "body"
    made = cloudpickle.loads(cloudpickle.dumps(Scaffold(0.5, reset=None)))
    assert (made.eta_g, isinstance(made, Aggregator)) == (0.5, True)


def test_numbers_of_numpy_reach_the_end_of_a_run(tmp_path, monkeypatch):
    from scripted import fit, net, two

    monkeypatch.setenv("HOME", str(tmp_path))
    fitted = fit(
        net(), two(), rounds=np.int64(2), seed=np.int64(1), gradient_clip=np.float32(1), run_dir="~/x", name="one"
    )
    assert fitted.directory == tmp_path / "x" / "default" / "one"
