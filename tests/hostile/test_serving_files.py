"""Exported models that are invalid, damaged, or name untrusted code."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save
from support.hostile import Refused, check_refused, each

from fedlit.predictions.notes import foreign_code

EVIL = "open('ran', 'w').close()\nimport torch\nclass Evil(torch.nn.Module): pass\n"
NOTES = {
    "round": 1, "classes": ["Edema", "Mass"], "learned": [True, True], "image_size": 16, "channels": 1, "in_chans": 1,
    "mean": [0.4], "std": [0.2],
}  # fmt: skip
MODEL = "fedlit.models.ImageClassifier"
PREDICT = "predict --model m.safetensors images"
AGAIN = "export the model again"
LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{key}: &{key} [{', '.join([f'*{before}'] * 9)}]\n" for before, key in zip("abcdefgh", "bcdefghi", strict=True)
)


def config(class_path: str = MODEL, **options: object) -> str:
    model = {"class_path": class_path, "init_args": {"backbone": "resnet10t", **options}}
    return json.dumps({"model": model, "fabric": {"precision": "32-true"}})


def exported(config: str = config(), **notes: object) -> bytes:
    """An exported file of one tensor; a note None is left out, a text is written unchanged."""
    texts = {name: json.dumps(value) for name, value in NOTES.items()}
    texts |= {"fedlit": "0.1.0", "model": MODEL, "config": config}
    texts |= {name: value if isinstance(value, str) else json.dumps(value) for name, value in notes.items()}
    return save({"w": torch.zeros(1)}, {name: text for name, text in texts.items() if notes.get(name, "") is not None})


def row(what: str, content: bytes | str, *words: str, **files: str) -> Refused:
    named = {"m.safetensors": content} | {name.replace("_", "."): text for name, text in files.items()}
    return Refused(what, PREDICT, ("m.safetensors", *words), named)


def evil(what: str, *words: str, class_path: str = MODEL, **options: object) -> Refused:
    """A file that names code in evil.py, which must not run."""
    return row(
        what, exported(config(class_path, **options)), "--trust", *words, evil_py=EVIL, bad_yaml="class_path: evil.Evil"
    )


WHOLE = exported()
NO_FILE = "expected a model written by `fedlit export`"

INPUTS = [
    row("an empty file", b"", NO_FILE),
    row("a header cut off", WHOLE[:100], NO_FILE),
    row("a header of 2 to the 63 bytes", b"\xff" * 7 + b"\x7f" + WHOLE[8:], NO_FILE),
    row("no notes", save({"w": torch.zeros(1)}), "without its notes"),
    row("classes that are a number", exported(classes=3), "'classes'", "expected a list", "found 3", AGAIN),
    row("a class twice", exported(classes=["Edema", "Edema"]), "'classes'", "expected different names"),
    row("no size of the images", exported(image_size=None), "expected 'image_size' with", AGAIN),
    row("a mean that is no number", exported(mean="[NaN]"), "note 'mean'", "NaN"),
    row("a deviation of zero", exported(std=[0]), "'std'", "expected a number in (0, 1e6)"),
    row("a configuration that explodes", exported(config=LAUGHS), "note 'config': line", "anchors"),
    row("a configuration without a model", exported(config="seed: 1"), "expected model.class_path and fabric"),
    row("a class that fedlit has not", exported(config("fedlit.models.Absent")), "fedlit.models.Absent", "--trust"),
    row("tensors of another model", WHOLE, "expected the tensors of a ImageClassifier", "Missing key"),
    Refused("a precision that there is not", PREDICT, ("fabric.precision", "12-bits"),
        {"m.safetensors": exported(config().replace("32-true", "12-bits"))}),
    evil("a module of somebody", "evil.Evil", class_path="evil.Evil"),
    evil("an objective of somebody", "evil.Evil", objective={"class_path": "evil.Evil"}),
    evil("an objective by its path alone", "evil.Evil", objective="evil.Evil"),
    evil("an objective as YAML in a text", "evil.Evil", objective="class_path: evil.Evil"),
    evil("an objective in a file", "bad.yaml", objective="bad.yaml"),
    evil("an objective on a server", "http://127.0.0.1:9/bad.yaml", objective="http://127.0.0.1:9/bad.yaml"),
    evil("somebody in a list", "model.objective", objective={"class_path": "fedlit.objectives.BCE",
        "init_args": {"x": ["evil.Evil"]}}),
    evil("somebody in other arguments", "evil.Evil", objective={"class_path": "torch.nn.BCELoss",
        "dict_kwargs": {"x": {"class_path": "evil.Evil"}}}),
    evil("a name that begins as torch does", "torchevil.Evil", class_path="torchevil.Evil"),
    evil("a shell that torch.optim imports", "torch.optim.lr_scheduler.os.system",
        optimizer={"class_path": "torch.optim.lr_scheduler.os.system", "init_args": {"command": "touch ran"}}),
    evil("a shell that fedlit imports", "fedlit.tracking.run.os.system",
        objective={"class_path": "fedlit.tracking.run.os.system", "init_args": {"command": "touch ran"}}),
]  # fmt: skip


@pytest.fixture
def place(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(folder)
    Path("images").mkdir()
    Image.fromarray(np.zeros((8, 8), dtype=np.uint8)).save("images/1.png")
    yield folder
    sys.modules.pop("evil", None)


@each(INPUTS)
def test_it_is_refused_by_name(given: Refused, place: Path, fedlit_cli):
    check_refused(given, fedlit_cli)
    assert not Path("ran").exists()
    assert not Path("scores.csv").exists()


def test_with_trust_the_module_is_made(place: Path, fedlit_cli):
    Path("evil.py").write_text(EVIL)
    Path("m.safetensors").write_bytes(exported(config(objective={"class_path": "evil.Evil"})))
    fedlit_cli(f"{PREDICT} --trust").refused("ImageClassifier")
    assert Path("ran").exists()


@pytest.mark.parametrize(("trust", "ran"), [("", False), ("0", False), ("1", True)])
def test_mlflow_asks_the_environment(trust: str, ran: bool, place: Path, monkeypatch):
    from fedlit.predictions.serving import _load_pyfunc

    monkeypatch.setenv("FEDLIT_TRUST", trust)
    Path("evil.py").write_text(EVIL)
    Path("model.safetensors").write_bytes(exported(config(objective={"class_path": "evil.Evil"})))
    with pytest.raises(Exception, match="expected the tensors of" if ran else "FEDLIT_TRUST=1"):
        _load_pyfunc(str(place))
    assert Path("ran").exists() == ran


def test_what_is_shipped_needs_no_trust():
    for options in (
        {"backbone": "resnet50.a1_in1k", "weights": "gone.pt", "norm": "group", "pretrained": True},
        {"objective": {"class_path": "fedlit.objectives.AUCSaddle", "init_args": {"margin": 1.0}}},
        {"optimizer": {"class_path": "torch.optim.Adam", "init_args": {"lr": 1e-3, "betas": [0.9, 0.999]}}},
        {"objective": {"class_path": "torch.nn.BCEWithLogitsLoss", "init_args": {"reduction": "mean"}}},
    ):
        assert foreign_code({"class_path": MODEL, "init_args": options}) == []
