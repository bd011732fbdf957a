from fedlit import (
    aggregators as aggregators,
    data as data,
    errors as errors,
    models as models,
    objectives as objectives,
    schedules as schedules,
    testing as testing,
)
from fedlit.experiment.api import fit as fit

__version__: str
