"""Wrong inputs, and pieces of the errors with which fedlit must refuse them."""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

TINY = """\
data:
  class_path: PhantomCXR
  init_args: {hospitals: 3, images: 90, image_size: 32, batch_size: 8}
model: {class_path: ImageClassifier, init_args: {backbone: small_cnn}}
federation: {rounds: 1, workers: 1, schedule: {window: 1}}
logger: false
"""
"""A configuration that trains for a second; each test changes one thing."""


@dataclass(frozen=True)
class Refused:
    """An input that must be refused with a clear error and before training.

    Attributes:
        what: The mistake, in a few words: the name of the test.
        command: What is typed after ``fedlit``; ``tiny.yaml`` is there, see `TINY`.
        words: What the message must contain, each of them.
        files: Files that the command meets in its working directory, by name.
        code: The exit code: 1 an error, 2 a mistake on the command line or in a YAML file.
    """

    what: str
    command: str
    words: tuple[str, ...]
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    code: int = 1


def spread(cases: Mapping[str, object], every: int = 3) -> list:
    """Return parameters by name: one in so many is in the fast tests, the others are in the slow tier."""
    return [
        pytest.param(case, id=name.replace(" ", "-"), marks=[pytest.mark.slow] if number % every else [])
        for number, (name, case) in enumerate(cases.items())
    ]


def each(inputs: list[Refused]) -> pytest.MarkDecorator:
    """Run a test once per input, under its name; one in six is in the fast tests."""
    return pytest.mark.parametrize("given", spread({given.what: given for given in inputs}, 6))


def check_printed(printed: tuple[int, str, str], words: Iterable[str], code: int) -> None:
    """Check what a command has printed: every word, and no traceback; and its exit code."""
    said = " ".join((printed[1] + printed[2]).split())
    assert [word for word in words if word not in said] == [], said
    assert "Traceback" not in said
    assert printed[0] == code, said


def check_refused(given: Refused, fedlit_cli: Callable[[str], tuple[int, str, str]]) -> None:
    """Type the command in the working directory: the exit code, every word, no traceback, and no run."""
    for name, content in {"tiny.yaml": TINY, **given.files}.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
    before = {name for _, _, names in os.walk(".") for name in names}
    check_printed(fedlit_cli(given.command), given.words, given.code)
    left = {name for _, _, names in os.walk(".") for name in names} - before
    assert not left & {"metrics.csv", "config.yaml", "manifest.json"}
