"""Arguments in Python are checked against the annotations of every public constructor, before training."""

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any, Literal, get_args, get_origin

import cloudpickle
import numpy as np
import pytest
import refusals
import torch

from fedlit.aggregators import NPA, Aggregator, FedAvg, FedProx, GradientDissimilarity, LocalSCGDAM, NormBound, Scaffold
from fedlit.core.errors import ConfigError, DataError
from fedlit.core.system.argument_types import _hints, check_arguments
from fedlit.data import IID, Dirichlet, ImageTable, NIHChestXray14, Organisations, VinDrCXR
from fedlit.experiment.phases import Phase
from fedlit.federation.federation import Federation
from fedlit.federation.participation import Availability, Timetable
from fedlit.models import ImageClassifier
from fedlit.objectives import AUCSaddle, SoftmaxFocalLoss
from fedlit.schedules import ConstantSchedule, PracticeSchedule, Stage, StageSchedule


def image_classifier(**given: Any) -> ImageClassifier:
    return ImageClassifier(("a",), "small_cnn", **given)


WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: FedAvg("example"), "FedAvg.weights: expected 'examples' or 'uniform', found 'example'"),
    (lambda: FedAvg(weights=1), "FedAvg.weights: expected 'examples' or 'uniform', found 1"),
    (lambda: LocalSCGDAM(first_order="no"), "LocalSCGDAM.first_order: expected True or False, found 'no'"),
    (lambda: AUCSaddle(clamp=1), "AUCSaddle.clamp: expected True or False, found 1"),
    (lambda: FedProx(True), "FedProx.mu: expected a number, found True"),
    (lambda: FedProx("0.1"), "FedProx.mu: expected a number, found '0.1'"),
    (lambda: NormBound(norm=True), "NormBound.norm: expected a number, found True"),
    (lambda: Dirichlet(3, "0.1"), "Dirichlet.alpha: expected a number, found '0.1'"),
    (lambda: Scaffold(reset="sometimes"), "Scaffold.reset: expected 'never' or 'auto' or 'always', found 'sometimes'"),
    (lambda: NPA(output="centred"), "NPA.output: expected 'last' or 'average' or 'random' or 'centre'"),
    (lambda: ConstantSchedule("2"), "ConstantSchedule.window: expected a whole number, found '2'"),
    (lambda: GradientDissimilarity(every=1.5), "GradientDissimilarity.every: expected a whole number, found 1.5"),
    (lambda: PracticeSchedule(iterations=2e4), "PracticeSchedule.iterations: expected a whole number, found 20000.0"),
    (lambda: Stage(rounds=1.5), "Stage.rounds: expected a whole number, found 1.5"),
    (lambda: StageSchedule(Stage(2)), "StageSchedule.stages: expected a list of Stage, found a Stage"),
    (lambda: image_classifier(hidden=2.0), "ImageClassifier.hidden: expected a whole number, found 2.0"),
    (lambda: image_classifier(objective=AUCSaddle),
        "ImageClassifier.objective: expected Module, found the class AUCSaddle"),
    (lambda: image_classifier(optimizer=0.1), "ImageClassifier.optimizer: expected a function, found 0.1"),
    (lambda: Phase("warm", aggregators=[FedProx]),
        "Phase.aggregators: expected a list of Aggregator, found [the class FedProx]"),
    (lambda: Federation(rounds=2.5), "Federation.rounds: expected a whole number, found 2.5"),
    (lambda: Organisations({}, classes="all"),
        "Organisations.classes: expected 'union' or 'shared' or a list of a text, found 'all'"),
    (lambda: ImageTable(names="harmonized"),
        "ImageTable.names: expected 'source' or 'harmonised' or a dict, found 'harmonized'"),
    (lambda: Federation(lr_factors={"north": 0.5, "south": True}),
        "Federation.lr_factors['south']: expected a number, found True"),
    (lambda: Federation(lr_factors={"north": "0.5"}), "Federation.lr_factors['north']: expected a number, found '0.5'"),
    (lambda: Federation(lr_factors=[0.5]), "Federation.lr_factors: expected a dict, found [0.5]"),
    (lambda: Availability({"north": True}), "Availability.shares['north']: expected a number, found True"),
    (lambda: Timetable({"north": 1}), "Timetable.rounds['north']: expected a list of a whole number, found 1"),
    (lambda: Timetable({"north": [True]}),
        "Timetable.rounds['north']: expected a list of a whole number, found [True]"),
    (lambda: NIHChestXray14(resize="crop"), "NIHChestXray14.resize: expected 'squeeze' or 'pad', found 'crop'"),
    (lambda: SoftmaxFocalLoss(alpha=[1, 0]), "SoftmaxFocalLoss.alpha[1]: expected a number above 0, found 0"),
    (lambda: IID(2, sizes=[1, "1"]), "IID.sizes[1]: expected a number, found '1'"),
    (lambda: VinDrCXR(parts=["val"]), "VinDrCXR.parts: expected a list of 'train' or 'test', found ['val']"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "words"), WRONG, ids=[words.split(":")[0] for _, words in WRONG])
def test_a_wrong_choice_is_refused_in_words(make: Callable[[], Any], words: str):
    with pytest.raises((ConfigError, DataError)) as refused:
        make()
    assert words in str(refused.value)


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


CHOICES = {
    f"{cls.__name__}.{key}": (init, get_args(hint))
    for cls in public_classes()
    for init in constructors(cls)
    for key, hint in _hints(init).items()
    if get_origin(hint) is Literal
}


@pytest.mark.parametrize("where", CHOICES)
def test_every_choice_names_what_it_allows(where: str):
    (init, allowed), (name, _, key) = CHOICES[where], where.partition(".")
    for wrong in (allowed[0].upper(), allowed[0][:-1], 1, [allowed[0]]):
        with refusals.refused(ConfigError, f"{where}: ", " or ".join(map(repr, allowed))):
            check_arguments(init, {key: wrong}, f"{name}.")


def test_there_are_choices_everywhere():
    assert {*CHOICES} >= {
        "CODASCA.reset", "LocalSCGDAM.outer", "TheorySchedule.window_growth", "AUCSaddle.score", "BCE.missing",
        "ImageClassifier.norm", "Phase.keep", "Federation.optimizer_state", "IID.unit", "PhantomCXR.missing_classes",
        "NIHChestXray14.missing", "MIMICCXR.labeller",
    }  # fmt: skip


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


def test_a_function_is_checked_by_the_same_words():
    def takes(sizes: tuple[float, ...], of: dict[str, int] | None = None) -> None: ...

    check_arguments(takes, {"sizes": [1, 2.5], "of": None})
    with refusals.refused(ConfigError, "sizes", "found 3"):
        check_arguments(takes, {"sizes": 3})


def test_numbers_of_numpy_reach_the_end_of_a_run(tmp_path, monkeypatch):
    from scripted import fit, net, two

    monkeypatch.setenv("HOME", str(tmp_path))
    fitted = fit(
        net(), two(), rounds=np.int64(2), seed=np.int64(1), gradient_clip=np.float32(1), run_dir="~/x", name="one"
    )
    assert fitted.directory == tmp_path / "x" / "default" / "one"
