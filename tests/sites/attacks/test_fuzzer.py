"""A seeded fuzzer of a site's entry point: mutated plans, messages and envelopes, as a server may send them."""

import json
import os
import random
import re
import struct
import time
from collections import Counter
from contextlib import closing
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from attacker import EPOCH, MODEL, Attacker, a_plan, write_site

from fedlit.sites.envelope import MAGIC, PREFIX, PROTOCOL, Envelope
from fedlit.sites.messages import FAILED, REPLY, VERBS, End, Look, Member, Prepare, Start, Train, new_run

FUZZED = int(os.environ.get("FUZZED", 2000))
"""Number of messages: CONTRIBUTING.md has the command for ten thousand."""
HANG = 40
"""Seconds after which a message counts as one that hangs the site."""

ONLY_A_TYPE = re.compile(r"\w*(Error|Exception|Interrupt|Iteration): ")
"""Beginning of a refusal whose error has no words of fedlit, where ``leaves.errors`` lets it leave."""

VALUES = (
    None, True, -1, 0, 1, 2, 8, 10**9, 10**18, 10**30, -0.0, 1e-320, 0.5, 1e38, 1e308, "", "x" * 5000, "../..",
    "/etc/passwd", "\x1b[2J", "\n", "train", "NaN", "SGD", "LBFGS", "Adagrad", "FedBN", "Scaffold", "CODASCA", "Ditto",
    "AUCSaddle", "TheorySchedule", "ImageClassifier", "small_cnn", "epochs", "steps", "keep", "canary.Canary", [], {},
    [[]], [1], ["a"] * 2000, {"": "NaN"}, {"": 3}, {"class_path": "SGD", "init_args": {"lr": 0.1}},
    {"class_path": "FedBN"}, {"class_path": "AUCSaddle"}, {"class_path": "canary.Canary"},
    {"class_path": "os.system", "init_args": {"command": "touch canary-ran"}},
)  # fmt: skip

KEYS = (
    "lr", "momentum", "dampening", "betas", "eps", "rho", "alpha", "window", "unit", "stages", "rounds", "warm_up",
    "backbone", "hidden", "weights", "pretrained", "objective", "optimizer", "class_path", "init_args", "dict_kwargs",
    "classes", "in_chans", "keep", "aggregators", "schedule", "data", "logger", "run_dir", "__class__", "self",
)  # fmt: skip

CANARY = "open('canary-ran', 'w').close()\nclass Canary: ...\n"
"""A module in the working directory, where a site finds custom classes."""


def change(content: Any, draw: random.Random) -> None:
    """Change one value somewhere in a message's fields."""
    if not isinstance(content, dict | list) or not content:
        return
    key = draw.choice(list(content)) if isinstance(content, dict) else draw.randrange(len(content))
    if isinstance(content[key], dict | list) and content[key] and draw.random() < 0.8:
        change(content[key], draw)
    elif draw.random() < 0.15:
        del content[key]
    elif isinstance(content, dict) and draw.random() < 0.3:
        content[draw.choice((*KEYS, f"{key}2"))] = deepcopy(draw.choice(VALUES))
    else:
        content[key] = deepcopy(draw.choice(VALUES))


def framed(header: bytes, arrays: bytes) -> bytes:
    return PREFIX.pack(MAGIC, PROTOCOL, len(header)) + header + arrays


def mutated(content: bytes, draw: random.Random) -> bytes:
    """A message with something changed: a bit, a piece, numbers and names of its header."""
    start = PREFIX.size + PREFIX.unpack_from(content)[2]
    header = json.loads(content[PREFIX.size : start])
    kind = draw.choice(("bit", "piece", "more", "prefix", "envelope", "verb", *["fields"] * 6))
    if kind == "bit":
        place = draw.randrange(len(content))
        return content[:place] + bytes([content[place] ^ (1 << draw.randrange(8))]) + content[place + 1 :]
    if kind == "piece":
        return content[: draw.randrange(len(content))]
    if kind == "more":
        return content + draw.randbytes(draw.randrange(1, 20))
    if kind == "prefix":
        number = draw.choice((0, 1, 2, PROTOCOL, 65535))
        return struct.pack("<6sHI", MAGIC, number, draw.randrange(2**20)) + content[PREFIX.size :]
    if kind == "envelope":
        header[draw.choice(list(header))] = deepcopy(draw.choice(VALUES))
    if kind == "verb":
        header["verb"] = draw.choice((*VERBS, REPLY, FAILED))
    for _ in range(draw.choice((1, 1, 2, 3)) if kind == "fields" else draw.choice((0, 1))):
        change(header["content"], draw)
    text = json.dumps(header).encode()
    if draw.random() < 0.1:
        text = draw.choice(
            (text.replace(b'"', b"'", 1), text.replace(b"{", b'{"verb": "end", ', 1), b"[" * 9000 + text)
        )
    return framed(text, content[start:])


def plans() -> list[dict[str, Any]]:
    """Plans of several algorithms, from which the fuzzer starts."""
    balanced = MODEL | {"init_args": MODEL["init_args"] | {"objective": {"class_path": "AUCSaddle"}}}
    names = ("FedBN", "Scaffold", "SurgicalHeads", "Ditto", "MOON", "FedProx", "FedAdam", "TrimmedMean")
    return [
        a_plan(schedule=EPOCH),
        a_plan(model=balanced, aggregators=[{"class_path": "CODA", "init_args": {}}]),
        *(a_plan(aggregators=[{"class_path": name, "init_args": {}}]) for name in names),
    ]


def good(site: Attacker) -> list[bytes]:
    """Messages that a site accepts, or would after another one."""
    members, look = [Member(site.client, 1.0)], Look(site.client, "val", 0, "validation_step", None)
    start = Start(site.run, site.fingerprint, site.client, 3, False)
    made = [
        Envelope.of("prepare", Prepare(site.run, plan, site.fingerprint, members), site.tensors()) for plan in plans()
    ]
    made += [
        Envelope.of("train", site.task(Train(0, [site.client], True)), site.down()),
        Envelope.of("measure", site.task(Train(0, [site.client], True)), site.down()),
        Envelope.of("evaluate", site.task(look), site.down()),
        Envelope.of("start", start, site.down()),
        Envelope.of("end", End(site.run)),
    ]
    return [envelope.to_bytes() for envelope in made]


def files(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


@pytest.mark.slow
def test_mutated_messages_kill_nothing(tmp_path, monkeypatch):
    """No crash, no hang, no file outside of the site's folder, no import, and no refusal that is only an error's
    type."""
    for name in ("HOME", "TMPDIR"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(name, str(tmp_path / name))
    (tmp_path / "canary.py").write_text(CANARY)
    monkeypatch.chdir(tmp_path)
    memory = Path("/dev/shm")  # where a line of the ledger does not wait for the disk
    place = str(memory) if os.access(memory, os.W_OK) else None
    limits = {"messages": 10**6, "seconds": 20.0}
    draw, counted, slowest, typed = random.Random(1126), Counter(), 0.0, []
    with TemporaryDirectory(dir=place) as folder:
        file = write_site(Path(folder) / "north", rounds=None, limits=limits, leaves={"errors": True})
        with closing(Attacker(file)) as site:
            assert site.prepare().verb == REPLY
            sent, before = good(site), files(tmp_path)
            for _ in range(FUZZED):
                began = time.monotonic()
                message = draw.choice(sent)
                if draw.random() < 0.97:
                    message = mutated(message, draw)
                answer = site.raw(message, seconds=HANG)  # fails if it dies or hangs
                slowest = max(slowest, time.monotonic() - began)
                counted[answer.verb] += 1
                if answer.verb == FAILED and ONLY_A_TYPE.match(reason := answer.content["reason"]):
                    typed.append(reason)
            assert typed == []
            assert files(tmp_path) == before
            assert [path.name for path in Path(folder).iterdir()] == ["north"]
            assert counted[FAILED] > FUZZED * 0.7
            assert len(site.ledger()) > FUZZED
            assert site.prepare(run=new_run()).verb == REPLY
            assert site.train().verb == REPLY
    assert slowest < HANG
