"""Keys of errors: each deliberate error has its own, and keeps it wherever it goes."""

import pickle
from collections import defaultdict

import pytest
from error_list import FILE, entries, listed

from fedlit.core import errors
from fedlit.core.checkpoints.manifest import CorruptCheckpointError
from fedlit.core.errors import KEY, ConfigError, DataError, MissingFileError, WorkerError, key_of
from fedlit.core.system.documents import DocumentError
from fedlit.sites.own_data import Unreadable


def test_every_deliberate_error_has_a_key_of_its_own() -> None:
    texts = defaultdict(set)
    for entry in entries():
        assert entry.key is not None, f"{entry.place}: {entry.kind} lacks key="
        assert entry.key == "" or KEY.fullmatch(entry.key), f"{entry.place}: {entry.key!r} is not kebab-case"
        texts[entry.key].add((entry.kind, entry.text))
    assert len(texts) > 800
    assert {key: found for key, found in texts.items() if key and len(found) > 1} == {}


def test_all_texts_are_listed() -> None:
    assert FILE.read_text() == listed(), "run `python tests/support/error_list.py`, and read the difference"


@pytest.mark.parametrize(
    "kind", [ConfigError, DataError, MissingFileError, WorkerError, CorruptCheckpointError, DocumentError, Unreadable]
)
def test_errors_keep_their_key_between_processes(kind: type[errors.FedlitError]) -> None:
    error = pickle.loads(pickle.dumps(kind("a.csv: expected 1, found 2; write 1", key="one-of-two")))
    assert (type(error), str(error), error.key) == (kind, "a.csv: expected 1, found 2; write 1", "one-of-two")


def test_parts_of_the_text() -> None:
    def parts(text: str) -> tuple[str | None, ...]:
        error = ConfigError(text)
        return error.where, error.found, error.advice

    assert parts("my a.csv, line 3: expected 0 or 1, found 'x'; write 1") == ("my a.csv, line 3", "'x'", "write 1")
    assert parts("FedProx: mu must be at least 0, found -1") == ("FedProx", "-1", None)
    assert parts("client 'north', round 2: it is not finite. Lower it") == ("client 'north', round 2", None, "Lower it")
    assert parts("the server of the run cannot be reached (no): check it") == (None, None, None)


def test_the_key_of_an_error_is_that_of_its_cause() -> None:
    outer = ValueError("outer")
    outer.__cause__ = DataError("inner", key="inner-mistake")
    assert key_of(outer, "other-mistake") == "inner-mistake"
    assert key_of(ValueError("plain"), "other-mistake") == "other-mistake"
    assert key_of(None) is None
