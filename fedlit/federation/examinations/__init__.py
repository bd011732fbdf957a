"""Checks that run on input before training, as lists of small classes.

The rest of the package relies on these checks and does not repeat them. Problems that only show during a round are
detected by the classes of ``IN_ROUNDS``.
"""

from lightning.pytorch import LightningModule

from fedlit.federation.examinations.attributes import AttributeWatch
from fedlit.federation.examinations.copies import FunctionsOfTheModule, Iterators, SharedMemory
from fedlit.federation.examinations.data import OF_DATA, examine_clients
from fedlit.federation.examinations.examination import Examination, examine
from fedlit.federation.examinations.machine import Compiler
from fedlit.federation.examinations.modules import (
    AutomaticOptimization,
    BuffersOfOneType,
    Hooks,
    HooksOfParameters,
    HooksOfSteps,
    IsModule,
    LazyLayers,
    NewOptimizer,
    RequiredMethods,
)
from fedlit.federation.stalled import StalledTraining

OF_MODULES: tuple[Examination[LightningModule], ...] = (
    IsModule(),
    AutomaticOptimization(),
    RequiredMethods(),
    Hooks(),
    LazyLayers(),
    HooksOfParameters(),
    FunctionsOfTheModule(),
    Iterators(),
    BuffersOfOneType(),
    SharedMemory(),
)
"""Checks of a module, in order; each may rely on the checks before it."""

IN_ROUNDS = (AttributeWatch, StalledTraining)
"""Checks during rounds, for mistakes that do not show before; a problem ends the run."""

EVERY = (
    *OF_MODULES, HooksOfSteps(), NewOptimizer(), *OF_DATA, Compiler(), *IN_ROUNDS,
)  # fmt: skip
"""All checks, each with a name and advice."""

__all__ = [
    "EVERY", "OF_MODULES", "Compiler", "Examination", "HooksOfSteps", "NewOptimizer", "examine", "examine_clients",
]  # fmt: skip
