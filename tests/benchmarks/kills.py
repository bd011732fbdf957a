"""Check that runs that were killed and resumed equal uninterrupted runs bit for bit.

    python tests/benchmarks/kills.py [--kills 200] [--settings pool ranks phases]

Kills are spread over training, without the start. SIGKILL goes to all processes of a run, to its main process only, or
to one worker (or rank) only, in runs with two workers, with two ranks, and with two phases before the main part. Each
run is resumed to its end. Weights, statistics, server and client states, phases and metrics.csv must equal those of an
uninterrupted run. 200 kills take about half an hour on two cores.
"""

import argparse
import sys
import time
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from kills import SETTINGS, Killing, Outcome


def main() -> None:
    """Kill, resume and compare runs, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, help="number of kills, over all settings")
    parser.add_argument("--settings", nargs="+", default=[*SETTINGS], choices=[*SETTINGS], help="settings to kill")
    args = parser.parse_args()
    torch.set_num_threads(1)
    cases = [(name, target) for name in args.settings for target in SETTINGS[name].targets]
    began, outcomes = time.monotonic(), {case: [] for case in cases}
    with TemporaryDirectory(prefix="kills-") as folder:
        killings = {name: Killing(SETTINGS[name], Path(folder, name)) for name in args.settings}
        for number, (turn, case) in enumerate(product(range(-(-args.kills // len(cases))), cases)):
            if number < args.kills:
                outcomes[case].append(kill(killings[case[0]], case[1], turn))
                progress = f"{number + 1} of {args.kills}, {time.monotonic() - began:.0f} s"
                print(progress, end="\r", file=sys.stderr, flush=True)
    print(f"{'setting':8} {'killed':8} {'kills':>5} {'killed at rounds':>16} {'differ':>6} {'leave files':>15}")
    for (name, target), each in outcomes.items():
        rounds = f"{min(o.rounds for o in each)} to {max(o.rounds for o in each)}" if each else "-"
        differ, left = sum(bool(o.differs) for o in each), sum(bool(o.left) for o in each)
        print(f"{name:8} {target:8} {len(each):5} {rounds:>16} {differ:6} {left:15}")
        for outcome in each:
            for words in (outcome.differs, outcome.left):
                print(*(f"    {word}" for word in words), sep="\n", end="\n" if words else "")
    every = [outcome for each in outcomes.values() for outcome in each]
    bad = sum(bool(outcome.differs or outcome.left) for outcome in every)
    print(f"{len(every)} kills, {bad} with a difference or remaining files, {time.monotonic() - began:.0f} s")
    sys.exit(bool(bad))


def kill(killing: Killing, target: str, turn: int) -> Outcome:
    """Kill at the moment of a turn by van der Corput's sequence, which is even for any number of turns."""
    moment = sum(((turn + 1) >> bit & 1) / 2 ** (bit + 1) for bit in range(16))
    while (outcome := killing.kill(target, moment)) is None:
        moment *= 0.9
    return outcome


if __name__ == "__main__":
    main()
