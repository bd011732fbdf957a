"""The hospitals of PhantomCXR: their prevalences, their image style, and the classes that they label."""

import zlib
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Annotated, ClassVar, Literal

import numpy as np

from fedlit.core.errors import DataError
from fedlit.core.ranges import Count, Probability, Within
from fedlit.core.system.argument_types import checked

PREVALENCE = {
    "Atelectasis": 0.22, "Cardiomegaly": 0.25, "Consolidation": 0.20, "Edema": 0.20, "Effusion": 0.28,
    "Emphysema": 0.18, "Mass": 0.17, "Nodule": 0.20, "Pneumothorax": 0.18, "Support Devices": 0.22,
}  # fmt: skip
"""Share of positive images for each finding in an average hospital."""

FINDINGS = tuple(PREVALENCE)
"""The findings, in the order of the columns of labels and severities, named as in NIH and CheXpert."""


@checked
@dataclass(frozen=True)
class Hospital:
    """A hospital with its number of images, its prevalences, its image style and its classes.

    Args:
        name: Name of the hospital. It is a part of the seed, so two hospitals with one name have the same patients.
        images: Number of images, at least 1.
        prevalence: Share of positive images for each finding, from 0 to 1. Other findings have the value of
            ``PREVALENCE``.
        contrast: Factor by which the distance to mid-grey is multiplied, from 0.05 to 20.
        exposure: Darkening of the mid-greys, from -1 (brighter) to 1 (darker); black and white stay.
        noise: Standard deviation of the pixel noise, from 0 to 1, where 1 is the range from black to white.
        blur: Share of each pixel that comes from its neighbours, from 0 (sharp) to 1.
        collimation: Mean width of the black border, as a fraction of the image's side, from 0 to 0.3.
        marker: Letter next to the shoulder: ``L``, ``R``, or empty for no letter.
        classes: The findings that the hospital labels; by default all.

    Raises:
        ValueError: A value is out of its range, or a finding is unknown.
    """

    mistake: ClassVar[type] = DataError

    name: str
    images: Count = 1000
    prevalence: dict[str, Probability] = field(default_factory=dict)
    contrast: Annotated[float, Within("[0.05, 20]")] = 1.0
    exposure: Annotated[float, Within("[-1, 1]")] = 0.0
    noise: Probability = 0.03
    blur: Probability = 0.25
    collimation: Annotated[float, Within("[0, 0.3]")] = 0.0
    marker: Literal["", "L", "R"] = ""
    classes: tuple[str, ...] | None = None

    def __post_init__(self):
        where, choices = f"hospital {self.name!r}", f"findings are {', '.join(FINDINGS)}"
        for finding in self.prevalence:
            if finding not in FINDINGS:
                raise DataError(f"{where}: prevalence: unknown {finding!r}; {choices}")
        if self.classes is not None:
            object.__setattr__(self, "classes", tuple(self.classes))
            unknown = [label for label in self.classes if label not in FINDINGS]
            if unknown or not self.classes:
                reason = f"unknown class {unknown[0]!r}" if unknown else "no class"
                raise DataError(f"{where}: scheme: {reason}; {choices}")


def default_hospitals(
    count: int,
    images: int,
    heterogeneity: float = 1.0,
    label_scheme: Literal["full", "split"] = "full",
    shared_classes: int = 4,
    prevalence: float | None = None,
) -> list[Hospital]:
    """Return hospitals that differ in size, prevalences and image style.

    Hospital k is the same for every number of hospitals, except for its number of images and, with ``split``, its
    classes. The first one is an average hospital.

    Args:
        count: Number of hospitals, at least 1.
        images: Number of images of all hospitals together, at least 2 for each.
        heterogeneity: Scale of all differences, from 0 (hospitals differ only in their patients) over 1 (clear
            differences) to 2.
        label_scheme: With ``full`` all hospitals label everything. With ``split`` all label the shared classes, and
            each other class is labelled by one hospital, or by several if there are more hospitals than such classes.
        shared_classes: Number of classes that all hospitals label with ``split``.
        prevalence: Share of positive images of every finding at every hospital; by default they differ.

    Raises:
        DataError: A value is out of its range.
    """
    if count < 1 or images < 2 * count:
        key = "hospitals" if count < 1 else "images"
        raise DataError(
            f"data.{key}: expected at least 1 hospital and 2 images each, found {count} and {images} images"
        )
    shifts = [heterogeneity * _shift(index) + 0.0 for index in range(count)]
    sizes = _apportion([2.0 ** shift[0] for shift in shifts], images)
    normal = NormalDist()
    hospitals = []
    for index, (shift, size) in enumerate(zip(shifts, sizes, strict=True)):
        look = shift[1:6]
        shares = {
            finding: round(normal.cdf(normal.inv_cdf(PREVALENCE[finding]) + 0.5 * move), 4)
            for finding, move in zip(FINDINGS, shift[6:].tolist(), strict=True)
        }
        hospitals.append(
            Hospital(
                name=f"hospital-{index + 1:02d}",
                images=size,
                prevalence=shares if prevalence is None else dict.fromkeys(FINDINGS, prevalence),
                contrast=round(float(1.25 ** look[0]), 4),
                exposure=round(float(np.clip(0.35 * look[1], -1, 1)), 4),
                noise=round(float(0.03 * 2 ** look[2]), 4),
                blur=round(float(np.clip(0.25 + 0.25 * look[3], 0, 1)), 4),
                collimation=round(float(0.05 * max(look[4], 0)), 4),
                marker=("", "L", "R")[index % 3] if heterogeneity else "",
                classes=None if label_scheme == "full" else _split_classes(index, count, shared_classes),
            )
        )
    return hospitals


def _shift(index: int) -> np.ndarray:
    """Return 16 numbers in [-1, 1] that fill the cube evenly as ``index`` grows; all are 0 for the first."""
    primes = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53)
    return 2 * ((0.5 + index * np.sqrt(primes)) % 1) - 1


def _apportion(weights: list[float], total: int) -> list[int]:
    """Return whole numbers of at least 2 in the ratio of the weights, with the given sum."""
    rest = total - 2 * len(weights)
    edges = np.round(np.cumsum([0.0, *weights]) / sum(weights) * rest).astype(int)
    return (np.diff(edges) + 2).tolist()


def _split_classes(index: int, count: int, shared: int) -> tuple[str, ...]:
    # Shared classes are spread over the alphabet, so that they are not all of one kind.
    order = sorted(FINDINGS, key=lambda label: zlib.crc32(label.encode()))
    unshared = order[shared:]
    labelled = {*order[:shared], *unshared[index::count]}
    if unshared and count > len(unshared):
        labelled.add(unshared[index % len(unshared)])
    return tuple(label for label in FINDINGS if label in labelled)
