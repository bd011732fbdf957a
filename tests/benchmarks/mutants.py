"""Check that the fast tests detect faults in the code.

    python tests/benchmarks/mutants.py [--jobs 2] [WORD ...]

`tests/support/faults.py` lists the mutants. For each of them, the command breaks a copy of the code in one place and
runs the fast tests of a folder or file, of which at least one must fail. WORDs select mutants whose description
contains one of them. All mutants take about an hour on two cores.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from faults import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 900


def main() -> None:
    """Run mutants and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "words", nargs="*", metavar="WORD", help="select mutants whose description contains one of these"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="number of parallel mutants")
    args = parser.parse_args()
    selected = [m for m in MUTANTS if not args.words or any(word in m.what for word in args.words)]
    began = time.monotonic()
    with TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(args.jobs) as pool:
        verdicts = pool.map(lambda job: verdict(job[1], Path(folder, str(job[0]))), enumerate(selected))
        alive = 0
        for mutant, killer in zip(selected, verdicts, strict=True):
            alive += not killer
            print(f"{mutant.what:52} {mutant.file:30} {killer or f'ALIVE after tests/{mutant.tests}'}", flush=True)
    print(f"{len(selected)} mutants, {alive} alive, {time.monotonic() - began:.0f} s")
    sys.exit(bool(alive))


def verdict(mutant: Mutant, folder: Path) -> str:
    """Break a copy of the code and return the first test that fails, or ""."""
    for part in ("fedlit", "tests", "configs"):
        shutil.copytree(ROOT / part, folder / "main" / part, ignore=shutil.ignore_patterns("__pycache__", "runs"))
    for file in ("pyproject.toml", "README.md", "CONTRIBUTING.md"):
        shutil.copy(ROOT / file, folder / "main")
    if (ROOT.parent / "shared").exists():
        (folder / "shared").symlink_to(ROOT.parent / "shared")
    broken(mutant, folder / "main")
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "--no-header", f"tests/{mutant.tests}"]
    env = {**os.environ, "PYTHONPATH": str(folder / "main"), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(command, cwd=folder / "main", env=env, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return f"(still running after {LIMIT} s)"
    finally:
        shutil.rmtree(folder)
    if done.returncode == 0:
        return ""
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if done.returncode != 1 or not failed:
        raise RuntimeError(f"{mutant.what}: pytest itself failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return failed[0].split(" - ")[0].removeprefix("FAILED ")


def broken(mutant: Mutant, root: Path) -> None:
    """Break the code below a folder.

    Raises:
        ValueError: The text does not occur exactly once.
    """
    file = root / "fedlit" / mutant.file
    text = file.read_text()
    if text.count(mutant.old) != 1:
        raise ValueError(
            f"{mutant.what}: expected {mutant.old!r} once in {mutant.file}, found it {text.count(mutant.old)} times"
        )
    file.write_text(text.replace(mutant.old, mutant.new))


if __name__ == "__main__":
    main()
