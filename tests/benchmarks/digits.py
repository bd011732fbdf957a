"""Compare the digits of the canon between this machine's instructions and PyTorch's plain ones.

    python tests/benchmarks/digits.py windows imbalance missing methods [--seeds 0] [--jobs 2] [--folder FOLDER]

Each part of the canon runs twice, the second time with the instructions that every x86-64 processor has, which round
sums in another order. The first weights are the same: PyTorch draws them with fused multiply-add on every processor of
the last ten years, and the plain side computes what that gives. Prints how far the AUROCs of both sides differ.
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
SHOWN = 5e-5
"""Difference from which four decimals may differ."""


def fused(tensor: torch.Tensor, low: float = 0.0, high: float = 1.0, *, generator=None, draw=torch.Tensor.uniform_):
    """Draw uniform numbers as ``Tensor.uniform_`` does with fused multiply-add."""
    draw(tensor, generator=generator)
    low, high = (torch.tensor(end, dtype=tensor.dtype) for end in (low, high))
    return tensor.detach().copy_(tensor.double() * (high - low).double() + low.double())


if os.environ.get("ATEN_CPU_CAPABILITY") == "default":  # the processes of the runs import this file, too
    torch.Tensor.uniform_ = fused


def swept(part: str, seeds: list[int], jobs: int, folder: Path, more: dict[str, str]) -> dict[str, dict[str, float]]:
    """Run a part of the canon, and return the AUROCs of each run."""
    place = {"XDG_CACHE_HOME": str(folder / "cache"), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    plan = folder / f"{part}.yaml"
    plan.parent.mkdir(parents=True, exist_ok=True)
    plan.write_text(yaml.safe_dump({"base": os.path.relpath(CANON / f"{part}.yaml", folder), "seeds": seeds}))
    verb = "tune" if "ranges" in (CANON / f"{part}.yaml").read_text() else "sweep"
    words = ["--config", str(plan), "--run_dir", str(folder / "runs"), "--jobs", str(jobs)]
    command = [sys.executable, __file__, "--fedlit", verb, *words]
    subprocess.run(command, env=os.environ | more | place, check=True, stdout=subprocess.DEVNULL)
    found = {}
    for file in folder.glob(f"runs/canon-{part}/*/metrics.csv"):
        rows = csv.DictReader(file.open())
        found[file.parent.name] = {
            f"{row['step']} {row['key']}": float(row["value"]) for row in rows if "auroc" in row["key"]
        }
    return found


def compare(part: str, args: argparse.Namespace, folder: Path) -> None:
    """Print how far both sides of a part differ."""
    sides = [swept(part, args.seeds, args.jobs, folder / name, more) for name, more in (("own", {}), ("plain", PLAIN))]
    one, other = sides
    worst = {
        run: max(abs(one[run][key] - other[run][key]) for key in one[run] if one[run][key] == one[run][key])
        for run in one
    }
    print(f"{part}: {len(worst)} runs, {sum(map(len, one.values()))} AUROCs")
    for run, far in sorted(worst.items(), key=lambda pair: -pair[1])[:5]:
        print(f"  {run}: {far:.1e} at most")
    print(f"  {sum(far < SHOWN for far in worst.values())} runs have no difference of {SHOWN:g}", flush=True)


def main() -> None:
    if sys.argv[1:2] == ["--fedlit"]:
        from fedlit.cli.main import run

        sys.argv[1:] = sys.argv[2:]
        return run()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=sorted(file.stem for file in CANON.glob("*.yaml")))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where to keep the runs; what is there is not repeated")
    args = parser.parse_args()
    with TemporaryDirectory() as folder:
        for part in args.parts:
            compare(part, args, (args.folder or Path(folder)).resolve())


if __name__ == "__main__":
    main()
