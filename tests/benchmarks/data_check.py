"""Measure ``fedlit data check`` on as many X-rays as NIH ChestX-ray14 has, and an import for comparison.

    python tests/benchmarks/data_check.py FOLDER [--images 112120] [--turns 3]

FOLDER contains NIH images and their label file, such as a part of the download. Its images are linked under 112,120
names.
"""

import argparse
import csv
import os
import shutil
import subprocess
import sys
import tempfile
import time
from itertools import cycle, islice
from pathlib import Path
from statistics import median

TABLE = "Data_Entry_2017_v2020.csv"
COMMANDS = {
    "fedlit data check": ["-m", "fedlit", "data", "check"],
    "import lightning.pytorch": ["-c", "import lightning.pytorch"],
}


def lengthened(source: Path, target: Path, count: int) -> Path:
    """Create a folder in NIH's layout with ``count`` links to copies of images, four per patient."""
    folder, copies = target / "nih", target / "copies"
    (folder / "images").mkdir(parents=True)
    copies.mkdir()
    rows = list(csv.DictReader((source / TABLE).open()))
    for row in rows:
        shutil.copy(source / "images" / row["Image Index"], copies)
    with (folder / TABLE).open("w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        for number, row in enumerate(islice(cycle(rows), count)):
            name, patient = f"{100_000 + number // 4:08d}_{number % 4:03d}.png", str(100_000 + number // 4)
            os.link(copies / row["Image Index"], folder / "images" / name)
            table.writerow(row | {"Image Index": name, "Patient ID": patient})
    return folder


def main() -> None:
    """Run the commands alternately and print the median time of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=112_120)
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as made:
        folder = lengthened(args.folder, Path(made), args.images)
        for _ in range(args.turns):
            for name, words in COMMANDS.items():
                start = time.perf_counter()
                more = [str(folder)] if "check" in words else []
                subprocess.run([sys.executable, *words, *more], check=True, stdout=subprocess.DEVNULL, cwd=made)
                seconds[name].append(time.perf_counter() - start)
    for name, each in seconds.items():
        print(f"{name:26} {median(each):5.1f} s   ({', '.join(f'{second:.1f}' for second in each)})")


if __name__ == "__main__":
    main()
