"""Checks that run on input before training, as lists of small classes.

The rest of the package relies on these checks and does not repeat them. :class:`Behaviour` trains a few steps; problems
that only show over rounds are detected by :class:`StalledTraining`.
"""

from lightning.pytorch import LightningModule

from fedlit.federation.examinations.data import OF_DATA, KnownLabels, Learners, examine_clients
from fedlit.federation.examinations.examination import Examination, examine
from fedlit.federation.examinations.modules import (
    AutomaticOptimization,
    BuffersOfOneType,
    Compiler,
    Hooks,
    HooksOfParameters,
    HooksOfSteps,
    IsModule,
    LazyLayers,
    NewOptimizer,
    RequiredMethods,
    StalledTraining,
)
from fedlit.federation.examinations.privacy import NothingElseReadsImages, PrivateRun
from fedlit.federation.examinations.probe import Behaviour, Trial

OF_MODULES: tuple[Examination[LightningModule], ...] = (
    IsModule(),
    AutomaticOptimization(),
    RequiredMethods(),
    Hooks(),
    LazyLayers(),
    HooksOfParameters(),
    BuffersOfOneType(),
)
"""Checks of a module, in order; each may rely on the checks before it."""

EVERY = (
    *OF_MODULES, HooksOfSteps(), NewOptimizer(), *OF_DATA, Behaviour(), KnownLabels(), Compiler(),
    NothingElseReadsImages(), StalledTraining,
)  # fmt: skip
"""All checks, each with a name and advice."""

__all__ = [
    "EVERY", "OF_MODULES", "Behaviour", "Compiler", "Examination", "HooksOfSteps", "KnownLabels", "Learners",
    "NewOptimizer", "NothingElseReadsImages", "PrivateRun", "StalledTraining", "Trial", "examine", "examine_clients",
]  # fmt: skip
