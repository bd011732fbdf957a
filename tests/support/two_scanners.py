"""PhantomCXR with a planted effect: a scanner in whose images one finding has less contrast."""

from dataclasses import replace

import numpy as np

from fedlit.core.seeds import numpy_generator
from fedlit.data import PhantomCXR
from fedlit.data.phantom.drawing import draw_images
from fedlit.data.phantom.hospitals import FINDINGS, Hospital
from fedlit.data.phantom.patients import Cohort, sample_cohort
from fedlit.data.records import Records


class TwoScanners(PhantomCXR):
    """Images of two scanners at every hospital; at scanner B, one finding has less contrast.

    Every patient is examined at scanner ``A`` or, with the probability ``share``, at scanner ``B``, independently of
    everything else. In images of scanner B the finding changes the density of each pixel by ``contrast`` times as much
    as it would at scanner A, before blur, noise and the other steps of the equipment. With 0 the finding is labelled
    and cannot be seen; with 1 all images are those of PhantomCXR.
    """

    def __init__(self, finding: str = "Mass", contrast: float = 0.5, share: float = 0.5, **kwargs):
        super().__init__(**kwargs)
        self.column, self.contrast, self.share = FINDINGS.index(finding), contrast, share

    def scanners(self, hospital: Hospital, cohort: Cohort) -> np.ndarray:
        """Return the scanner of each image, [N] "A" or "B"."""
        patients = int(cohort.patient[-1]) + 1
        at_b = numpy_generator(self.seed, hospital.name, "scanner").random(patients) < self.share
        return np.where(at_b, "B", "A")[cohort.patient]

    def draw(self, hospital: Hospital, cohort: Cohort, part: slice) -> np.ndarray:
        images, cohort, at_b = super().draw(hospital, cohort, part), cohort[part], self.scanners(hospital, cohort)[part]
        rows = np.flatnonzero((at_b == "B") & (cohort.severity[:, self.column] > 0))
        if self.contrast < 1 and len(rows):
            severity = cohort.severity[rows].copy()
            severity[:, self.column] = 0
            without = draw_images(cohort.anatomy[rows], severity, self.image_size)
            images[rows] = without + np.float32(self.contrast) * (images[rows] - without)
        return images

    def key(self) -> str:
        return f"{super().key()}-{FINDINGS[self.column]}-{self.contrast}-{self.share}"

    def records(self) -> Records:
        scanners = [self.scanners(hospital, sample_cohort(hospital, self.seed)) for hospital in self.hospitals]
        return replace(super().records(), groups={"scanner": np.concatenate(scanners)})
