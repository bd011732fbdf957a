"""Check that the canon's digits are the same on other processors, which QEMU emulates.

    python tests/benchmarks/digits.py [--processors Haswell EPYC-Rome] [--own] [--cases coda-plus]

Runs of the canon on few images, some at rates near divergence, where training amplifies differences of the last digit.
Each runs here and on the other processors, in the environment of ``configs/canon/canon.yaml``, and what differs is
printed. ``--own`` also repeats it here without that environment, with all instructions of this processor.

Needs ``qemu-x86_64`` of QEMU's user mode (``qemu-user`` in Debian), whose arithmetic is exact. An emulated run takes
one to three minutes.
"""

import argparse
import csv
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

CANON = Path(__file__).parents[2] / "configs" / "canon"
SADDLE = {"model.objective": "AUCSaddle"}
ADAM = {"class_path": "torch.optim.Adam", "init_args": {"lr": 0.01, "fused": True}}
CASES = {
    "fedavg": {"model.optimizer.lr": 1.0},
    "scaffold": {"federation.aggregators": ["Scaffold"], "model.optimizer.lr": 1.0},
    "fedadam": {"federation.aggregators": ["FedAdam"], "model.optimizer.lr": 0.3},
    "server-adam": {"federation.aggregators": [{"class_path": "ServerOptimizer", "init_args": {"optimizer": ADAM}}]},
    "coda-plus": SADDLE | {"federation.aggregators": ["CODAPlus"], "model.optimizer.lr": 3.0},
    "scgdam": SADDLE | {"federation.aggregators": ["LocalSCGDAM"], "data.classes": ["Mass"], "model.optimizer.lr": 1.0},
    "whole": {"model.trainable": "all", "federation.rounds": 2, "federation.schedule.window": 1},
}
FEW = {"data.images": 300, "data.split": [0.5, 0.1, 0.4]}
EMULATED = {"NPY_DISABLE_CPU_FEATURES": "X86_V3"}
"""QEMU 7.2 crashes in NumPy's sort with AVX2, and NumPy only sorts and counts here."""


def run(case: str, folder: Path, environment: dict[str, str], processor: str | None = None) -> Path:
    """Run a case with data of its own; return its folder."""
    emulator = ["qemu-x86_64", "-cpu", processor] if processor else []
    file = folder.parent / "planned" / "digits" / "jobs" / f"{case},seed=0.yaml"
    own = {"XDG_CACHE_HOME": str(folder / f"cache-{case}")}
    words = ["-m", "fedlit", "fit", "--config", str(file), "--run_dir", str(folder)]
    done = subprocess.run(
        [*emulator, sys.executable, *words], env=os.environ | environment | own, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{case}, {processor}: exit code {done.returncode}\n{done.stdout}")
    return folder / "digits" / f"{case},seed=0"


def compared(one: Path, other: Path) -> str:
    """Return what differs between two runs, but for times."""
    rows = [
        {(row["step"], row["key"]): row["value"] for row in csv.DictReader((each / "metrics.csv").open())}
        for each in (one, other)
    ]
    keys = [key for key in rows[0] if not key[1].startswith("time/") and not key[1].endswith("/seconds")]
    unequal = [key for key in keys if rows[0][key] != rows[1].get(key)]
    aurocs = [abs(float(rows[0][key]) - float(rows[1][key])) for key in unequal if "auroc" in key[1]]
    written = [(each / "predictions" / "federation.parquet").read_bytes() for each in (one, other)]
    predictions = "the same predictions" if written[0] == written[1] else "other predictions"
    names = sorted({key for _, key in unequal})
    far = f", AUROCs by up to {max(aurocs):.1g}" if aurocs else f": {', '.join(names[:3])}" if names else ""
    return f"{predictions}, {len(unequal)} of {len(keys)} values of metrics differ{far}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processors", nargs="*", default=["Haswell", "EPYC-Rome"], help="names of qemu-x86_64 -cpu")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=[*CASES])
    parser.add_argument("--own", action="store_true", help="also without the canon's environment")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    if args.processors and shutil.which("qemu-x86_64") is None:
        parser.error("expected qemu-x86_64, found none; install qemu-user, or compare only with --own --processors")
    portable = yaml.safe_load((CANON / "canon.yaml").read_text())["environment"]
    with TemporaryDirectory() as place, ThreadPoolExecutor(args.jobs) as pool:
        folder, plan = Path(place), Path(place, "plan.yaml")
        body = CANON / "laptop" / "body.safetensors"
        cases = {name: FEW | CASES[name] for name in args.cases}
        content = {"experiment": "digits", "config": [str(CANON / "phantom.yaml")], "starts": str(body), "cases": cases}
        plan.write_text(yaml.safe_dump(content))
        words = ["-m", "fedlit", "sweep", "--config", str(plan), "--run_dir", str(folder / "planned")]
        subprocess.run([sys.executable, *words, "--print_jobs", "true"], check=True, stdout=subprocess.DEVNULL)
        sides = {processor: (portable | EMULATED, processor) for processor in args.processors}
        sides |= {"its own instructions": ({}, None)} if args.own else {}
        here = {case: pool.submit(run, case, folder / "here", portable) for case in args.cases}
        others = {
            (case, side): pool.submit(run, case, folder / side.replace(" ", "-"), *how)
            for case in args.cases
            for side, how in sides.items()
        }
        for (case, side), other in others.items():
            print(f"{case}, {side}: {compared(here[case].result(), other.result())}", flush=True)


if __name__ == "__main__":
    main()
