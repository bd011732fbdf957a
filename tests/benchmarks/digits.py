"""Check that the canon's digits are the same on other processors, which QEMU emulates.

    python tests/benchmarks/digits.py [methods norms compositional] [--processors Haswell EPYC-Rome] [--own]

Each case of a part of the canon runs on few images, with its highest rate, near which training amplifies differences
of the last digit: here and on other processors, in the environment of ``configs/canon/canon.yaml``. Prints what
differs. ``--own`` also repeats them here without that environment, with all instructions of this processor.

Needs ``qemu-x86_64`` of QEMU's user mode (``qemu-user`` in Debian), whose arithmetic is exact. All methods take five
minutes on one emulated processor.
"""

import argparse
import csv
import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

CANON = Path(__file__).parents[2] / "configs" / "canon"
FEW = {"data.images": 300, "data.split": [0.5, 0.1, 0.4], "federation.rounds": 4}
SETTINGS = {
    "methods": FEW,
    "norms": FEW | {"federation.rounds": 2, "federation.schedule.window": 1},
    "compositional": {"data.images": 2000, "federation.rounds": 4},
}
EMULATED = {"NPY_DISABLE_CPU_FEATURES": "X86_V3"}
"""QEMU 7.2 crashes in NumPy's sort with AVX2, and NumPy only sorts and counts here."""


def train(files: list[str], folder: str) -> None:
    """Train runs in this process, because the imports take an emulated processor a minute."""
    from fedlit.cli.main import main as fedlit

    for file in files:
        try:
            fedlit(["fit", "--config", file, "--run_dir", folder])
        except SystemExit as end:
            print(f"{file}: exit code {end.code}", flush=True)


def planned(part: str, folder: Path) -> list[str]:
    """Write the configuration of each case with its highest rate; return the files."""
    plan = folder / f"{part}.yaml"
    content = {"base": str(CANON / "laptop" / f"{part}.yaml"), "seeds": [0], "set": SETTINGS[part]}
    plan.write_text(yaml.safe_dump(content))
    words = ["tune", "--config", str(plan), "--run_dir", str(folder / "planned"), "--print_jobs", "true"]
    subprocess.run([sys.executable, "-m", "fedlit", *words], check=True, stdout=subprocess.DEVNULL)
    highest: dict[str, tuple[float, str]] = {}
    for file in sorted(folder.glob(f"planned/canon-{part}/jobs/*.yaml")):
        rate = yaml.safe_load(file.read_text())["model"]["init_args"]["optimizer"]["init_args"]["lr"]
        case = file.name.partition(",")[0]
        highest[case] = max(highest.get(case, (0, "")), (rate, str(file)))
    return [file for _, file in highest.values()]


def compared(one: Path, other: Path) -> str:
    """Return what differs between two runs, but for times, or ""."""
    rows = [
        {(row["step"], row["key"]): row["value"] for row in csv.DictReader((each / "metrics.csv").open())}
        for each in (one, other)
    ]
    keys = [key for key in rows[0] if not key[1].startswith("time/") and not key[1].endswith("/seconds")]
    unequal = [key for key in keys if rows[0][key] != rows[1].get(key)]
    written = [(each / "predictions" / "federation.parquet").read_bytes() for each in (one, other)]
    if not unequal and written[0] == written[1]:
        return ""
    predictions = "the same predictions" if written[0] == written[1] else "other predictions"
    aurocs = [abs(float(rows[0][key]) - float(rows[1][key])) for key in unequal if "auroc" in key[1]]
    far = f"AUROCs by up to {max(aurocs):.1g}" if aurocs else ", ".join(sorted({key for _, key in unequal})[:3])
    return f"{predictions}, {len(unequal)} of {len(keys)} values of metrics differ: {far}"


def main() -> None:
    if sys.argv[1:2] == ["--train"]:
        return train(sys.argv[3:], sys.argv[2])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=SETTINGS, default=[*SETTINGS])
    parser.add_argument("--processors", nargs="*", default=["Haswell", "EPYC-Rome"], help="names of qemu-x86_64 -cpu")
    parser.add_argument("--own", action="store_true", help="also without the canon's environment")
    args = parser.parse_args()
    if args.processors and shutil.which("qemu-x86_64") is None:
        parser.error("expected qemu-x86_64, found none; install qemu-user, or compare only with --own --processors")
    portable = yaml.safe_load((CANON / "canon.yaml").read_text())["environment"]
    sides = {"here": ([], portable)}
    sides |= {each: (["qemu-x86_64", "-cpu", each], portable | EMULATED) for each in args.processors}
    sides |= {"own": ([], {})} if args.own else {}
    with TemporaryDirectory() as place:
        folder = Path(place)
        files = [file for part in args.parts for file in planned(part, folder)]
        for side, (emulator, environment) in sides.items():
            own = {"XDG_CACHE_HOME": str(folder / f"cache-{side}")}
            words = [*emulator, sys.executable, __file__, "--train", str(folder / side), *files]
            done = subprocess.run(
                words, env=os.environ | environment | own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            if done.returncode or "exit code 0" not in done.stdout:
                raise SystemExit(done.stdout[-3000:])
            runs = [file.parent for file in sorted((folder / side).glob("*/*/result.json"))]
            found = {run: compared(folder / "here" / run.relative_to(folder / side), run) for run in runs}
            same = sum(not text for text in found.values())
            print(f"{side}: {len(runs)} of {len(files)} runs ended, {same} have every digit of here", flush=True)
            for run, text in found.items():
                if text:
                    print(f"  {run.name}: {text}", flush=True)


if __name__ == "__main__":
    main()
