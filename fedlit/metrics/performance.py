"""Discrimination, calibration and usefulness of one class in one group of patients, with draws over patients."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from fedlit.metrics.calibration import Recalibration, net_benefit
from fedlit.metrics.measures import PatientCounts
from fedlit.metrics.thresholds import Ranking, predictive_values, ranked


@dataclass(frozen=True)
class Stated:
    """Rates at which a class is judged, fixed before the test."""

    sensitivity: float = 0.9  # Sensitivity at which specificity is given.
    specificity: float = 0.9  # Specificity at which sensitivity is given.
    risk: float = 0.1  # Probability from which a patient would be treated, for net benefit.
    prevalence: float = 0.1  # Share of positives for predictive values at thresholds.


class Performance:
    """One class in one group of patients.

    Args:
        logit: ``[N]`` finite logits of the labelled images.
        positive: ``[N]`` bool.
        patient: ``[N]`` number of each image's patient, from 0.
        n_patients: Number of patients P.
        stated: Rates at which the class is judged.
        thresholds: Probabilities that were chosen as thresholds on other images.
    """

    def __init__(
        self,
        logit: np.ndarray,
        positive: np.ndarray,
        patient: np.ndarray,
        n_patients: int,
        stated: Stated,
        thresholds: Sequence[float] = (),
    ) -> None:
        logit = np.asarray(logit, dtype=np.float64)
        sides = positive, ~positive
        images, patients = ([int(side.sum()) for side in sides], [len(np.unique(patient[side])) for side in sides])
        self.support = PatientCounts(*images, *patients)
        self._ranking = Ranking(logit, positive, patient, n_patients)
        self._stated, self._thresholds = stated, thresholds
        probability = special.expit(logit)
        self._recalibration = Recalibration.of(logit, positive)
        columns = [np.ones(len(logit)), positive, (probability - positive) ** 2, *self._recalibration.terms.T]
        for threshold in (stated.risk, *thresholds):
            columns += [positive & (probability >= threshold), ~positive & (probability >= threshold)]
        sums = np.zeros((len(columns), n_patients), dtype=np.float32)
        for row, values in zip(sums, columns, strict=True):
            row[:] = np.bincount(patient, values, n_patients)
        self._sums = sums

    def values(self, draws: np.ndarray) -> dict[str, np.ndarray]:
        """Return ``[B]`` values of each measure if patient p occurs ``draws[p, b]`` times; NaN where undefined."""
        images, positives, squares, *rest = self._sums @ draws
        measured = ranked(self._ranking.counted(draws), self._stated.sensitivity, self._stated.specificity)
        with np.errstate(divide="ignore", invalid="ignore"):
            measured |= {"brier": squares / images} | self._recalibration.draws(np.stack(rest[:7]))
            measured["net_benefit"] = net_benefit(rest[7], rest[8], images, self._stated.risk)
            for number in range(len(self._thresholds)):
                true, false = rest[9 + 2 * number : 11 + 2 * number]
                rates = true / positives, 1 - false / (images - positives)
                named = (*rates, *predictive_values(*rates, self._stated.prevalence))
                names = ("sensitivity", "specificity", "ppv", "npv")
                measured |= {f"{name}@{number}": value for name, value in zip(names, named, strict=True)}
        return measured
