"""Measure what a short run of a sweep costs besides its steps, and a step of a linear head on vectors.

    python tests/benchmarks/short_runs.py [--against TREE] [--turns 5] [--logger false]

Each side is a process that has imported what the fork server of a sweep imports; like it, the process starts each run
as a fork of itself. With ``--against``, the other side has the fedlit of another source tree, and the sides alternate
(A B A B ...). Five clients train logistic regression on 128 numbers, batch 32, plain SGD, with FedAvg and with CODASCA
on the AUC objective, for 4 rounds. A long run has 128 steps per client and round, a short one a single step; the
difference gives the time of a step. All figures are processor time of the run's process, from its start to its end.
"""

import argparse
import os
import subprocess
import sys
from collections import defaultdict
from importlib import import_module
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch
from torch.utils.data import TensorDataset

from fedlit.core.messages import ClientData
from fedlit.data.federated import FederatedDataModule

HERE = Path(__file__).parent
CLIENTS, ROUNDS, SHORT, LONG = 5, 4, 1, 128
METHODS = {"FedAvg": [], "CODASCA": ["--model.objective", "AUCSaddle"]}
OPTIONS = (
    "--data short_runs.Vectors --model LogisticRegression --model.features 128 --model.optimizer torch.optim.SGD "
    f"--model.optimizer.lr 0.1 --federation.rounds {ROUNDS} --federation.workers 1 --federation.schedule.unit steps"
)


class Vectors(FederatedDataModule):
    """Five clients with 350 training vectors each, whose five classes depend on them linearly."""

    classes = tuple("abcde")

    def __init__(self) -> None:
        super().__init__(None, batch_size=32, eval_batch_size=2048)

    def setup(self, stage: str | None = None) -> None:
        g = torch.Generator().manual_seed(0)
        direction = torch.randn(128, 5, generator=g) / 11
        for name in map(str, range(CLIENTS)):
            rows = torch.randn(1000, 128, generator=g)
            labels = (rows @ direction + torch.randn(1000, 5, generator=g) / 2 > 1).float()
            parts = [TensorDataset(rows[a:b], labels[a:b]) for a, b in ((0, 350), (350, 450), (450, 1000))]
            self.clients[name] = ClientData(name, self.classes, *parts)


def side() -> None:
    """Run the command lines that come in, each in a fork, and print their processor seconds."""
    from fedlit.experiment import jobs
    from fedlit.tracking.mlflow import MLflowTracker

    for name in (*jobs.PRELOADED, *getattr(MLflowTracker, "imports", ())):
        import_module(name)
    from fedlit.cli.main import run

    print("ready", flush=True)
    for line in sys.stdin:
        child = os.fork()
        if not child:
            log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(log, 1)
            os.dup2(log, 2)
            sys.argv[1:] = line.split()
            run()
        _, status, used = os.wait4(child, 0)
        if status:
            raise RuntimeError(Path("log").read_text())
        print(used.ru_utime + used.ru_stime, flush=True)


def started(tree: Path, folder: Path) -> subprocess.Popen:
    """Start a side with the fedlit of a source tree."""
    folder.mkdir()
    path = os.pathsep.join([str(tree.resolve()), str(HERE), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, __file__, "--side"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder,
        env=environment,
    )  # fmt: skip
    process.stdout.readline()
    return process


def seconds(process: subprocess.Popen, words: list[str]) -> float:
    process.stdin.write(f"fit {OPTIONS} {' '.join(words)}\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="source tree of another fedlit")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--logger", default="true", help="false for runs without MLflow")
    parser.add_argument("--side", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        side()
        return
    trees = {"here": HERE.parents[1]} | ({"there": args.against} if args.against else {})
    spent: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    with TemporaryDirectory() as folder:
        sides = {name: started(tree, Path(folder, name)) for name, tree in trees.items()}
        for turn in range(args.turns + 1):  # the first makes the database
            for method, more in METHODS.items():
                for window in (SHORT, LONG):
                    for name in sides:
                        words = [
                            *more,
                            "--federation.aggregators",
                            f"[{method}]",
                            "--federation.schedule.window",
                            str(window),
                        ]
                        used = seconds(sides[name], [*words, "--logger", args.logger])
                        spent[name, method, window] += [used] * bool(turn)
        for process in sides.values():
            process.stdin.close()
            process.wait()
    for name in trees:
        for method in METHODS:
            short, long = (spent[name, method, window] for window in (SHORT, LONG))
            steps = CLIENTS * ROUNDS * (LONG - SHORT)
            step = median((b - a) / steps for a, b in zip(short, long, strict=True))
            run = median(short) - step * CLIENTS * ROUNDS * SHORT
            print(f"{name}, {method}: {run:.2f} s a run ({60 / run:.0f} runs a minute), {1e3 * step:.2f} ms a step")


if __name__ == "__main__":
    main()
