"""The patients of PhantomCXR: their anatomy and findings, drawn for one hospital from a seed."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from fedlit.core.seeds import numpy_generator
from fedlit.data.phantom.hospitals import FINDINGS, PREVALENCE, Hospital

Array = NDArray[np.float32]

GRID = 10  # control points of a mottle per side

# Findings co-occur through three hidden causes: heart failure, smoking, infection.
_CAUSES = {
    "Atelectasis": (0.1, 0.1, 0.4), "Cardiomegaly": (0.6, 0.0, 0.0), "Consolidation": (0.0, 0.0, 0.6),
    "Edema": (0.65, 0.0, 0.1), "Effusion": (0.5, 0.0, 0.4), "Emphysema": (0.0, 0.6, 0.0),
    "Mass": (0.0, 0.5, 0.0), "Nodule": (0.0, 0.5, 0.0), "Pneumothorax": (0.0, 0.35, 0.0),
    "Support Devices": (0.5, 0.0, 0.15),
}  # fmt: skip
# Mean, standard deviation between patients and within a patient of each number of the anatomy, in the order of draws.
_SPREAD = {
    "centre": (0.5, 0.0, 0.012), "top": (0.105, 0.008, 0.012), "zoom": (1.0, 0.0, 0.025),
    "shoulder": (0.47, 0.02, 0.0), "width": (0.375, 0.015, 0.004), "length": (0.67, 0.025, 0.018),
    "dome": (0.075, 0.012, 0.006), "heart": (0.15, 0.012, 0.004), "heart_tilt": (0.5, 0.1, 0.03),
    "mediastinum": (0.075, 0.007, 0.003), "tissue": (0.62, 0.025, 0.01), "aeration": (0.42, 0.025, 0.012),
    "hilum": (0.16, 0.03, 0.015), "bone": (0.105, 0.02, 0.005), "rib_phase": (0.5, 0.25, 0.03),
    "rib_spacing": (0.083, 0.005, 0.0), "rib_slope": (0.10, 0.02, 0.005),
}  # fmt: skip
_CHRONIC = 0.6  # share of a finding's liability that a patient's pictures have in common
_MILDEST = 0.05  # severity of the mildest positive finding
_MAX_PICTURES = 3  # of one patient


@dataclass(frozen=True)
class Anatomy:
    """Everything about images but the severity of findings; fields are float32 ``[N]`` unless they say otherwise.

    Attributes:
        centre, top, zoom: Position of the midline, of the lungs' apex, and magnification.
        shoulder: Half width of the trunk.
        width, length: Half width of the thorax and height of the lungs.
        dome: Height of the diaphragm's dome.
        heart, heart_tilt: Half width of the heart and slope of its axis.
        mediastinum: Half width of the mediastinum.
        tissue, aeration: Density of soft tissue and darkness of the lungs.
        hilum, bone: Brightness of the vessels at the lungs' roots, and of ribs and clavicles.
        rib_phase, rib_spacing, rib_slope: Course of the ribs.
        spot: ``[N, F, 3]``, uniform numbers in [0, 1) that say where (side, x, y) each finding sits.
        shape: ``[N, F, 2]``, uniform numbers in [0, 1) that vary the look of each finding.
        mottle: ``[N, 10, 10]``, control points of the lungs' texture, standard normal.
    """

    centre: Array
    top: Array
    zoom: Array
    shoulder: Array
    width: Array
    length: Array
    dome: Array
    heart: Array
    heart_tilt: Array
    mediastinum: Array
    tissue: Array
    aeration: Array
    hilum: Array
    bone: Array
    rib_phase: Array
    rib_spacing: Array
    rib_slope: Array
    spot: Array
    shape: Array
    mottle: Array

    def __getitem__(self, which: slice | NDArray) -> Anatomy:
        """Return the same fields of some of the images."""
        return Anatomy(**{field.name: getattr(self, field.name)[which] for field in fields(self)})

    @classmethod
    def sample(cls, rng: np.random.Generator, patient: NDArray[np.int64]) -> Anatomy:
        """Draw the anatomy of each patient, int64 ``[N]`` from 0, once, and the position of each image separately."""
        patients, pictures = int(patient.max(initial=-1)) + 1, len(patient)

        def varied(mean: float, patient_sd: float, picture_sd: float) -> Array:
            between = np.clip(rng.standard_normal(patients), -2.2, 2.2)[patient]
            within = np.clip(rng.standard_normal(pictures), -2.2, 2.2)
            return (mean + patient_sd * between + picture_sd * within).astype(np.float32)

        return cls(
            **{name: varied(*spread) for name, spread in _SPREAD.items()},
            spot=rng.random((patients, len(FINDINGS), 3), dtype=np.float32)[patient],
            shape=rng.random((pictures, len(FINDINGS), 2), dtype=np.float32),
            mottle=rng.standard_normal((pictures, GRID, GRID), dtype=np.float32),
        )


@dataclass(frozen=True)
class Cohort:
    """The N images of a hospital with F findings before they are drawn.

    Change ``severity`` with ``dataclasses.replace`` to draw the same patients with or without a finding.

    Attributes:
        anatomy: Anatomy, position and place of findings.
        severity: ``[N, F]`` float32 in the order of ``FINDINGS``: 0 where a finding is absent, else up to 1.
        patient: Patient of each image, int64 ``[N]``, ascending from 0.
        look: ``[N, 5]`` float32 standard normal: contrast, exposure, borders (rows, columns) and marker.
    """

    anatomy: Anatomy
    severity: np.ndarray
    patient: np.ndarray
    look: np.ndarray

    def __getitem__(self, which: slice) -> Cohort:
        """Return the cohort with only some of its images."""
        return Cohort(**{field.name: getattr(self, field.name)[which] for field in fields(self)})

    @property
    def labels(self) -> np.ndarray:
        """``[N, F]`` float32, 1 where a finding is present."""
        return (self.severity > 0).astype(np.float32)


def sample_cohort(hospital: Hospital, seed: int) -> Cohort:
    """Sample the patients of a hospital, which depend on the seed, its name, number of images and prevalences."""
    n = hospital.images
    rng = numpy_generator(seed, hospital.name, "patients")
    patient = np.repeat(np.arange(n), rng.integers(1, _MAX_PICTURES + 1, n))[:n]
    patients = int(patient[-1]) + 1
    anatomy = Anatomy.sample(numpy_generator(seed, hospital.name, "anatomy"), patient)
    rng = numpy_generator(seed, hospital.name, "findings")
    loadings = np.array([_CAUSES[finding] for finding in FINDINGS])
    liability = np.sqrt(_CHRONIC) * _liability(rng, loadings, patients)[patient]
    liability += np.sqrt(1 - _CHRONIC) * _liability(rng, loadings, n)
    normal = NormalDist()
    wanted = [hospital.prevalence.get(finding, PREVALENCE[finding]) for finding in FINDINGS]
    threshold = [normal.inv_cdf(1 - p) if 0 < p < 1 else math.inf if p == 0 else -math.inf for p in wanted]
    # The larger of two uniform numbers: there are mild cases, so that no finding is trivial, but more severe ones.
    severity = _MILDEST + (1 - _MILDEST) * rng.random((2, n, len(FINDINGS)), dtype=np.float32).max(0)
    severity[liability < np.array(threshold)] = 0
    look = numpy_generator(seed, hospital.name, "look").standard_normal((n, 5), dtype=np.float32)
    return Cohort(anatomy, severity, patient, look)


def _liability(rng: np.random.Generator, loadings: np.ndarray, n: int) -> np.ndarray:
    """Return ``[n, F]`` correlated standard normals, without a matrix product, whose bits depend on threads."""
    out = rng.standard_normal((n, len(loadings))) * np.sqrt(1 - (loadings**2).sum(1))
    for cause in loadings.T:
        out += rng.standard_normal((n, 1)) * cause
    return out
