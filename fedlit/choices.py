"""What can be chosen by a short name: the parts that ship, and the names of classes of five data sets."""

import importlib
from inspect import isabstract

from lightning.pytorch import LightningModule
from rich import box
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.optim import Optimizer

from fedlit.aggregators import Aggregator
from fedlit.data import FederatedDataModule, Partition
from fedlit.data.labels import harmonised
from fedlit.schedules import Schedule
from fedlit.tracking.base import Tracker

AXES: dict[str, tuple[type, str]] = {
    "aggregators": (Aggregator, "fedlit.aggregators"),
    "data": (FederatedDataModule, "fedlit.data"),
    "partitions": (Partition, "fedlit.data"),
    "schedules": (Schedule, "fedlit.schedules"),
    "models": (LightningModule, "fedlit.models"),
    "objectives": (nn.Module, "fedlit.objectives"),
    "trackers": (Tracker, "fedlit.tracking"),
}
"""What can be chosen: the base class, and where those that ship live. All of them have short names in a YAML."""


def list_shipped(console: Console) -> None:
    """Print what ships, a line each; a terminal gets no more than fits."""
    for axis in AXES:
        console.print(f"[bold]{axis}")
        for cls in shipped(axis):
            summary = (cls.__doc__ or "").strip().partition("\n")[0].replace("``", "")
            line = f"  {cls.__name__:<22}{summary}"
            if console.is_terminal:
                console.print(line, markup=False, no_wrap=True, overflow="ellipsis")
            else:
                console.print(line, markup=False, soft_wrap=True)


def list_labels(console: Console) -> None:
    """Print the harmonised labels: a row a class, a column a data set."""
    sources = list(dict.fromkeys(source for called in harmonised().values() for source in called))
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for column in ("class", *sources):
        table.add_column(column, overflow="fold")  # a name is never cut
    for name, called in harmonised().items():
        table.add_row(name, *(_called(called.get(source, "-")) for source in sources))
    console.print(table)


def shipped(axis: str) -> list[type]:
    """fedlit's own choices on an axis."""
    base, home = AXES[axis]
    exported = vars(importlib.import_module(home))
    bases = [b for b, _ in AXES.values()]
    found = {c for c in _subclasses(base) if exported.get(c.__name__) is c and c not in bases and not isabstract(c)}
    return sorted(found, key=lambda c: c.__name__)


def short_names() -> list[str]:
    """Every name that a YAML may use for a class."""
    ours = [cls.__name__ for axis in AXES for cls in shipped(axis)]
    return ours + sorted(cls.__name__ for cls in _subclasses(Optimizer) if cls.__module__.startswith("torch.optim"))


def _called(label: str | dict[str, list[str]]) -> str:
    if isinstance(label, str):
        return label
    ((rule, several),) = label.items()
    return f"{rule} of {', '.join(several)}"


def _subclasses(base: type) -> set[type]:
    return {base}.union(*map(_subclasses, base.__subclasses__()))
