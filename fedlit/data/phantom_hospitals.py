"""The hospitals of PhantomCXR: what is found there, how pictures look there, and what is labelled."""

import math
import zlib
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Literal

import numpy as np

FINDINGS = (
    "Atelectasis",
    "Cardiomegaly",
    "Consolidation",
    "Edema",
    "Effusion",
    "Emphysema",
    "Mass",
    "Nodule",
    "Pneumothorax",
    "Support Devices",
)
"""The findings, in the order of the columns of labels and severities, named as in NIH and CheXpert."""

PREVALENCE = {
    "Atelectasis": 0.22,
    "Cardiomegaly": 0.25,
    "Consolidation": 0.20,
    "Edema": 0.20,
    "Effusion": 0.28,
    "Emphysema": 0.18,
    "Mass": 0.17,
    "Nodule": 0.20,
    "Pneumothorax": 0.18,
    "Support Devices": 0.22,
}
"""Positive images / all images of each finding in a hospital that is like the average one."""


@dataclass(frozen=True)
class Hospital:
    """A hospital: how many pictures it has, who its patients are, how its pictures look and what it labels.

    Args:
        name: Its name, which also seeds its patients: two hospitals of one name have the same ones.
        images: Number of images.
        prevalence: Positive images / all images of each finding, 0 to 1; findings left out have `PREVALENCE`.
        contrast: Factor on the distance to mid-grey.
        exposure: Above 0 darkens and below 0 brightens the mid-greys, black and white stay; -1 to 1.
        noise: Standard deviation of the pixel noise; 1 is the range from black to white.
        blur: Share of each pixel that comes from its neighbours, 0 (sharp) to 1.
        collimation: Mean width of the black border, as a fraction of the picture's side.
        marker: Letter beside the shoulder: "L", "R" or "" for none.
        classes: The findings it labels; by default all.
    """

    name: str
    images: int = 1000
    prevalence: dict[str, float] = field(default_factory=dict)
    contrast: float = 1.0
    exposure: float = 0.0
    noise: float = 0.03
    blur: float = 0.25
    collimation: float = 0.0
    marker: Literal["", "L", "R"] = ""
    classes: tuple[str, ...] | None = None

    def __post_init__(self):
        known = f"findings are {', '.join(FINDINGS)}"
        for finding, value in self.prevalence.items():
            if finding not in FINDINGS:
                raise ValueError(f"hospital {self.name!r}: prevalence of unknown finding {finding!r}; {known}")
            if not 0 <= value <= 1:
                raise ValueError(f"hospital {self.name!r}: prevalence of {finding!r}: expected 0 to 1, found {value}")
        if self.classes is not None:
            object.__setattr__(self, "classes", tuple(self.classes))
            unknown = [label for label in self.classes if label not in FINDINGS]
            if unknown or not self.classes:
                found = f"unknown class {unknown[0]!r}" if unknown else "no class at all"
                raise ValueError(f"hospital {self.name!r}: {found} in its label scheme; {known}")
        for key, low, high in (
            ("images", 1, math.inf),
            ("contrast", 0.05, 20),
            ("exposure", -1, 1),
            ("noise", 0, 1),
            ("blur", 0, 1),
            ("collimation", 0, 0.3),
        ):
            if not low <= getattr(self, key) <= high:
                raise ValueError(
                    f"hospital {self.name!r}: expected {key} from {low} to {high}, found {getattr(self, key)}"
                )
        if self.marker not in ("", "L", "R"):
            raise ValueError(f"hospital {self.name!r}: expected marker 'L', 'R' or '', found {self.marker!r}")


def default_hospitals(
    count: int,
    images: int,
    heterogeneity: float = 1.0,
    label_scheme: Literal["full", "split"] = "full",
    shared_classes: int = 4,
) -> list[Hospital]:
    """A family of hospitals that differ in size, prevalences and the look of their pictures.

    Hospital k is the same in every family, but for its number of images and, in the scheme "split", its
    classes. The first one is the average one.

    Args:
        count: Number of hospitals.
        images: Images of all hospitals together.
        heterogeneity: Scale of all differences: 0 for hospitals that differ in their patients only, 1 for
            clear shifts, at most 2.
        label_scheme: "full": all label everything. "split": all label the shared classes, and the others are
            dealt out, so that each is labelled by one hospital (by several if hospitals outnumber them).
        shared_classes: Classes that all hospitals label in the scheme "split".
    """
    if count < 1 or images < 2 * count:
        raise ValueError(
            f"expected at least 1 hospital and 2 images for each, found {count} hospitals and {images} images"
        )
    if not 0 <= heterogeneity <= 2:
        raise ValueError(f"expected heterogeneity from 0 to 2, found {heterogeneity}")
    if label_scheme not in ("full", "split"):
        raise ValueError(f"expected label_scheme 'full' or 'split', found {label_scheme!r}")
    if not 0 <= shared_classes <= len(FINDINGS):
        raise ValueError(f"expected shared_classes from 0 to {len(FINDINGS)}, found {shared_classes}")
    shifts = [heterogeneity * _shift(index) + 0.0 for index in range(count)]
    sizes = _apportion([2.0 ** shift[0] for shift in shifts], images)
    normal = NormalDist()
    hospitals = []
    for index, (shift, size) in enumerate(zip(shifts, sizes, strict=True)):
        look = shift[1:6]
        prevalence = {
            finding: round(normal.cdf(normal.inv_cdf(PREVALENCE[finding]) + 0.5 * move), 4)
            for finding, move in zip(FINDINGS, shift[6:].tolist(), strict=True)
        }
        hospitals.append(
            Hospital(
                name=f"hospital-{index + 1:02d}",
                images=size,
                prevalence=prevalence,
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
    """16 numbers in [-1, 1] that fill the cube evenly as `index` grows; all 0 for the first."""
    primes = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53)
    return 2 * ((0.5 + index * np.sqrt(primes)) % 1) - 1


def _apportion(weights: list[float], total: int) -> list[int]:
    """Whole numbers of at least 2 in the ratio of the weights, with the given sum."""
    rest = total - 2 * len(weights)
    edges = np.round(np.cumsum([0.0, *weights]) / sum(weights) * rest).astype(int)
    return (np.diff(edges) + 2).tolist()


def _split_classes(index: int, count: int, shared: int) -> tuple[str, ...]:
    # Shared classes are spread over the alphabet, so that they are not all of one kind.
    order = sorted(FINDINGS, key=lambda label: zlib.crc32(label.encode()))
    own = order[shared:]
    dealt = {own[position] for position in range(len(own)) if position % count == index}
    if own and count > len(own):
        dealt.add(own[index % len(own)])
    return tuple(label for label in FINDINGS if label in dealt or label in order[:shared])
