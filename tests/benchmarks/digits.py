"""Compare the digits of the canon between this machine's instructions and PyTorch's plain ones.

    python tests/benchmarks/digits.py windows imbalance missing methods [--seeds 0] [--precision 64-true]

Each part of the canon runs twice, the second time with the instructions that every x86-64 processor has, which round
sums in another order. The first weights are the same: with AVX2 PyTorch draws them with fused multiply-add, and the
plain side computes what that gives. Prints which runs differ, and how far those that each side would choose by its
validation data. ``--precision 32-true`` compares in float32 instead.
"""

import argparse
import csv
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import yaml

CANON = Path(__file__).parents[2] / "configs" / "canon" / "laptop"
PLAIN = {
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3",
}
VALIDATION, TEST = "val/auroc_macro", "test/federation/auroc_macro"
SHOWN = 5e-5
"""Difference from which four decimals may differ."""

Aurocs = dict[tuple[int, str], float]
"""AUROCs of a run by step and key."""


def fused(tensor: torch.Tensor, low: float = 0.0, high: float = 1.0, *, generator=None, draw=torch.Tensor.uniform_):
    """Draw uniform numbers as ``Tensor.uniform_`` does with fused multiply-add."""
    draw(tensor, generator=generator)
    low, high = (torch.tensor(end, dtype=tensor.dtype) for end in (low, high))
    return tensor.detach().copy_(tensor.double() * (high - low).double() + low.double())


if os.environ.get("ATEN_CPU_CAPABILITY") == "default":  # the processes of the runs import this file, too
    torch.Tensor.uniform_ = fused


def swept(part: str, args: argparse.Namespace, folder: Path, more: dict[str, str]) -> dict[str, Aurocs]:
    """Run a part of the canon, and return the AUROCs of each run."""
    place = {"XDG_CACHE_HOME": str(folder / "cache"), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    setting = {"set": {"fabric.precision": args.precision}} if args.precision else {}
    plan = folder / f"{part}.yaml"
    plan.parent.mkdir(parents=True, exist_ok=True)
    plan.write_text(
        yaml.safe_dump({"base": os.path.relpath(CANON / f"{part}.yaml", folder), "seeds": args.seeds} | setting)
    )
    verb = "tune" if "ranges" in (CANON / f"{part}.yaml").read_text() else "sweep"
    words = ["--config", str(plan), "--run_dir", str(folder / "runs"), "--jobs", str(args.jobs)]
    command = [sys.executable, __file__, "--fedlit", verb, *words]
    subprocess.run(command, env=os.environ | more | place, check=True, stdout=subprocess.DEVNULL)
    found = {}
    for file in folder.glob(f"runs/canon-{part}/*/metrics.csv"):
        rows = csv.DictReader(file.open())
        found[file.parent.name] = {
            (int(row["step"]), row["key"]): float(row["value"]) for row in rows if "auroc" in row["key"]
        }
    return found


def compare(part: str, args: argparse.Namespace, folder: Path) -> None:
    """Print how far both sides of a part differ."""
    one, other = (swept(part, args, folder / name, more) for name, more in (("own", {}), ("plain", PLAIN)))
    far = {
        run: [abs(one[run][key] - other[run][key]) for key in one[run] if one[run][key] == one[run][key]] for run in one
    }
    every = [each for of_run in far.values() for each in of_run]
    above = sum(each > SHOWN for each in every)
    print(
        f"{part}: {len(far)} runs, {len(every)} AUROCs; {100 * above / len(every):.0f}% differ by more than {SHOWN:g}"
    )
    for run, of_run in sorted(far.items(), key=lambda pair: -max(pair[1])):
        if max(of_run) > 0:
            print(f"  {run}: {max(of_run):.1e} at most")
    cases = {run.partition(",")[0] + run[run.index(",seed=") :] for run in one}
    for case in sorted(cases):
        tested = [last(side[chosen(side, case)], TEST) for side in (one, other)]
        if (apart := abs(tested[0] - tested[1])) > 0:
            print(f"  chosen, {case}: {apart:.1e} of pooled test AUROC")
    print(end="", flush=True)


def chosen(side: dict[str, Aurocs], case: str) -> str:
    """The run of a case and seed, such as ``fedavg,seed=0``, with the highest validation AUROC after its last round."""
    name, _, seed = case.rpartition(",")
    runs = [run for run in side if run.partition(",")[0] == name and run.endswith(f",{seed}")]
    return max(runs, key=lambda run: last(side[run], VALIDATION))


def last(values: Aurocs, wanted: str) -> float:
    """The value of a metric after the last round."""
    return max((step, value) for (step, key), value in values.items() if key == wanted)[1]


def main() -> None:
    if sys.argv[1:2] == ["--fedlit"]:
        from fedlit.cli.main import run

        sys.argv[1:] = sys.argv[2:]
        return run()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=sorted(file.stem for file in CANON.glob("*.yaml")))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--precision", choices=["32-true", "64-true"], help="by default that of the part")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where to keep the runs; what is there is not repeated")
    args = parser.parse_args()
    with TemporaryDirectory() as folder:
        for part in args.parts:
            compare(part, args, (args.folder or Path(folder)).resolve())


if __name__ == "__main__":
    main()
