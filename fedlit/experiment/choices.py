"""Extension points and their built-in classes, which a YAML names by short names and which are imported on demand."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from inspect import Parameter, isabstract, signature


@dataclass(frozen=True)
class ExtensionPoint:
    """A kind of class that a user can choose."""

    base: str  # Path of the base class.
    home: str  # Module that exports the built-in classes.
    kind: str  # Name of an instance, with its article.

    @property
    def base_class(self) -> type:
        """The base class."""
        module, _, name = self.base.rpartition(".")
        return getattr(import_module(module), name)


AXES = {
    "aggregators": ExtensionPoint("fedlit.aggregators.Aggregator", "fedlit.aggregators", "an aggregator"),
    "data": ExtensionPoint("fedlit.data.FederatedDataModule", "fedlit.data", "a data set"),
    "partitions": ExtensionPoint("fedlit.data.Partition", "fedlit.data", "a partition"),
    "schedules": ExtensionPoint("fedlit.schedules.Schedule", "fedlit.schedules", "a schedule"),
    "participations": ExtensionPoint(
        "fedlit.federation.participation.Participation", "fedlit.federation.participation", "a participation plan"
    ),
    "models": ExtensionPoint("lightning.pytorch.LightningModule", "fedlit.models", "a model"),
    "objectives": ExtensionPoint("torch.nn.Module", "fedlit.objectives", "an objective"),
    "trackers": ExtensionPoint("fedlit.tracking.Tracker", "fedlit.tracking", "a tracker"),
}
"""The extension points by name. All of their built-in classes have short names in a YAML."""


def shipped(axis: str) -> list[type]:
    """Return the built-in classes of an extension point, ordered by name."""
    home, base = import_module(AXES[axis].home), AXES[axis].base_class
    exported = {name: getattr(home, name) for name in dir(home)}
    classes = {c for c in _subclasses(base) if exported.get(c.__name__) is c and c is not base and not isabstract(c)}
    return sorted(classes, key=lambda c: c.__name__)


def mistaken(name: str, key: str) -> str:
    """Return an explanation if a built-in class is named for a key that takes another kind of class, or ""."""
    kind = next((AXES[axis].kind for axis in AXES for cls in shipped(axis) if cls.__name__ == name), "")
    last = key.rpartition(".")[2]
    meant = (axis for axis in AXES if last in (axis, axis.removesuffix("s")) or (last, axis) == ("logger", "trackers"))
    wanted = next(meant, "")
    others = [cls.__name__ for cls in shipped(wanted)] if wanted else []
    takes = f"; {key} takes {AXES[wanted].kind}: {', '.join(others[:8])}{' ...' * (len(others) > 8)}" if others else ""
    return f"{name} is {kind}{takes}" if kind and name not in others else ""


def takers_of(owner: type, arguments: Sequence[str]) -> str:
    """Return a hint at the classes with an argument that was given without a class, or ""."""
    axis = next((name for name, axis in AXES.items() if axis.base_class is owner), "")
    for argument in arguments if axis else ():
        takers = [cls.__name__ for cls in shipped(axis) if argument in signature(cls).parameters]
        if takers:
            return f"; {argument!r} is an argument of {', '.join(takers)}: name one of them"
    return ""


def short_names() -> list[str]:
    """Return all short names that a YAML may use for a class."""
    from torch.optim import Optimizer

    built_in = [cls.__name__ for axis in AXES for cls in shipped(axis)]
    return built_in + sorted(cls.__name__ for cls in _subclasses(Optimizer) if cls.__module__.startswith("torch.optim"))


def constructor_arguments(cls: type) -> list[str]:
    """Return the arguments of a class, including those of its bases if it passes them on."""
    names: dict[str, None] = {}
    for each in cls.__mro__[:-1]:
        try:
            parameters = signature(each.__init__).parameters
        except (TypeError, ValueError):  # a class that is not written in Python
            break
        variadic = (Parameter.VAR_KEYWORD, Parameter.VAR_POSITIONAL)
        names |= dict.fromkeys(n for n, p in parameters.items() if n != "self" and p.kind not in variadic)
        if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            break
    return list(names)


def _subclasses(base: type) -> set[type]:
    return {base}.union(*map(_subclasses, base.__subclasses__()))
