"""PhantomCXR: a synthetic chest X-ray set of several hospitals, made from a seed with the equipment of each."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Annotated, Literal

import numpy as np
import pandas as pd

from fedlit.core.errors import DataError
from fedlit.core.ranges import NonNegativeInt, Probability, Within
from fedlit.core.seeds import numpy_generator
from fedlit.data.federated import FederatedDataModule
from fedlit.data.labels import checked_classes
from fedlit.data.partition import ByOrganisation, Partition
from fedlit.data.phantom.drawing import draw_images
from fedlit.data.phantom.hospitals import FINDINGS, Hospital, default_hospitals
from fedlit.data.phantom.patients import Cohort, sample_cohort
from fedlit.data.pictures.images import ImageStore
from fedlit.data.records import Records

_VERSION = "1"  # part of the cache key: raise it when pixels change

_MARKERS = {
    "": (),
    "L": ("10000", "10000", "10000", "10000", "10000", "10000", "11111"),
    "R": ("11110", "10001", "10001", "11110", "10100", "10010", "10001"),
}


class PhantomCXR(FederatedDataModule):
    """Synthetic frontal chest X-rays of several hospitals with ten findings, fully labelled.

    Each finding is visible with a random severity, findings co-occur, and the one to three images of a patient share
    anatomy. The images depend only on the hospitals, the seed and the size.

    Args:
        hospitals: A list of hospitals, or the number of built-in hospitals.
        images: Number of images of all hospitals together, if ``hospitals`` is a number.
        heterogeneity: Scale of the differences of the built-in hospitals in size, prevalences and image style: from 0
            (they differ only in their patients) to 2.
        label_scheme: Classes that the built-in hospitals label: ``full`` for all, ``split`` for ``shared_classes`` that
            all hospitals label, and others that one hospital labels. Test sets keep all labels.
        shared_classes: Number of classes that all hospitals label if ``label_scheme`` is ``split``, from 0 to 10.
        prevalence: Share of positive images of every finding at every built-in hospital, for data of one imbalance; by
            default findings and hospitals have their own shares, from 4 to 58% with ``heterogeneity: 2``.
        classes: The findings to use, in this order; by default all ten. A binary method needs exactly one.
        partition: The rule that gives each record to a client; by default each hospital is a client.
        image_size: Height and width of the images in pixels, at least 8.
        seed: Seed of the images, of the patient split and of the partition, at least 0.
        **kwargs: Further arguments of FederatedDataModule.
    """

    def __init__(
        self,
        hospitals: int | list[Hospital] = 3,
        images: int = 3000,
        heterogeneity: Annotated[float, Within("[0, 2]")] = 1.0,
        label_scheme: Literal["full", "split"] = "full",
        shared_classes: Annotated[int, Within("[0, 10]")] = 4,
        prevalence: Probability | None = None,
        classes: list[str] | None = None,
        partition: Partition | None = None,
        image_size: int = 64,
        seed: NonNegativeInt = 0,
        **kwargs,
    ):
        super().__init__(partition or ByOrganisation(), image_size=image_size, seed=seed, **kwargs)
        if isinstance(hospitals, int):
            hospitals = default_hospitals(hospitals, images, heterogeneity, label_scheme, shared_classes, prevalence)
        names = [hospital.name for hospital in hospitals]
        if not names or len(set(names)) < len(names):
            raise DataError(f"data.hospitals: expected one or more different names, found {names}")
        self.hospitals = tuple(hospitals)
        self.drawn = frozenset((hospital.name, seed) for hospital in hospitals)
        self.classes = FINDINGS if classes is None else checked_classes(classes, FINDINGS)
        self._site_classes = {
            hospital.name: tuple(name for name in hospital.classes if name in self.classes)
            for hospital in hospitals
            if hospital.classes is not None
        }
        idle = [name for name, labelled in self._site_classes.items() if not labelled]
        if idle:
            raise DataError(f"data.classes: hospital {idle[0]!r} labels none of {[*self.classes]}")

    def records(self) -> Records:
        """Draw the images into the cache, unless they exist."""
        cohorts = [sample_cohort(hospital, self.seed) for hospital in self.hospitals]
        site = np.repeat([hospital.name for hospital in self.hospitals], [h.images for h in self.hospitals])
        number = np.concatenate([np.arange(hospital.images) for hospital in self.hospitals])
        person = np.concatenate([cohort.patient for cohort in cohorts])
        at = site.tolist()  # Python's own texts and numbers are formatted twice as fast as NumPy's
        names = np.array([f"{name}-{index:06d}" for name, index in zip(at, number.tolist(), strict=True)])
        patients = np.array([f"{name}-p{index:06d}" for name, index in zip(at, person.tolist(), strict=True)])

        def write(out: np.ndarray) -> None:
            start = 0
            for hospital, cohort in zip(self.hospitals, cohorts, strict=True):
                part = out[start : start + hospital.images]
                render(hospital, cohort, self.image_size, self.seed, part, draw=partial(self.draw, hospital, cohort))
                start += hospital.images

        columns = [FINDINGS.index(name) for name in self.classes]
        shape = (len(names), 1, self.image_size, self.image_size)
        return Records(
            store=ImageStore.cached(self.key(), shape, write, self.cache_dir),
            names=names,
            labels=np.concatenate([cohort.labels for cohort in cohorts])[:, columns],
            classes=self.classes,
            patients=patients,
            sites=site,
            site_classes=self._site_classes,
            table=pd.DataFrame({"image": names, "patient": patients, "hospital": site}),
        )

    def draw(self, hospital: Hospital, cohort: Cohort, part: slice) -> np.ndarray:
        """Return the densities of some images of a cohort, float32 [n, H, W], before the hospital's equipment."""
        return draw_images(cohort.anatomy[part], cohort.severity[part], self.image_size)

    def key(self) -> str:
        """Return the name of the images in the cache, which changes whenever a pixel changes."""
        parts = [_VERSION, self.seed, self.image_size]
        for hospital in self.hospitals:
            drawn = asdict(hospital)
            drawn["prevalence"] = sorted(hospital.prevalence.items())
            del drawn["classes"]  # what a hospital labels changes no pixel
            parts.append(drawn)
        return f"phantom-{hashlib.sha256(repr(parts).encode()).hexdigest()[:24]}"


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
