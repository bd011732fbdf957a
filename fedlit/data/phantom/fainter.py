"""A planted effect of PhantomCXR: a scanner in whose images one finding has less contrast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedlit.core.errors import DataError
from fedlit.core.ranges import Fraction, Probability
from fedlit.core.seeds import numpy_generator
from fedlit.core.system.argument_types import checked
from fedlit.data.phantom.drawing import draw_images
from fedlit.data.phantom.hospitals import FINDINGS, Hospital
from fedlit.data.phantom.patients import Cohort


@checked
@dataclass(frozen=True)
class Fainter:
    """A second scanner of every hospital, in whose images one finding has less contrast.

    Every patient is examined at scanner ``A`` or, with the probability ``share``, at scanner ``B``, independently of
    everything else. In images of scanner B the finding changes the density of each pixel by ``contrast`` times as much
    as it would at scanner A, before blur, noise and the other steps of the equipment. With 0 the finding is labelled
    and cannot be seen; with 1 the scanners have no effect, and all images are those without scanners.

    Args:
        finding: The finding.
        contrast: Contrast of the finding at scanner B as a fraction of that at scanner A, from 0 to 1.
        share: Share of patients at scanner B, between 0 and 1.

    Raises:
        DataError: A value is out of its range, or the finding is unknown.
    """

    mistake: ClassVar[type] = DataError

    finding: str
    contrast: Probability = 0.5
    share: Fraction = 0.5

    def __post_init__(self):
        if self.finding not in FINDINGS:
            raise DataError(
                f"data.fainter.finding: expected one of {', '.join(FINDINGS)}, found {self.finding!r}; correct it"
            )

    def scanners(self, hospital: Hospital, cohort: Cohort, seed: int) -> np.ndarray:
        """Return the scanner of each image, [N] "A" or "B"."""
        patients = int(cohort.patient[-1]) + 1
        at_b = numpy_generator(seed, hospital.name, "scanner").random(patients) < self.share
        return np.where(at_b, "B", "A")[cohort.patient]

    def fade(self, pictures: np.ndarray, cohort: Cohort, rows: np.ndarray) -> None:
        """Reduce the contrast of the finding in drawn images, float32 [n, H, W], in place, for a mask of rows, [n]."""
        column = FINDINGS.index(self.finding)
        rows = np.flatnonzero(rows & (cohort.severity[:, column] > 0))
        if self.contrast == 1 or not len(rows):
            return
        severity = cohort.severity[rows].copy()
        severity[:, column] = 0
        without = draw_images(cohort.anatomy[rows], severity, pictures.shape[-1])
        pictures[rows] = without + np.float32(self.contrast) * (pictures[rows] - without)
