"""What a server may use up of a site, and where it may make it write: nothing hangs, nothing dies, nothing lies
outside."""

import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import torch
from attacker import MODEL, Attacker, AttackerHere, a_plan, write_site

from fedlit.sites.envelope import MAGIC, PREFIX, PROTOCOL, Envelope
from fedlit.sites.failures import OutOfTime
from fedlit.sites.messages import FAILED, REPLY, End, Look, Member, Prepare, Start, Train, new_run
from fedlit.sites.policy import Policy
from fedlit.sites.preparation import FROZEN
from fedlit.sites.process import _limited_time

NOTHING = hashlib.sha256().hexdigest()
"""Of no arrays at all."""


def framed(header: bytes, arrays: bytes = b"") -> bytes:
    return PREFIX.pack(MAGIC, PROTOCOL, len(header)) + header + arrays


def header(**changes) -> dict:
    return {
        "verb": "end",
        "content": {"run": new_run()},
        "vectors": [],
        "shapes": {},
        "sha256": NOTHING,
        "ledger": "",
    } | changes


NO_MESSAGES = {
    "nothing": b"",
    "a prefix": MAGIC,
    "a header that is said to be huge": PREFIX.pack(MAGIC, PROTOCOL, 2**31),
    "a list for content": framed(json.dumps(header(content=[1, 2])).encode()),
    "a number for content": framed(json.dumps(header(content=7)).encode()),
    "a list": framed(b"[]"),
    "a key twice": framed(json.dumps(header()).encode().replace(b'"verb"', b'"verb": "end", "verb"')),
    "NaN": framed(json.dumps(header(content={"run": float("nan")})).encode()),
    "an infinite number": framed(json.dumps(header(content={"run": 1})).encode().replace(b'"run": 1', b'"run": 1e999')),
    "a deep header": framed(json.dumps(header()).encode().replace(b'"content": {', b'"content": {"x": ' + b"[" * 9000)),
    "depth": framed(json.dumps(header(content={"x": json.loads("[" * 60 + "]" * 60), "run": new_run()})).encode()),
    "a huge number": framed(json.dumps(header()).encode().replace(b'"shapes": {}',
    b'"shapes": {"x": [' + b"9" * 5000 + b"]}")),
    "a huge array that is not there": framed(json.dumps(header(vectors=[["w", "float32", 10**15]])).encode()),
    "a negative array": framed(json.dumps(header(vectors=[["w", "float32", -4]])).encode()),
    "an array of objects": framed(json.dumps(header(vectors=[["w", "object", 1]])).encode(), b"12345678"),
    "two arrays of one name": framed(json.dumps(header(vectors=[["w", "int8", 1], ["w", "int8", 1]])).encode(), b"12"),
    "a shape of nothing": framed(json.dumps(header(vectors=[["w", "int8", 1]], shapes={"w": [-1, -1]})).encode(), b"1"),
    "bytes that are no text": framed(b"\xff\xfe\x00"),
}  # fmt: skip


WHY = {
    "a key twice": "the key 'verb' occurs twice",
    "depth": "are nested more than",
    "two arrays of one name": "two arrays of a message",
}


@pytest.mark.parametrize("what", NO_MESSAGES)
def test_what_is_no_message_is_answered_in_words(attacked, what):
    assert attacked.raw(framed(json.dumps(header()).encode())).verb == REPLY  # they are made of a whole one
    attacked.refuses(attacked.raw(NO_MESSAGES[what]), WHY.get(what, ""), "damaged")


@pytest.fixture(scope="module")
def process(tmp_path_factory) -> Iterator[Attacker]:
    """A site in a process of its own, which has limits of memory and time."""
    site = Attacker(write_site(tmp_path_factory.mktemp("process") / "north", limits={"memory": 1.5, "seconds": 3.0}))
    yield site
    site.close()


def test_a_run_that_is_no_id_makes_no_folder(attacked):
    attacked.prepare()
    before = {path for path in attacked.file.parents[2].rglob("*") if path.is_dir()}
    members, words = [Member(attacked.client, 1.0)], "run: expected 32 hexadecimal digits"
    for run in ("/../../x", "", "A" * 32, f"{'a' * 31}\n"):
        asked = attacked.task(Train(0, [], True))
        asked.run = run
        attacked.refuses(attacked.ask("train", asked, attacked.down()), words, "damaged")
        answer = attacked.ask("prepare", Prepare(run, a_plan(), attacked.fingerprint, members), attacked.tensors())
        attacked.refuses(answer, words, "damaged")
        attacked.refuses(attacked.ask("end", End(run)), words)
    assert {path for path in attacked.file.parents[2].rglob("*") if path.is_dir()} == before
    assert attacked.state in before


def test_lines_of_the_ledger_are_not_forged(attacked):
    """What a message names is escaped: one message is one line."""
    before = attacked.ledger()
    odd = "train\n2026-01-01 all is well\x1b[2J"
    attacked.refuses(attacked.content(odd, {"run": new_run()}), "verb: expected one of", "damaged")
    attacked.refuses(attacked.content("train", {"run": odd}), "missing or unknown fields")
    attacked.prepare(run=new_run(), named=odd)
    after = attacked.ledger()
    assert len(after) == len(before) + 3
    text = (attacked.state / "leaves_a_site.txt").read_text()
    assert "\n2026-01-01" not in text
    assert "\x1b" not in text


def test_verbs_out_of_order_are_answered(attack):
    site = attack()
    site.hello()
    site.refuses(site.ask("train", site.task(Train(0, [], True)), {"w": torch.zeros(1)}), "not prepared", "unprepared")
    site.prepare()
    asked = site.task(Look(site.client, "val", 0, "validation_step", None))
    site.refuses(site.ask("train", asked, site.down()), "train: expected a round", "damaged")
    site.refuses(
        site.ask("evaluate", site.task(Train(0, [], True)), site.down()), "evaluate: expected an evaluation", "damaged"
    )
    site.refuses(site.train(accepted=7), "the required state of a client is missing", "state")
    start = Start(site.run, site.fingerprint, site.client, 3, False)
    site.refuses(site.ask("start", start, site.down()), "is missing", "state")
    site.refuses(site.ask("start", Start(site.run, site.fingerprint, "../x", 3, False), site.down()), "has no client")
    assert site.ask("end", End(site.run)).verb == REPLY
    site.refuses(site.train(), "not prepared", "unprepared")
    other = site.task(Train(0, [], True), client="../../x")
    site.prepare()
    site.refuses(site.ask("train", other, site.down()), "has no client", "unfit")


def test_a_message_that_is_too_large_is_refused_before_it_is_read(attack):
    site = attack(limits={"megabytes": 1})
    site.hello()
    answer = site.raw(Envelope.of("end", End(new_run()), {"w": torch.zeros(300_000)}).to_bytes())
    site.refuses(answer, "limits.megabytes allows 1", "refused")


def test_messages_beyond_those_of_a_day_take_no_room(attack):
    site = attack(limits={"messages": 3})
    for _ in range(3):
        assert site.hello().verb == REPLY
    site.refuses(site.hello(), "limits.messages allows 3 in a day", "refused")
    before = site.ledger()
    for _ in range(20):
        assert "limits.messages allows 3 in a day" in site.hello().content["reason"]
    assert site.ledger() == before
    assert len(before) == 4


def test_frozen_bodies_of_any_number_leave_few_files(attack, tmp_path, monkeypatch):
    monkeypatch.setattr("fedlit.sites.preparation.FROZEN", 2)
    site = attack()
    frozen = MODEL | {"init_args": MODEL["init_args"] | {"trainable": "head"}}
    cache, names = tmp_path / "north" / "cache", set()
    for number in range(4):
        torch.manual_seed(number)  # for another body
        assert site.prepare(run=new_run(), model=frozen, seed=number).verb == REPLY
        left = {folder.name for folder in cache.rglob("features-*")}
        assert len(left - names) == 1
        names |= left
        assert len(left) == min(number + 1, 2)
    assert site.train().verb == REPLY


def test_a_schedule_of_any_number_of_stages_takes_no_memory(attacked):
    options = {"stages": 10**12, "window": 1, "iterations": 1, "growth": 1.0}
    schedule = {"class_path": "TheorySchedule", "init_args": options}
    attacked.refuses(attacked.prepare(run=new_run(), schedule=schedule), "stages", "failed")


def test_the_defaults_suit_the_machine_of_a_hospital():
    assert 2 < FROZEN < 20
    limits = Policy().limits
    assert limits.seconds == 3600
    assert 0 < limits.memory < psutil.virtual_memory().total / 1e9


@pytest.mark.skipif(not Path("/proc").exists(), reason="memory is not limited here")
def test_memory_that_is_not_allowed_is_not_had(process):
    """A model that would take it all is a failure in words, and the site is there for the next message."""
    wide = {"class_path": "ImageClassifier", "init_args": {"backbone": "small_cnn", "hidden": 2_000_000}}
    process.refuses(process.prepare(run=new_run(), model=wide, tensors={}), "allocate memory", "failed")
    assert process.prepare(run=new_run()).verb == REPLY
    assert process.train().verb == REPLY


def test_an_answer_that_takes_too_long_ends_in_words(process):
    """A round of as many steps as a site allows takes minutes; what it failed at stays at the site."""
    long = {"class_path": "ConstantSchedule", "init_args": {"window": 90_000, "unit": "steps"}}
    assert process.prepare(run=new_run(), schedule=long).verb == REPLY
    process.refuses(process.train(), "took too long", "failed")
    assert process.prepare(run=new_run()).verb == REPLY


def test_one_process_answers_for_a_folder_and_its_files_are_its_users_own(process, monkeypatch):
    assert process.prepare(run=new_run()).verb == REPLY
    assert process.train().verb == REPLY
    monkeypatch.setattr("fedlit.sites.process.OTHER", 0.2)
    answer = AttackerHere(process.file).ask("end", End(new_run()))
    assert answer.verb == FAILED
    assert "another process answers for its folder of states" in answer.content["reason"]
    folder = process.file.parents[1]
    assert folder.stat().st_mode & 0o077 == 0
    for part in ("state", "cache", "local"):
        for path in [folder / part, *(folder / part).rglob("*")]:
            assert path.stat().st_mode & 0o077 == 0, path


def test_a_ledger_that_was_changed_is_refused(attack):
    site = attack()
    for _ in range(3):
        site.hello()
    file = site.state / "ledger.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    for changed in (
        lines[:1] + lines[2:],
        [lines[0].replace("hello", "howdy"), *lines[1:]],
        [lines[1], lines[0], lines[2]],
    ):
        file.write_text("".join(changed))
        site.again()
        assert site.hello().content["kind"] == "unfit"
    file.write_text("".join(lines) + '{"time": 1')  # of a process that died while it wrote
    site.again()
    assert site.hello().ledger.startswith("4:")


def test_an_older_copy_of_a_ledger_is_told_by_its_head(attack):
    """The server remembers how far it has heard of it; a copy from before has no such line, or another one."""
    site = attack()
    heads = [site.hello().ledger for _ in range(4)]
    file = site.state / "ledger.jsonl"
    assert site.hello(lines=4).content["ledger"] == heads[3]
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:2]))
    site.again()
    assert site.hello(lines=4).content["ledger"] == ""
    site.hello()
    assert site.hello(lines=4).content["ledger"] not in ("", heads[3])


def test_code_that_wraps_any_error_does_not_hide_that_time_is_up():
    """As the compiler of PyTorch does, which `compile: true` of a plan calls."""

    def compiling() -> None:
        with _limited_time(0.05):
            with suppress(Exception):
                time.sleep(5)
            time.sleep(5)

    with pytest.raises(OutOfTime, match=r"longer than limits\.seconds: 0\.05"):
        compiling()
