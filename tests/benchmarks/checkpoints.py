"""Measure how much time is saved by writing a checkpoint while the next round trains.

    python tests/benchmarks/checkpoints.py [--turns 9]

Two runs of `fedlit.fit` alternate after every round: 4 clients, DenseNet121, 8 steps of 16 images of 32x32, two
workers, a checkpoint after every round. One run writes it before the next round starts, the other during that round, as
fedlit does. The algorithms are federated averaging and SCAFFOLD, whose clients keep 28 MB each. Results are medians
over turns.
"""

import argparse
import statistics
from tempfile import TemporaryDirectory

from floor import Side, Work, alternate, with_fedlit

WORK = Work("densenet", 4, 8, 16, 1.0, "4 clients, DenseNet121, 8 steps of 16")
ALGORITHMS = ("FedAvg", "Scaffold")


def run(name: str, when: str, rounds: int) -> None:
    from fedlit import aggregators
    from fedlit.federation.session import Session

    if when == "before":
        save = Session.save
        Session.save = lambda self, *state, later=False: save(self, *state)
    with_fedlit(WORK, rounds, aggregators=[getattr(aggregators, name)()], checkpoint_every=1)


def compared(name: str, turns: int) -> None:
    with TemporaryDirectory() as one, TemporaryDirectory() as other:
        sides = [
            Side(__file__, ["--side", name, when, "--turns", str(turns + 1)], folder)
            for when, folder in (("before", one), ("meanwhile", other))
        ]
        alternate(sides, turns)
    before, meanwhile = (side.wall[1:] for side in sides)
    ratio = statistics.median(b / a for a, b in zip(before, meanwhile, strict=True))
    print(
        f"{name}: a round takes {statistics.median(before):.2f} s if the checkpoint is written before the next round, "
        f"{statistics.median(meanwhile):.2f} s if it is written meanwhile: ratio {ratio:.2f}; {turns} turns",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--side", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        run(*args.side, args.turns)
        return
    for name in ALGORITHMS:
        compared(name, args.turns)


if __name__ == "__main__":
    main()
