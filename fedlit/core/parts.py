"""The attributes by which a module declares its parts."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

from fedlit.core.errors import ConfigError


@dataclass(frozen=True)
class Parts:
    """Parts of a module that a federation finds by their attribute names; a module may lack any of them.

    ``ImageClassifier`` has all of them. Your own module declares its parts as attributes, or properties, of these
    names. In addition, any submodule may declare ``dual_parameters`` and ``per_class_parameters``: names of its own
    parameters that are maximised over, or that have one row per class.

    Attributes:
        classes: Names of the classes, in the order of the head's rows and of the scores' columns; () without scores.
        head: The last layers, whose rows belong to classes; all other layers are the body.
        objective: The loss, called with (logits [B, C], labels [B, C]).
        fixed_features: The layers that map images to features and are not trained; the forward pass then takes features
            too.
        random_features: Whether these layers still have the weights with which they were drawn.
        train_only: Called with ``head`` or ``all``: freezes the rest, or nothing.
        any_memory_format: Whether it computes on images of any memory format, that is, never calls ``view`` on the
            output of a convolution.
    """

    classes: tuple[str, ...] = ()
    head: nn.Module | None = None
    objective: nn.Module | None = None
    fixed_features: nn.Module | None = None
    random_features: bool = False
    train_only: Callable[[str], None] | None = None
    any_memory_format: bool = False

    @classmethod
    def of(cls, module: nn.Module) -> "Parts":
        """Read the parts of a module; an attribute that is not a module is ignored."""

        def layers(name: str) -> nn.Module | None:
            part = getattr(module, name, None)
            return part if isinstance(part, nn.Module) else None

        return cls(
            class_names(f"{type(module).__name__}.classes", getattr(module, "classes", ())),
            layers("head"),
            layers("objective"),
            layers("fixed_features"),
            random_features=getattr(module, "random_features", False) is True,
            train_only=getattr(module, "train_only", None),
            any_memory_format=getattr(module, "any_memory_format", False) is True,
        )


def class_names(where: str, classes: Any) -> tuple[str, ...]:
    """Return names of classes as a tuple; an error begins with their place, ``where``.

    Raises:
        ConfigError: They are not names, or not all different.
    """
    wrong = f"{where}: expected different names in a tuple, found"
    if isinstance(classes, str) or not isinstance(classes, Iterable):
        raise ConfigError(f"{wrong} {classes!r:.60}")
    names = tuple(str(name) if isinstance(name, str) else name for name in classes)  # a NumPy text is a str
    for name in names:
        if not isinstance(name, str) or names.count(name) > 1:
            raise ConfigError(f"{wrong} {name!r}{' twice' if isinstance(name, str) else ''}")
    return names
