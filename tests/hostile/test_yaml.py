"""YAML files that are ambiguous, or empty."""

import os
import time
from pathlib import Path

import pytest
import yaml
from own_tables import people, write_table
from refusals import refused, table
from support.hostile import TINY, Refused, check_refused, each

from fedlit.core.system import documents
from fedlit.core.system.documents import DocumentError

FIT, SWEEP = "fit --config bad.yaml", "sweep --config bad.yaml"

LAUGHS = "a: &a [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n" + "".join(
    f"{key}: &{key} [{', '.join([f'*{before}'] * 9)}]\n" for before, key in zip("abcdefghi", "bcdefghij", strict=True)
)


def bad(what: str, content: str | bytes, *words: str, command: str = FIT, code: int = 2, **files: str) -> Refused:
    named = {f"{name}.yaml": text for name, text in files.items()}
    return Refused(what, command, words, {"bad.yaml": content, **named}, code)


COMMANDS = [
    bad("a section twice", TINY + "federation: {rounds: 2}\n", "bad.yaml, line 7", "'federation'", "first in line 5"),
    bad("a key with dots and without", TINY + "federation.rounds: 2\n", "line 7", "'federation.rounds'", "line 5"),
    bad("a key of a part twice", "", "d.yaml, line 2", "'class_path'", "line 1",
        command="fit --config tiny.yaml --data d.yaml", d="class_path: PhantomCXR\nclass_path: NIHChestXray14\n"),
    Refused("a key twice on the command line", "fit --config tiny.yaml --tags '{a: x, a: y}'",
        ("tags", "command line"), code=2),
    bad("a section twice in what a sweep starts from", "experiment: a\nconfig: [base.yaml]\n", "base.yaml, line 7",
        "'federation'", command=SWEEP, base=TINY + "federation: {rounds: 2}\n"),
    bad("an empty file", "", "bad.yaml", "found nothing"),
    bad("a list", "- a\n- b\n", "bad.yaml", "found a list"),
    bad("latin-1", TINY.replace("logger", "# caf\xe9\nlogger").encode("latin-1"), "line 6", "UTF-8", "0xe9"),
    bad("a folder", "", "d: expected a YAML file, found a folder", command="fit --config d", **{"d/inside": ""}),
    Refused("no name", "fit --config ''", ("expected a YAML file",), code=2),
    bad("an empty sweep", "", "bad.yaml", "found nothing", command=SWEEP),
    bad("a sweep that is a list", "[1]", "bad.yaml", "a list", command=SWEEP),
    bad("a sweep in latin-1", "experiment: caf\xe9\n".encode("latin-1"), "line 1", "UTF-8", command=SWEEP),
    bad("a sweep from a list", "experiment: a\nconfig: [base.yaml]\n", "base.yaml", "a list", command=SWEEP,
        base="- 1\n"),
    bad("federation as nothing", "federation: null\n", "federation (bad.yaml, line 1)", "found nothing"),
    bad("fabric as a list", "fabric: [cpu]\n", "fabric (bad.yaml, line 1)", "found a list"),
    bad("data as a list", "data: [PhantomCXR]\n", "data (bad.yaml, line 1)", "FederatedDataModule"),
    bad("an aggregator as a number", "federation: {aggregators: [3]}\n", "federation.aggregators (bad.yaml, line 1)"),
    bad("phases as a word", "phases: warmup\n", "phases (bad.yaml, line 1)", "[warmup]"),
    bad("anchors that explode", LAUGHS, "bad.yaml, line", "anchors"),
    bad("anchors that explode in a sweep", LAUGHS, "bad.yaml, line", "anchors", command=SWEEP),
]  # fmt: skip


def row(what: str, text: str | bytes, *names: str) -> tuple:
    return what, lambda: text if isinstance(text, bytes) else text.encode(), DocumentError, "bad.yaml", *names


TEXTS = [
    row("a key twice in a line", TINY.replace("{rounds: 1,", "{rounds: 1, rounds: 2,"), "line 5", "'rounds'"),
    row("a key twice in a list", TINY + "phases:\n- name: a\n  rounds: 1\n  rounds: 2\n", "line 10", "line 9"),
    row("a key twice by an alias", "experiment: &e seed\n*e : 1\nseed: 2\n" + TINY, "line 3", "'seed'", "line 2"),
    row("UTF-16", TINY.encode("utf-16"), "UTF-16"),
    row("a NUL", TINY.encode() + b"\0\n", "line 7", "NUL"),
    row("a tab", "federation:\n\trounds: 3\n", "line 2, column 1", "tab"),
    row("a torn file", "federation:\n  rounds: 3\n  work", "line 3, column 7"),
    row("an open bracket", "federation: {rounds: 3\nlogger: false\n", "line 2"),
    row("two documents", TINY + "---\nseed: 1\n", "line 7"),
    row("a tag of Python", TINY + "x: !!python/object/apply:os.system ['true']\n", "line 7", "os.system"),
    row("a text as a number", "seed: !!int x\n", "line 1, column 7", "'x'"),
    row("a number of 5,000 digits", TINY + f"seed: {'9' * 5000}\n", "line 7, column 7"),
    row("a day that there is not", "name: !!timestamp 2026-99-99\n", "line 1"),
    row("an anchor within itself", "a: &a [*a]\n" + TINY, "line 1", "&a"),
    row("brackets without end", "a: " + "[" * 5000 + "]" * 5000, "line 1"),
]

ROUNDS = "federation:\n  aggregators: [FedAvg]\n  rounds: 3\n  workers: 1\n"
COPIED = {
    "an indentation": ("  rounds: 3", "{}  rounds: 3"),
    "two signs of an indentation": ("  rounds: 3", "{0}{0}rounds: 3"),
    "after a colon": ("rounds: 3", "rounds:{}3"),
    "before a colon": ("rounds: 3", "rounds{}: 3"),
    "the end of a value": ("rounds: 3", "rounds: 3{}"),
    "before a remark": ("rounds: 3", "rounds: 3{}# few"),
    "the end of a key without a value": ("  rounds: 3", "  participation:{}\n    fraction: 1\n"),
}
LOOKALIKES = [
    *(row(f"a no-break space: {what}", ROUNDS.replace(old, new.format("\u00a0")), "line 3", "NO-BREAK SPACE (U+00A0)")
      for what, (old, new) in COPIED.items()),
    *(row(f"{number} after a colon", ROUNDS.replace("rounds: 3", f"rounds:{sign}3"), "line 3", number)
      for sign, number in {"\u2003": "(U+2003)", "\u200b": "(U+200B)", "\ufeff": "(U+FEFF)"}.items()),
    row("a list", ROUNDS.replace("[FedAvg]", "[FedAvg,\u00a0FedBN]"), "line 2", "U+00A0"),
    row("a bullet", ROUNDS.replace("[FedAvg]", "\n  - FedAvg\n  \u2013 FedBN"), "line 4, column 3", "EN DASH"),
    row("a wide colon", ROUNDS.replace("rounds: ", "rounds\uff1a"), "line 3, column 9", "FULLWIDTH COLON"),
    row("curly quotes", ROUNDS.replace("FedAvg", "\u201cFedAvg\u201d"), "line 2", "LEFT DOUBLE QUOTATION MARK"),
    row("curly quotes around a remark", "name: \u2018a # b\u2019\n", "line 1", "LEFT SINGLE QUOTATION MARK"),
    row("a curly quote at the end", 'name: "a\u201d\n' + ROUNDS, "line 1, column 9", "RIGHT DOUBLE QUOTATION MARK"),
]  # fmt: skip


@each(COMMANDS)
def test_it_is_refused_with_its_place(given, fedlit_cli, folder):
    check_refused(given, fedlit_cli)


@table([*TEXTS, *LOOKALIKES])
def test_a_text_that_is_not_what_it_looks_like_is_refused_with_its_place(provoke, kind, names, tmp_path: Path):
    (file := tmp_path / "bad.yaml").write_bytes(provoke())
    with refused(kind, *names):
        documents.load(file)


def test_what_explodes_is_refused_in_milliseconds():
    began = time.perf_counter()
    with refused(DocumentError, "anchors"):
        documents.parse(LAUGHS)
    assert time.perf_counter() - began < 0.1


LEGAL = {
    "anchors and merge keys": "a: &a {x: 1, y: 2}\nb: {<<: *a, x: 3}\nc: {<<: [*a, {z: 1}], y: 0}\n",
    "the same key in two places": "a: {x: 1}\nb: {x: 1}\nc: [{x: 1}, {x: 2}]\n",
    "dots beside a section": "federation.rounds: 3\nfederation: {workers: 1}\n",
    "a byte order mark": "\ufeffa: 1\n",
    "letters of other languages": "a: Zürich\n",
    "blanks of other kinds within a text": "Pleural\u00a0Thickening: a\u2003b  # \u00a0\n",
    "blanks of other kinds in quotes": "a: '\u00a0b\u200b'\nc: '\u201cd\u201d'\n",
    "quotes within a text": "a: \u201cx\u201d and y\u2019s\n",
}


@pytest.mark.parametrize("text", LEGAL.values(), ids=[what.replace(" ", "-") for what in LEGAL])
def test_what_was_legal_stays_legal(text, tmp_path: Path):
    (file := tmp_path / "good.yaml").write_text(text, encoding="utf-8")
    assert documents.load(file) == yaml.safe_load(text)


def test_what_fedlit_writes_can_be_read(tmp_path: Path):
    words = ["\u00a0a", "a\u200b", "a:\u2003b", "\u201ca\u201d"]
    (file := tmp_path / "config.yaml").write_text(documents.dump(words), encoding="utf-8")
    assert documents.load(file) == words


def test_a_file_name_that_is_not_utf_8_is_written_in_ascii():
    name = os.fsdecode(b"caf\xe9")
    assert documents.dump({"root": name, "name": "\U0001f600"}) == 'root: "caf\\uDCE9"\nname: \U0001f600\n'
    assert documents.parse(documents.dump({"name": "\U0001f600"})) == {"name": "\U0001f600"}


def test_a_long_file_is_no_explosion(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(documents, "LARGEST", 100)
    assert documents.parse("- 1\n" * 2000) == [1] * 2000


def test_a_file_is_parsed_once(fedlit_cli, folder, monkeypatch):
    parsed, parse = [], yaml.parse
    monkeypatch.setattr(yaml, "parse", lambda text, loader: parsed.append(text) or parse(text, loader))
    Path("bad.yaml").write_text(TINY.replace("rounds", "rouns"))
    fedlit_cli(FIT).refused("bad.yaml, line 5", "rounds", code=2)
    assert parsed.count(Path("bad.yaml").read_text()) == 1


def test_configurations_in_pieces_are_merged(fedlit_cli, folder):
    Path("one.yaml").write_text(TINY)
    Path("two.yaml").write_text("federation: {rounds: 7}\n")
    code, out, _ = fedlit_cli("fit --config one.yaml --config two.yaml --print_config")
    assert (code, "rounds: 7" in out, "window: 1" in out) == (0, True, True)


WORDS = {"NO": "NO", "off": "off", "y": "y", "007": "007", "1:30": "1:30", "2026-11-26": "2026-11-26", "true": True,
         "False": False, "1e-3": 0.001, "1e5": 100000.0, "12": 12, "-1.": -1.0, "0o17": 15, "~": None}  # fmt: skip


def test_words_mean_what_yaml_1_2_says():
    for word, meant in WORDS.items():
        assert repr(documents.parse(f"sites: {{{word}: x}}")["sites"]) == repr({meant: "x"})
        assert repr(documents.parse(f"a: {word}")["a"]) == repr(meant)


def test_norway_is_a_country(tmp_path, fedlit_cli):
    table = write_table(tmp_path, people(24, clinic=["NO"] * 12 + ["SE"] * 12))
    told = "data check {} --set '{{site: clinic, labels: [Edema], sites: {{NO: Norway, SE: Sweden}}}}'"
    assert "Norway" in fedlit_cli(told.format(table)).succeeded()
