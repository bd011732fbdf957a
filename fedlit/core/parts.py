"""What a module may say of itself by the names of its attributes."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

from fedlit.core.errors import ConfigError


@dataclass(frozen=True)
class Parts:
    """The parts of a module that a federation knows by name; a module may lack any of them.

    ``ImageClassifier`` has all of them. A module of one's own declares what it has as attributes, or properties, of these
    names. Beside them any submodule may declare ``dual_parameters`` and ``per_class_parameters``, names of its own
    parameters that are maximised over, or have one row a class.

    Attributes:
        classes: Names of the classes, in the order of the head's rows and of the scores' columns; () without scores.
        head: The last layers, whose rows belong to classes; all other layers are the body.
        objective: The loss, called with (logits [B, C], labels [B, C]).
        fixed_features: What maps images to features and is not trained; then the forward pass takes features too.
        train_only: Called with ``head`` or ``all``: freezes the rest, or nothing.
        any_memory_format: Whether it computes on images of any memory format: nothing in it calls ``view`` on what a
            convolution returns.
    """

    classes: tuple[str, ...] = ()
    head: nn.Module | None = None
    objective: nn.Module | None = None
    fixed_features: nn.Module | None = None
    train_only: Callable[[str], None] | None = None
    any_memory_format: bool = False

    @classmethod
    def of(cls, module: nn.Module) -> "Parts":
        """Read the parts off a module; an attribute that is no module is no part.

        Raises:
            ConfigError: ``classes`` are no names, or not all different.
        """

        def layers(name: str) -> nn.Module | None:
            part = getattr(module, name, None)
            return part if isinstance(part, nn.Module) else None

        return cls(
            class_names(f"{type(module).__name__}.classes", getattr(module, "classes", ())),
            layers("head"),
            layers("objective"),
            layers("fixed_features"),
            getattr(module, "train_only", None),
            getattr(module, "any_memory_format", False) is True,
        )


def class_names(where: str, classes: Any) -> tuple[str, ...]:
    """Give names of classes as a tuple.

    Args:
        where: What has them, for the error.
        classes: The names, in their order.

    Raises:
        ConfigError: They are no names, or not all different.
    """
    found = f"{where}: expected different names in a tuple, found"
    if isinstance(classes, str) or not isinstance(classes, Iterable):
        raise ConfigError(f"{found} {classes!r:.60}")
    names = tuple(classes)
    for name in names:
        if not isinstance(name, str) or names.count(name) > 1:
            raise ConfigError(f"{found} {name!r}{' twice' if isinstance(name, str) else ''}")
    return names
