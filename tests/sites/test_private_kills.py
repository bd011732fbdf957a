"""A site that is killed in its private rounds: the epsilon in its ledger is never below that of what has left."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch
from at_sites import remembering
from attacker import AttackerHere, write_site
from test_private_sites import RULE, SHORT, a_private_plan, after, noise, spent, weights

from fedlit.aggregators import DPSGD
from fedlit.sites import own_data
from fedlit.sites.messages import REPLY
from fedlit.sites.process import SiteCrashed

STOPS = ((os, "replace"), (os, "fsync"), (os, "write"), (os, "unlink"), (DPSGD, "compute_gradient"))
"""What a process is killed before: writes, and steps."""


@contextmanager
def killed_before(patch: pytest.MonkeyPatch, number: int) -> Iterator[list[str]]:
    """Kill the site before its stop of a number; yields the names of the stops that it has passed."""
    passed: list[str] = []

    def counted(function: Callable, name: str) -> Callable:
        def stop(*args, **options):
            if len(passed) + 1 == number:
                raise SiteCrashed
            passed.append(name)
            return function(*args, **options)

        return stop

    with patch.context() as patched:
        for owner, name in STOPS:
            patched.setattr(owner, name, counted(getattr(owner, name), name))
        with suppress(SiteCrashed):
            yield passed


def played(file: Path, patch: pytest.MonkeyPatch, numbers: Sequence[int]) -> list[int]:
    """Ask a question for each number, in which the site is killed; return the questions in which it took a step."""
    remembering(patch, own_data, "settings_of")  # each new process reads the same file
    server, stepped = AttackerHere(file), []
    assert server.prepare(**a_private_plan()).verb == REPLY
    for question, number in enumerate(numbers):
        w, answers = server.model.w + 1e-3 * question, []
        with killed_before(patch, number) as passed:
            answers.append(weights(server.train(w=w, **noise())))
        if answers or "compute_gradient" in passed:
            stepped.append(question)
        server.again()  # a new process
        assert server.prepare(**a_private_plan()).verb == REPLY
        assert spent(server) >= after(len(stepped))
        if question % 3 == 0:  # asked again
            before, was_charged = spent(server), question in stepped
            answers.append(weights(server.train(w=w, **noise())))
            assert all(torch.equal(answers[0], each) for each in answers)
            assert not was_charged or spent(server) == before
            stepped += [] if was_charged else [question]
        assert spent(server) >= after(len(stepped))
    return stepped


def test_killed_in_a_round(tmp_path, monkeypatch):
    assert played(
        write_site(tmp_path / "north", privacy=RULE | {"epsilon": 1e6}, floors=SHORT), monkeypatch, [3, 5, 6, 11]
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_before_every_write_and_step(tmp_path, monkeypatch):
    assert played(
        write_site(tmp_path / "north", privacy=RULE | {"epsilon": 1e6}, floors=SHORT), monkeypatch, [*range(1, 18)] * 2
    )
