"""Compare 10,000 clients with 100: start, seconds per client and round, memory, evaluation and files.

    python tests/benchmarks/clients10k.py [many|states] [--rounds 200] [--clients 10000]

many     a CNN of 60,000 parameters, one step of 8 of a client's 20 images of 32x32; 10,000 clients of which 1% take
         part in a round, and 100 clients that all take part. The runs alternate after every round. Limits: 1.25 for
         the ratio of processor time per client and round; 5% more memory in the last round than in the tenth, without
         the images, which are a mapped file of which each round reads different pages.
states   CODASCA with densenet121 (7 million parameters, 28 MB of state per client), a tenth of the clients in a round,
         over fifteen rounds, with states in files. Limit: 4 GB of PSS for all processes. With --clients 1000 there are
         28 GB of states, and up to three times as much on the disk of --folder, because checkpoints refer to older
         states.

Times are wall time and, in parentheses, processor time of all processes, which other work on the machine affects less.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from floor import CLASSES, LR, Side, gate, processor_seconds, pss_mib, small_cnn

COHORT, IMAGES, BATCH = 100, 20, 8


def federation(clients: int, folder: Path):
    """Return a data module with random images in one file: 20 for training and 10 for validation per client."""
    import numpy as np
    import pandas as pd

    from fedlit.data.federated import FederatedDataModule
    from fedlit.data.partition import ByOrganisation
    from fedlit.data.pictures.images import ImageStore
    from fedlit.data.records import Records

    class Pictures(FederatedDataModule):
        def __init__(self) -> None:
            super().__init__(
                ByOrganisation(), batch_size=BATCH, image_size=32, in_chans=3, augment=False, cache_dir=str(folder)
            )
            self.classes = CLASSES

        def records(self) -> Records:
            each, rng = IMAGES + IMAGES // 2, np.random.default_rng(0)
            number = clients * each

            def write(out: np.ndarray) -> None:
                for rows in np.array_split(np.arange(number), max(1, number // 10_000)):
                    out[rows] = rng.integers(0, 256, (len(rows), 3, 32, 32), dtype=np.uint8)

            rows = np.arange(number)
            names = np.char.add("image-", rows.astype(str))
            splits = np.where(rows % each < IMAGES, "train", "val")
            store = ImageStore.cached(f"clients-{clients}", (number, 3, 32, 32), write, folder)
            labels = rng.integers(0, 2, (number, len(CLASSES))).astype(np.float32)
            sites = np.char.add("client-", np.char.zfill((rows // each).astype(str), 5))
            return Records(store, names, labels, CLASSES, names, sites, {}, splits, pd.DataFrame({"row": rows}))

    return Pictures()


def fit(model, clients: int, rounds: int, folder: Path, **options) -> None:
    """Train with one step per round, and evaluate after the last."""
    import fedlit
    from fedlit.schedules import ConstantSchedule

    schedule = ConstantSchedule(1, "steps")
    data = federation(clients, folder)
    fedlit.fit(model, data, rounds=rounds, schedule=schedule, eval_every=rounds, workers=2, **options)


def train(clients: int, rounds: int, folder: Path) -> None:
    """Run one side: all clients of a hundred take part, or 1% of ten thousand."""
    participation = min(1.0, COHORT / clients)
    fit(small_cnn(), clients, rounds, folder, participation=participation, callbacks=[gate(evaluation=True)])


def many(clients: int, rounds: int, folder: Path) -> None:
    with TemporaryDirectory(dir=folder) as place:
        for number in (COHORT, clients):
            federation(number, Path(place)).records()  # images are decoded before a run starts
        began = [time.perf_counter()]
        sides = []
        for number in (COHORT, clients):
            sides.append(Side(__file__, ["--train", str(number), "--rounds", str(rounds), "--folder", place], place))
            began.append(processor_seconds(sides[-1].process.pid))
        start = [f"{side.outside:.1f} s ({cpu:.1f})" for side, cpu in zip(sides, began[1:], strict=True)]
        print(f"start until the first round: {start[0]} with {COHORT} clients, {start[1]} with {clients}", flush=True)
        memory = {}
        for turn in range(rounds):
            for side in sides if turn % 2 else reversed(sides):
                side.round()
            if turn in (9, rounds - 2):
                process = sides[1].process.pid
                memory[turn] = pss_mib(process) - pss_mib(process, "Pss_File"), pss_mib(process, "Pss_File")
        for key in ("wall", "processor"):
            few, lots = (statistics.median(getattr(side, key)[3:-1]) for side in sides)
            print(f"per client and round, {key}: {few / COHORT * 1e3:.2f} and {lots / COHORT * 1e3:.2f} ms", end=", ")
            print(f"ratio {lots / few:.2f} (limit 1.25 of processor time)", flush=True)
        evaluation = [side.wall[-1] - statistics.median(side.wall[3:-1]) for side in sides]
        print(f"evaluation of all clients: {evaluation[0]:.1f} and {evaluation[1]:.1f} s")
        shown = ", ".join(f"{own:.0f} and {files:.0f} MiB after {turn + 1}" for turn, (own, files) in memory.items())
        print(f"PSS with {clients} clients, without and of mapped files: {shown}")
        for side in sides:
            before = side.outside
            side.round()
            side.end()
            print(f"end: {side.outside - before:.1f} s")
        for path in sorted(Path(place).glob("runs/*/*/*")):
            if path.is_file():
                print(f"  {path.name}: {path.stat().st_size / 1024:.0f} KiB")


def train_states(clients: int, rounds: int, folder: Path) -> None:
    """Run a tenth of the clients per round, with states in files."""
    from functools import partial

    import torch

    from fedlit.aggregators import CODASCA
    from fedlit.models import ImageClassifier
    from fedlit.objectives import AUCSaddle

    model = ImageClassifier(CLASSES, in_chans=3, objective=AUCSaddle(), optimizer=partial(torch.optim.SGD, lr=LR))
    options = {"participation": 0.1, "measure_batches": 1, "state_memory": "100MB"}
    fit(model, clients, rounds, folder, aggregators=[CODASCA()], callbacks=[gate()], **options)


def states(clients: int, rounds: int, folder: Path) -> None:
    with TemporaryDirectory(dir=folder) as place:
        command = ["--train", str(clients), "--stored", "--rounds", str(rounds), "--folder", place]
        side = Side(__file__, command, place)
        for _ in range(rounds):
            side.round()
        files = list(Path(place).glob("runs/*/*/states/*/*.pt"))
        print(
            f"{clients} clients, {len(files)} of them with "
            f"{sum(f.stat().st_size for f in files) / 1e9:.1f} GB of states in files: "
            f"{statistics.median(side.wall[:-1]):.1f} s per round; largest PSS of all processes {side.pss:.0f} MiB "
            "(limit 4096)"
        )
        side.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", choices=("many", "states"), default="many", nargs="?")
    parser.add_argument("--clients", type=int, help="default: 10,000, or 1,000 for states")
    parser.add_argument("--rounds", type=int, help="default: 200, or 15 for states")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--train", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--stored", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train:
        (train_states if args.stored else train)(args.train, args.rounds, args.folder)
    elif args.work == "many":
        many(args.clients or 10_000, args.rounds or 200, args.folder)
    else:
        states(args.clients or 1_000, args.rounds or 15, args.folder)


if __name__ == "__main__":
    main()
