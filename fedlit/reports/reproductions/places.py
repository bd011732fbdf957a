"""Places of keys in the documents of reproductions: checks of what stands there, and errors that name file and key."""

from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from fedlit.core.errors import ConfigError
from fedlit.core.system.argument_types import check_arguments
from fedlit.experiment.mistakes import near

T = TypeVar("T")


@dataclass(frozen=True)
class Place:
    """Location of keys in a document."""

    layers: tuple[tuple[Path, dict], ...]  # Files and their content, the base first.
    keys: tuple[str, ...] = ()  # Keys that lead to the location.

    def below(self, *keys: str) -> "Place":
        """Return a place below this one."""
        return replace(self, keys=(*self.keys, *keys))

    def __str__(self) -> str:
        """Return the key and the last file that has it, in a scale or above the scales."""
        above = self.keys[2:] if self.keys[:1] == ("scales",) else self.keys
        places = [(file, keys) for file, layer in self.layers for keys in (above, self.keys) if _has(layer, keys)]
        file, keys = places[-1] if places else (self.layers[-1][0], self.keys)
        return f"{file}: {'.'.join(map(str, keys)) or 'document'}"

    def error(self, message: str) -> ConfigError:
        """Return an error that names the place."""
        return ConfigError(f"{self}: {message}")

    def mapping(self, value: Any) -> dict:
        """Return the value if it is a mapping, else raise a ConfigError."""
        if not isinstance(value, dict):
            raise self.error(f"expected keys and values, found {value!r}")
        return value

    def checked(self, kind: type[T], keys: Any, **others: Any) -> T:
        """Make a dataclass from the keys of the document and from fields that the caller has made (``others``).

        Raises:
            ConfigError: A key is unknown or missing, or its value has another type than the field.
        """
        every = {each.name: each for each in fields(kind) if each.init}
        for key in self.mapping(keys):
            if key not in every:
                hint = near(str(key), every) or f"; expected {', '.join(every)}"
                raise self.below(key).error(f"there is no such key{hint}")
            if key not in others:
                check_arguments(kind.__init__, {key: keys[key]}, str(self.below(key)).removesuffix(key))
        optional = {n for n, each in every.items() if (each.default, each.default_factory) != (MISSING, MISSING)}
        required = [name for name in every if name not in optional | others.keys()]
        if missing := [name for name in required if name not in keys]:
            found = " and no ".join(missing)
            raise self.error(f"expected the keys {', '.join(required)}, found no {found}; add the missing ones")
        return kind(**keys | others)


def _has(layer: Any, keys: tuple[str, ...]) -> bool:
    for key in keys:
        if not isinstance(layer, dict) or key not in layer:
            return False
        layer = layer[key]
    return True
