"""Pictures for small copies of data sets: real chest X-rays where they are there, else noise."""

from pathlib import Path

import numpy as np
from PIL import Image

REAL = Path(__file__).parents[2] / ".." / "shared" / "data" / "nih-cxr14-mini" / "images"


def pictures(count: int, size: int = 32) -> list[Image.Image]:
    """Different grey pictures of size x size."""
    files = sorted(REAL.glob("*.png"))[:count]
    if len(files) == count:
        return [Image.open(file).convert("L").resize((size, size)) for file in files]
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 256, (size, size), dtype=np.uint8)) for _ in range(count)]
