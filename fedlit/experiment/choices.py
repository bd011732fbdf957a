"""What can be chosen by a short name: the parts that ship. They are imported when they are asked for."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from inspect import isabstract, signature


@dataclass(frozen=True)
class Axis:
    """A kind of part that can be chosen.

    Attributes:
        base: Path of the class that all of them derive from.
        home: Module that exports those that ship.
        kind: What one of them is called.
    """

    base: str
    home: str
    kind: str

    @property
    def base_class(self) -> type:
        """The class that all of them derive from."""
        module, _, name = self.base.rpartition(".")
        return getattr(import_module(module), name)


AXES = {
    "aggregators": Axis("fedlit.aggregators.Aggregator", "fedlit.aggregators", "an aggregator"),
    "data": Axis("fedlit.data.FederatedDataModule", "fedlit.data", "a data set"),
    "partitions": Axis("fedlit.data.Partition", "fedlit.data", "a partition"),
    "schedules": Axis("fedlit.schedules.Schedule", "fedlit.schedules", "a schedule"),
    "models": Axis("lightning.pytorch.LightningModule", "fedlit.models", "a model"),
    "objectives": Axis("torch.nn.Module", "fedlit.objectives", "an objective"),
    "trackers": Axis("fedlit.tracking.Tracker", "fedlit.tracking", "a tracker"),
}
"""What can be chosen. All classes that ship have short names in a YAML."""


def shipped(axis: str) -> list[type]:
    """Return the classes of an axis that ship, by name."""
    home, bases = import_module(AXES[axis].home), [each.base_class for each in AXES.values()]
    exported = {name: getattr(home, name) for name in dir(home)}
    derived = _subclasses(AXES[axis].base_class)
    classes = {c for c in derived if exported.get(c.__name__) is c and c not in bases and not isabstract(c)}
    return sorted(classes, key=lambda c: c.__name__)


def mistaken(name: str, key: str) -> str:
    """Say what a class that ships is, where a key takes another kind; "" where the name is none that ships."""
    kind = next((AXES[axis].kind for axis in AXES for cls in shipped(axis) if cls.__name__ == name), "")
    last = key.rpartition(".")[2]
    wanted = next(
        (axis for axis in AXES if last in (axis, axis.removesuffix("s")) or (last, axis) == ("logger", "trackers")), ""
    )
    others = [cls.__name__ for cls in shipped(wanted)] if wanted else []
    takes = f"; {key} takes {AXES[wanted].kind}: {', '.join(others[:8])}{' ...' * (len(others) > 8)}" if others else ""
    return f"{name} is {kind}{takes}" if kind and name not in others else ""


def takers_of(owner: str, arguments: Sequence[str]) -> str:
    """Name the classes that take an argument which was given without a class; "" where the owner is no base class."""
    axis = next((name for name, axis in AXES.items() if axis.base.rpartition(".")[2] == owner.rpartition(".")[2]), "")
    for argument in arguments if axis else ():
        takers = [cls.__name__ for cls in shipped(axis) if argument in signature(cls).parameters]
        if takers:
            return f"; {argument!r} is taken by {', '.join(takers)}: name one of them"
    return ""


def short_names() -> list[str]:
    """Return every name that a YAML may use for a class."""
    from torch.optim import Optimizer

    ours = [cls.__name__ for axis in AXES for cls in shipped(axis)]
    return ours + sorted(cls.__name__ for cls in _subclasses(Optimizer) if cls.__module__.startswith("torch.optim"))


def _subclasses(base: type) -> set[type]:
    return {base}.union(*map(_subclasses, base.__subclasses__()))
