"""The memory of replies: a worker that runs ahead of a slower one takes more of it, until the round is over."""

import time

import pytest
import torch
from toys import ToyData, ToyNet

from fedlit.aggregators import Aggregator
from fedlit.core.fabric import make_fabric
from fedlit.federation.assembly import assemble
from fedlit.federation.federation import Federation
from fedlit.schedules import ConstantSchedule


class FirstIsSlow(Aggregator):
    """The client whose reply is due first comes last."""

    def on_client_round_start(self, ctx) -> None:
        if ctx.client.name == ctx.rnd.cohort[0]:
            time.sleep(0.5)


def sums(workers: int) -> tuple[list[torch.Tensor], list[dict[str, int]]]:
    """The sum of the replies of three rounds, and the sizes of the reply files after each of them."""
    federation = Federation([FirstIsSlow()], rounds=3, schedule=ConstantSchedule(2, "steps"), workers=workers)
    torch.manual_seed(0)
    session = assemble(federation, ToyNet(), ToyData(4), make_fabric("cpu"))
    server, found, files = session.restore(None)[0], [], []
    try:
        for index in range(3):
            rnd = session.round(index)
            total, _ = session.engine.run(rnd.cohort, session.broadcast(server, rnd), rnd)
            session.engine.commit()
            server.w += total.vectors["w"]
            found.append(total.vectors["w"])
            if workers > 1:
                folder = session.engine._pool._folder.path
                files.append({path.name: path.stat().st_size for path in sorted(folder.glob("reply-*"))})
    finally:
        session.engine.close()
    return found, files


@pytest.mark.slow
def test_what_a_worker_has_needed_to_run_ahead_is_free_after_the_round():
    alone, _ = sums(1)
    beside, files = sums(2)
    assert all(torch.equal(a, b) for a, b in zip(alone, beside, strict=True))
    assert len(files[0]) > 2  # a worker did run ahead
    for sizes in files:
        assert {name for name, size in sizes.items() if size} <= {"reply-0-0", "reply-1-0"}
