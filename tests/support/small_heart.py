"""Small files in the layout of UCI's Heart Disease."""

from pathlib import Path

import numpy as np

SIZES = {"cleveland": (30, 12), "hungarian": (24, 9), "switzerland": (12, 11), "va": (16, 12)}
"""Rows of a hospital, and how many of them are positive."""


def lines_of(name: str) -> list[str]:
    rows, positives = SIZES[name]
    rng = np.random.default_rng(len(name))
    lines = []
    for row in range(rows):
        cells = [
            *(f"{rng.integers(30, 80)}.0", str(rng.integers(2)), str(row % 4 + 1), str(rng.integers(100, 180))),
            *(str(rng.integers(150, 300)), str(rng.integers(2)), str(row % 3), str(rng.integers(90, 180))),
            *(str(rng.integers(2)), f".{rng.integers(10)}", "2", "?", "?", str(int(row < positives) * (1 + row % 4))),
        ]
        lines.append(",".join(cells))
    lines.insert(3, "55,1,4,?,200,0,0,120,0,1.5,2,?,?,1")  # a value that counts is not known
    return lines


def write_folder(root: Path, **changed: list[str]) -> Path:
    for name in SIZES:
        (root / f"processed.{name}.data").write_text("\n".join(changed.get(name, lines_of(name))) + "\n")
    return root
