"""The equipment of PhantomCXR's hospitals, which turns densities into 8-bit images."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedlit.core.seeds import numpy_generator
from fedlit.data.phantom.drawing import draw_images
from fedlit.data.phantom.hospitals import Hospital
from fedlit.data.phantom.patients import Cohort

_MARKERS = {
    "": (),
    "L": ("10000", "10000", "10000", "10000", "10000", "10000", "11111"),
    "R": ("11110", "10001", "10001", "11110", "10100", "10010", "10001"),
}


def render(
    hospital: Hospital,
    cohort: Cohort,
    size: int,
    seed: int,
    out: np.ndarray | None = None,
    chunk: int = 32,
    draw: Callable[[slice], np.ndarray] | None = None,
):
    """Draw the images of a cohort with the equipment of a hospital.

    Args:
        hospital: The hospital with the equipment.
        cohort: The N images before they are drawn.
        size: Height and width in pixels.
        seed: Seed of the pixel noise.
        out: An array for the images, uint8 ``[N, 1, size, size]``; by default a new one.
        chunk: Number of images that are drawn together, which limits the memory and does not change the images.
        draw: A function that returns the densities of some images, see ``PhantomCXR.draw``; by default the cohort's.

    Returns:
        uint8 ``[N, 1, size, size]``.
    """
    n = len(cohort.patient)
    out = np.empty((n, 1, size, size), np.uint8) if out is None else out
    rng = numpy_generator(seed, hospital.name, "noise")
    for start in range(0, n, chunk):
        part = slice(start, min(start + chunk, n))
        picture = draw(part) if draw else draw_images(cohort.anatomy[part], cohort.severity[part], size)
        out[part, 0] = _expose(hospital, picture, cohort.look[part, :, None, None], rng)
    return out


def _expose(hospital: Hospital, picture: np.ndarray, look: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Turn densities, float32 ``[n, H, W]``, into uint8 by blur, contrast, tone, noise, marker and border."""
    size = picture.shape[-1]
    picture = _blur(picture, hospital.blur, max(1, round(size / 64)))
    picture -= 0.45
    picture *= hospital.contrast * (1 + 0.05 * look[:, 0])
    picture += 0.45
    np.clip(picture, 0, 1, out=picture)
    # x / (x + k (1 - x)) keeps black and white like a power, whose bits differ between processors.
    strength = np.clip(hospital.exposure + 0.06 * look[:, 1], -1.2, 1.2)
    k = np.where(strength > 0, 1 + strength, 1 / (1 + np.abs(strength)))
    tone = 1 - picture
    tone *= k
    tone += picture
    picture /= tone
    noise = rng.standard_normal(picture.shape, dtype=np.float32)
    noise *= hospital.noise
    picture += noise
    if hospital.marker:
        _stamp(picture, hospital.marker, look[:, 4])
    if hospital.collimation:
        border = np.abs(hospital.collimation * (1 + 0.5 * look[:, 2:4]))
        centre = np.abs((np.arange(size, dtype=np.float32) + np.float32(0.5)) / np.float32(size) - np.float32(0.5))
        picture *= centre[None, :, None] < 0.5 - border[:, 0]
        picture *= centre[None, None, :] < 0.5 - border[:, 1]
    picture *= 255
    picture += 0.5
    return np.clip(picture, 0, 255, out=picture).astype(np.uint8)


def _blur(picture: np.ndarray, share: float, reach: int) -> np.ndarray:
    """Mix each pixel with the mean of ``2 reach + 1`` pixels, along rows and then along columns."""
    for axis in (1, 2) if share else ():
        wide = np.pad(picture, [(reach, reach) if axis == dim else (0, 0) for dim in range(3)], mode="edge")
        lines, wide = np.moveaxis(picture, axis, 0), np.moveaxis(wide, axis, 0)
        lines *= 1 - share
        for shift in range(2 * reach + 1):
            lines += wide[shift : shift + len(lines)] * (share / (2 * reach + 1))
    return picture


def _stamp(picture: np.ndarray, letter: str, move: np.ndarray) -> None:
    """Put a white letter with a height of 0.11 of the image's side in an upper corner, "L" at the patient's left."""
    glyph = np.array([[int(dot) for dot in line] for line in _MARKERS[letter]], np.float32)
    size = picture.shape[-1]
    grid = (np.arange(size, dtype=np.float32) + np.float32(0.5)) / np.float32(size)
    dot = 0.11 / 7
    left = (0.87 if letter == "L" else 0.05) + 0.012 * np.clip(move[:, 0, 0], -2, 2)[:, None]
    rows = np.floor((grid - np.float32(0.04)) / np.float32(dot)).astype(np.int64)
    columns = np.floor((grid[None, :] - left) / np.float32(dot)).astype(np.int64)
    glyph = np.pad(glyph, 1)
    rows, columns = np.clip(rows + 1, 0, glyph.shape[0] - 1), np.clip(columns + 1, 0, glyph.shape[1] - 1)
    np.maximum(picture, 0.95 * glyph[rows[None, :, None], columns[:, None, :]], out=picture)
