"""What is examined at the door before anything trains: lists of small classes, to which a new one is added.

What may be wrong is found once and said in words. Inside, nothing is looked at again; what only a round shows is watched by
the classes of ``IN_ROUNDS``.
"""

from lightning.pytorch import LightningModule

from fedlit.core.attributes import AttributeWatch
from fedlit.federation.examinations.copies import FunctionsOfTheModule, Iterators, SharedMemory
from fedlit.federation.examinations.data import OF_DATA, check_clients
from fedlit.federation.examinations.examination import Examination, check
from fedlit.federation.examinations.machine import Compiler, Recorded, Recording
from fedlit.federation.examinations.modules import (
    AutomaticOptimization,
    BuffersOfOneType,
    Hooks,
    HooksOfParameters,
    HooksOfSteps,
    IsModule,
    LazyLayers,
    Steps,
    Trained,
)
from fedlit.federation.examinations.optimizer import ElementwiseOptimizer
from fedlit.federation.standstill import Standstill

OF_MODULES: tuple[Examination[LightningModule], ...] = (
    IsModule(),
    AutomaticOptimization(),
    Steps(),
    Hooks(),
    LazyLayers(),
    HooksOfParameters(),
    FunctionsOfTheModule(),
    Iterators(),
    BuffersOfOneType(),
    SharedMemory(),
)
"""What a module is examined for, in order; each may assume what those before it have found to be right."""

OF_ALGORITHMS: tuple[Examination[Trained], ...] = (HooksOfSteps(),)
"""What a module is examined for together with its algorithms."""

OF_OPTIMIZERS: tuple[Examination[LightningModule], ...] = (ElementwiseOptimizer(),)
"""What its optimizer is examined for, where it is not torch's own."""

OF_MACHINES = (Recording(), Compiler())
"""What a machine is examined for, where the settings ask for it."""

IN_ROUNDS = (AttributeWatch, Standstill)
"""What watches rounds: a mistake that shows only there ends the run."""

EVERY = (*OF_MODULES, *OF_ALGORITHMS, *OF_OPTIMIZERS, *OF_DATA, *OF_MACHINES, *IN_ROUNDS)
"""All of them, each with a name and advice."""

__all__ = [
    "EVERY", "IN_ROUNDS", "OF_ALGORITHMS", "OF_DATA", "OF_MACHINES", "OF_MODULES", "OF_OPTIMIZERS", "Compiler", "Examination", "Recorded", "Recording", "Trained",
    "check", "check_clients",
]  # fmt: skip
