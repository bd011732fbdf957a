"""``fedlit site ledger``: who has asked a site for what, when, and how much has left, as an ethics board reads it."""

import csv
import json
from pathlib import Path

import pytest

from fedlit.sites.ledger import LINES, Ledger, LedgerEntry

DAY = 86400.0
ARRAYS = {"vectors/w": ("float32", 483)}


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def file(tmp_path: Path, state: Path) -> Path:
    file = tmp_path / "fedlit-site.yaml"
    file.write_text(f"name: north\nstate: {state}\n")
    return file


def noted(state: Path) -> None:
    ledger = Ledger(state)
    asked = {"run": "a1b2c3d4e5f6", "lead": "ann@example.org", "client": "North"}
    ledger.note(LedgerEntry(0.0, verb="hello", answer="reply"))
    trained = asked | {"verb": "train", "answer": "reply", "arrays": ARRAYS, "nbytes": 1932}
    ledger.note(LedgerEntry(DAY, **trained, examples=64, steps=8))
    ledger.note(LedgerEntry(2 * DAY, **trained, examples=80, steps=10))
    ledger.note(LedgerEntry(2 * DAY, **asked, verb="train", answer="failed", refused="rounds: 2 within 30 days"))
    ledger.note(
        LedgerEntry(3 * DAY, run="=cmd|'calc'", lead="\x1b[31mred", verb="evaluate", view="North/val", answer="reply")
    )


def test_a_line_a_run_and_question(fedlit_cli, file, state):
    noted(state)
    before = (state / LINES).read_bytes()
    code, out, err = fedlit_cli(f"site ledger {file}")
    assert (code, err) == (0, "")
    (train,) = [" ".join(line.split()) for line in out.splitlines() if "train" in line]
    assert train == "a1b2c3d4 ann@example.org train North 1970-01-02 00:00 1970-01-03 00:00 3 1 80 3.9 kB"
    assert "5 messages, 3.9 kB" in out
    assert "its last hash is " + json.loads(before.splitlines()[-1])["head"][:16] in out
    assert "\x1b" not in out
    assert (state / LINES).read_bytes() == before


def test_a_row_a_message(ran, file, state, tmp_path):
    noted(state)
    ran(f"site ledger {file} --csv {tmp_path / 'out.csv'}")
    with (tmp_path / "out.csv").open(newline="") as opened:
        rows = list(csv.DictReader(opened))
    assert [row["verb"] for row in rows] == ["hello", "train", "train", "train", "evaluate"]
    assert rows[1]["time"] == "1970-01-02T00:00:00+00:00"
    assert rows[1]["arrays"] == "vectors/w[483]"
    assert rows[3]["refused"] == "rounds: 2 within 30 days"
    assert rows[4]["run"] == "'=cmd|'calc'"
    heads = [json.loads(line)["head"] for line in (state / LINES).read_text().splitlines()]
    assert [row["hash"] for row in rows] == heads


@pytest.mark.parametrize("change", ["a line is left out", "a number is changed"])
def test_a_ledger_that_was_changed_is_not_shown(fedlit_cli, file, state, change):
    noted(state)
    lines = (state / LINES).read_text().splitlines(keepends=True)
    lines[1:3] = {"a line is left out": lines[2:3], "a number is changed": [lines[1], lines[2].replace("80", "8")]}[
        change
    ]
    (state / LINES).write_text("".join(lines))
    code, out, err = fedlit_cli(f"site ledger {file}")
    assert (code, out) == (1, "")
    assert "does not follow from the line before it: the file was edited" in err


def test_a_line_that_is_being_written_is_not_counted_and_stays(fedlit_cli, file, state):
    noted(state)
    with (state / LINES).open("a") as opened:
        opened.write('{"time": 5')
    before = (state / LINES).read_bytes()
    out = fedlit_cli(f"site ledger {file}").succeeded()
    assert "5 messages" in out
    assert (state / LINES).read_bytes() == before


def test_what_is_no_site_is_refused_in_words(fedlit_cli, file, tmp_path):
    assert "no message was answered yet, and nothing has left" in fedlit_cli(f"site ledger {file}")[1]
    fedlit_cli(f"site ledger {tmp_path}").refused("a folder")
    file.write_text("name: north\n")
    assert "state: expected the path of the site's folder of states" in fedlit_cli(f"site ledger {file}")[2]


def test_messages_of_the_last_days_are_counted(tmp_path):
    now = 10 * DAY
    ledger = Ledger(tmp_path, lambda: now)
    for days in (9, 3, 1, 0.5, 0):
        ledger.note(LedgerEntry(now - days * DAY, verb="hello"))
    assert [ledger.count(days) for days in (0.1, 1, 2, 5, 10)] == [1, 3, 3, 4, 5]


def test_a_message_under_a_wrong_clock_does_not_hide_those_before_it(tmp_path):
    now = 100 * DAY
    ledger = Ledger(tmp_path, lambda: now)
    for days in (1, 99, 0):
        ledger.note(LedgerEntry(now - days * DAY, verb="hello"))
    assert ledger.count(2) == 2
    assert [now - entry.time for entry in ledger.since(2)] == [DAY, 0]
