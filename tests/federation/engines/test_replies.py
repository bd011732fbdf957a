"""The memory of replies: a worker that runs ahead of a slower one takes more of it, until the round is over."""

import time

import pytest
import torch
from engine_rounds import opened, run, shared_folder
from toys import ToyData, ToyNet

from fedlit.aggregators import Aggregator
from fedlit.federation.federation import Federation
from fedlit.schedules import ConstantSchedule


class FirstIsSlow(Aggregator):
    """The client whose reply is due first comes last."""

    def on_client_round_start(self, ctx) -> None:
        if ctx.client.name == ctx.rnd.cohort[0]:
            time.sleep(0.5)


def sums(workers: int) -> tuple[list[torch.Tensor], list[dict[str, int]]]:
    """The sum of the replies of three rounds, and the sizes of the reply files after each of them."""
    federation, found, files = Federation([FirstIsSlow()], schedule=ConstantSchedule(2, "steps")), [], []
    torch.manual_seed(0)
    with opened(federation, ToyNet(), ToyData(4), workers) as (session, server):
        for index in range(3):
            _, total, _ = run(session, server, index)
            session.engine.commit()
            server.w += total.vectors["w"]
            found.append(total.vectors["w"])
            if folder := shared_folder(session.engine):
                files.append({path.name: path.stat().st_size for path in sorted(folder.glob("reply-*"))})
    return found, files


@pytest.mark.slow
def test_what_a_worker_has_needed_to_run_ahead_is_free_after_the_round():
    alone, _ = sums(1)
    beside, files = sums(2)
    assert all(torch.equal(a, b) for a, b in zip(alone, beside, strict=True))
    assert len(files[0]) > 2  # a worker did run ahead
    for sizes in files:
        assert {name for name, size in sizes.items() if size} <= {"reply-0-0", "reply-1-0"}
