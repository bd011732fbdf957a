"""Measure the overhead of fedlit over bare PyTorch loops.

    python tests/benchmarks/overhead.py [densenet] [cnn] [step] [compositional] [canon] [private] [memory] [clients]

densenet, cnn   ratio of a round's time to that of the faster of two bare PyTorch loops with the same local steps and
                one average: one client at a time on all cores, and parallel clients with one thread each. The three
                sides alternate (A B C A B C ...); the ratio is the median over turns. Limits: 1.05 and 1.15.
step            time that SCAFFOLD + FedProx + FedBN, and CODASCA on the AUC objective, add to a client's step of
                densenet121 with FedAvg and cross-entropy, batch 16, 32x32. Limit: 5%.
compositional   ratio of a step of LocalSCGDAM, exact and first order, to two plain steps of the same densenet121.
canon           ratio of a step with each classic method to one with FedAvg. Limit: 1.05, except for MOON (two more
                forward passes) and Ditto (another forward and backward pass).
private         ratio of a round of six steps with DPSGD to a plain one, densenet121 with GroupNorm, 20 images of
                64x64, in processor time, limit 3.2; what it adds to the peak memory of a process, limit 250 MiB; and
                the time that CODASCA adds to CODA+ with DPSGD, limit 5%.
memory          memory of all processes over 50 rounds. Limit: 5% growth.
clients         seconds per client and round with 8, 64 and 512 clients. Limit: within 1.25x of each other.

Start and evaluation are excluded. Run it on an otherwise idle machine: if another process needs a core, the loop with
one client at a time stalls for minutes, because its OpenMP threads wait for each other at every operation
(SEQUENTIAL_THREADS=1 in the environment sets one thread).
"""

import argparse
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from tempfile import mkdtemp

import torch
from bare_loops import (
    CLASSES,
    BareSequential,
    BareSideBySide,
    Work,
    densenet,
    densenet_auc,
    densenet_binary,
    densenet_group,
    densenet_group_auc,
)
from floor import small_cnn, timed
from lightning.pytorch import LightningModule

from fedlit.aggregators import (
    CODASCA,
    DPSGD,
    MOON,
    Aggregator,
    CODAPlus,
    Ditto,
    FedAdam,
    FedAvg,
    FedBN,
    FedDyn,
    FedNova,
    FedPer,
    FedProx,
    FedRep,
    LocalSCGDAM,
    Scaffold,
)
from fedlit.core.fabric import make_fabric
from fedlit.data.in_memory import GivenClients
from fedlit.federation.assembly import assemble
from fedlit.federation.evaluation import per_client, training_metrics
from fedlit.federation.federation import Federation
from fedlit.schedules import ConstantSchedule
from fedlit.tracking.base import Tracker
from fedlit.tracking.run import Run


class Fedlit:
    """Rounds as ``Federation.fit`` runs them, including metrics.csv."""

    def __init__(
        self, work: Work, data: GivenClients, aggregators: list[Aggregator] | None = None, workers: int | str = "auto"
    ) -> None:
        self.federation = Federation(
            aggregators or [FedAvg()], schedule=ConstantSchedule(work.steps, "steps"), workers=workers
        )
        self.session = assemble(self.federation, work.make(), data, make_fabric("cpu"))
        self.server, self.index, _ = self.session.restore(None)
        self.session.initialise_objective(self.server)
        self.log = Run(Path(mkdtemp()), Tracker())

    def round(self) -> None:
        federation, session = self.federation, self.session
        rnd = session.round(self.index)
        total, reports = session.engine.run(rnd.cohort, federation.open_round(self.server, rnd, session), rnd)
        federation.close_round(self.server, total, rnd, session)
        self.index += 1
        metrics = training_metrics(reports, session.weights) | per_client(session, self.log, [], reports, self.index)
        self.log.log(metrics, self.index)

    def close(self) -> None:
        self.session.engine.close()


def memory_mib(key: str, processes: list[int]) -> float:
    """Return the memory of some processes: ``VmHWM`` is the peak, ``VmRSS`` the current value."""
    total = 0
    for process in processes:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
        total += next(int(line.split()[1]) for line in lines if line.startswith(key))
    return total / 1024


def children() -> list[int]:
    return [p.pid for p in multiprocessing.active_children()]


def against_the_floor(name: str, work: Work, turns: int, limit: float) -> None:
    data, sides, workers = work.data(), {}, {}
    for side, make in (("one at a time", BareSequential), ("side by side", BareSideBySide), ("fedlit", Fedlit)):
        before = children()
        sides[side] = make(work, data)
        workers[side] = [process for process in children() if process not in before]
    times = timed({side: runner.round for side, runner in sides.items()}, turns)
    medians = {side: statistics.median(t) for side, t in times.items()}
    floor = min(("one at a time", "side by side"), key=medians.get)
    ratio = statistics.median(mine / bare for mine, bare in zip(times["fedlit"], times[floor], strict=True))
    peaks = {side: memory_mib("VmHWM", workers[side]) for side in ("side by side", "fedlit")}
    ours = memory_mib("VmHWM", [os.getpid()])
    for runner in sides.values():
        runner.close()
    shown = ", ".join(f"{side} {t:.3f} s" for side, t in medians.items())
    print(
        f"{name}: {shown}; ratio to '{floor}' {ratio:.3f} (limit {limit}), {turns} turns; "
        f"peak memory of the workers {peaks['fedlit']:.0f} MiB (bare: {peaks['side by side']:.0f}), "
        f"of the main process of all three {ours:.0f} MiB"
    )


Lists = dict[str, tuple[Callable[[], LightningModule], list[Aggregator]]]


def step_seconds(
    lists: Lists, turns: int, classes: tuple[str, ...] = CLASSES, batch: int = 16
) -> tuple[dict[str, float], ...]:
    """Return seconds per step and per communication, and the size of the algorithm's state in vectors [P].

    The difference of rounds of 8 and of 2 steps is 6 steps, without the fixed cost of a round.
    """
    runners = {}
    for steps in (2, 8):
        for name, (model, aggregators) in lists.items():
            work = Work(model, 1, steps, batch, classes)
            runners[name, steps] = Fedlit(work, work.data(), aggregators, workers=1)
    spent = timed({key: runner.round for key, runner in runners.items()}, turns)
    usual = {key: statistics.median(values) for key, values in spent.items()}
    step = {name: (usual[name, 8] - usual[name, 2]) / 6 for name in lists}
    alone = {name: usual[name, 2] - 2 * step[name] for name in lists}
    kept = {
        name: sum(t.numel() for state in runners[name, 2].server.aggregators for t in state.values())
        / runners[name, 2].session.layout.size
        for name in lists
    }
    return step, alone, kept


def step_cost(turns: int) -> None:
    lists: Lists = {
        "plain": (densenet, [FedAvg()]),
        "full": (densenet, [Scaffold(), FedProx(0.01), FedBN()]),
        "codasca": (densenet_auc, [CODASCA()]),
    }
    step, alone, _ = step_seconds(lists, turns)
    for name, said in (("full", "SCAFFOLD, FedProx, FedBN"), ("codasca", "CODASCA on the AUC objective")):
        print(
            f"step: {step['plain'] * 1e3:.1f} ms with FedAvg, {step[name] * 1e3:.1f} ms with {said}: "
            f"{step[name] / step['plain'] - 1:+.1%} (limit 5%); a communication {alone['plain'] * 1e3:.0f} and "
            f"{alone[name] * 1e3:.0f} ms; {turns} turns"
        )


def compositional_cost(turns: int) -> None:
    lists: Lists = {
        "plain": (densenet_binary, [FedAvg()]),
        "exact": (densenet_binary, [LocalSCGDAM()]),
        "first order": (densenet_binary, [LocalSCGDAM(first_order=True)]),
    }
    step, _, kept = step_seconds(lists, turns, CLASSES[:1])
    for name in ("exact", "first order"):
        print(
            f"compositional: a step of LocalSCGDAM, {name}, {step[name] * 1e3:.1f} ms, two plain ones "
            f"{2e3 * step['plain']:.1f} ms: ratio {step[name] / 2 / step['plain']:.2f}; it keeps "
            f"{kept[name]:.2f} vectors of the model's size (h; u and v are one); {turns} turns"
        )


def canon_cost(turns: int) -> None:
    methods = [FedAvg(), FedAdam(), FedNova(), FedDyn(), FedPer(), FedRep(1), MOON(), Ditto()]
    lists: Lists = {type(method).__name__: (densenet, [method]) for method in methods}
    step, _, _ = step_seconds(lists, turns)
    for name, each in step.items():
        print(f"canon: {each * 1e3:.1f} ms with {name}: {each / step['FedAvg']:.2f} of FedAvg's; {turns} turns")


def private_cost(turns: int) -> None:
    # A batch has as many images as the client: each is drawn with probability 1, so all steps have the same work.
    private = DPSGD(clip=1.0, noise=1.0, delta=0.01)
    lists: Lists = {
        "plain": (densenet_group, [FedAvg()]),
        "private": (densenet_group, [FedAvg(), private]),
        "auc": (densenet_group_auc, [CODAPlus(), private]),
        "codasca": (densenet_group_auc, [CODASCA(), private]),
    }
    peaks = {name: in_a_process_of_its_own(private_peak, *lists[name]) for name in ("plain", "private")}
    # Whole rounds: a difference of rounds of 8 and of 2 steps has the noise of both, which hides a few percent.
    runners = {name: private_side(*of) for name, of in lists.items()}
    spent = timed({name: runner.round for name, runner in runners.items()}, turns, time.process_time)

    def ratio(name: str, to: str) -> float:
        return statistics.median(mine / theirs for mine, theirs in zip(spent[name], spent[to], strict=True))

    print(
        f"private: {statistics.median(spent['plain']) * 1e3 / 6:.0f} ms a plain step, with DPSGD "
        f"{statistics.median(spent['private']) * 1e3 / 6:.0f} ms: ratio {ratio('private', 'plain'):.2f} (limit 3.2), "
        f"peak memory {peaks['private'] - peaks['plain']:+.0f} MiB (limit 250); CODASCA adds "
        f"{ratio('codasca', 'auc') - 1:+.1%} to DPSGD with CODA+ (limit 5%); {turns} turns"
    )


def private_side(model: Callable[[], LightningModule], aggregators: list[Aggregator]) -> Fedlit:
    """Return rounds of six steps of one client."""
    work = Work(model, 1, 6, 20, CLASSES, side=64, images=20)
    return Fedlit(work, work.data(), aggregators, workers=1)


def private_peak(model: Callable[[], LightningModule], aggregators: list[Aggregator]) -> float:
    """Return the peak memory of this process after two rounds, in MiB."""
    torch.set_num_threads(1)
    runner = private_side(model, aggregators)
    runner.round()
    runner.round()
    return memory_mib("VmHWM", [os.getpid()])


def in_a_process_of_its_own(call: Callable[..., float], *args: object) -> float:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(call, *args).result()


def memory(rounds: int = 50) -> None:
    work = Work(small_cnn, 32, 8, 32)
    runner, at = Fedlit(work, work.data(), [Scaffold(), FedBN()]), {}
    for index in range(1, rounds + 1):
        runner.round()
        if index in (10, rounds):
            at[index] = memory_mib("VmRSS", [os.getpid(), *children()])
    runner.close()
    print(
        f"memory: {at[10]:.0f} MiB after 10 rounds, {at[rounds]:.0f} MiB after {rounds} "
        f"({at[rounds] / at[10] - 1:+.1%}, limit 5%)"
    )


def clients_cost(turns: int) -> None:
    runners = {}
    for number in (8, 64, 512):
        work = Work(small_cnn, number, 8, 32)
        runners[number] = Fedlit(work, work.data())
    repeats = {number: max(1, 64 // number) for number in runners}
    several = {n: lambda n=n: [runners[n].round() for _ in range(repeats[n])] for n in runners}
    medians = {n: statistics.median(times) / repeats[n] / n for n, times in timed(several, turns).items()}
    for runner in runners.values():
        runner.close()
    shown = ", ".join(f"{number}: {t * 1e3:.2f} ms" for number, t in medians.items())
    print(
        f"clients: per client and round {shown}; ratio of largest to smallest "
        f"{max(medians.values()) / min(medians.values()):.2f} (limit 1.25)"
    )


MEASUREMENTS = {
    "densenet": lambda turns: against_the_floor(
        "densenet121, 4 clients, 4 steps of 16, 32x32", Work(densenet, 4, 4, 16), turns, 1.05
    ),
    "cnn": lambda turns: against_the_floor(
        "CNN of 60k, 32 clients, 8 steps of 32", Work(small_cnn, 32, 8, 32), max(turns, 15), 1.15
    ),
    "step": lambda turns: step_cost(max(turns, 15)),
    "compositional": lambda turns: compositional_cost(max(turns, 5)),
    "canon": lambda turns: canon_cost(max(turns, 5)),
    "private": lambda turns: private_cost(turns),
    "memory": lambda turns: memory(),
    "clients": lambda turns: clients_cost(min(turns, 5)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measurements", nargs="*", default=[], help="names of measurements (default: all)")
    parser.add_argument("--turns", type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name in args.measurements or MEASUREMENTS:
        MEASUREMENTS[name](args.turns)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
