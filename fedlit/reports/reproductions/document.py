"""Documents of reproductions: YAML files with the plans and the report of each scale.

`docs/extending.md` describes the keys. A document may name another document as its ``base`` and then contains only the
differences.
"""

from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from fedlit.core.errors import ConfigError
from fedlit.core.system import documents
from fedlit.core.system.argument_types import check_arguments
from fedlit.core.system.shipped import CONFIGS, patched
from fedlit.experiment.mistakes import near
from fedlit.reports.reproductions import NAMES

T = TypeVar("T")

SCALES = ("laptop", "paper")
"""Scales, of which a document has at least one; those of the package have both."""

LINKED = "linked"
"""The scale of the code that a paper links, if it differs: its keys override those of the scale ``paper``."""


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


@dataclass(frozen=True)
class Scale:
    """A reproduction at one scale."""

    data: str  # Data behind our results, as text.
    time: str  # Time that it takes, and on which machine, as text.
    # ``make``, the name of a function of ``tables.py`` (by default ``make``), and its arguments.
    report: dict[str, Any] = field(default_factory=dict)
    # YAML files of sweeps and tunings, in the folder of the document. Their runs are those of the scale.
    plans: list[str] = field(default_factory=list)
    # Values of the grids of plans that run, by label; all of other labels.
    only: dict[str, list[Any]] = field(default_factory=dict)
    root: str | None = None  # Folder that ``--root`` must name, as text; None if the data are built in.
    # Published number of images by source: gives the steps of an epoch if the data are missing.
    images: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Document:
    """A paper's figure or table."""

    name: str  # Name on the command line.
    shows: str  # Description in one line.
    scales: dict[str, Scale]  # The scales: ``laptop``, ``paper`` or both, and ``linked`` if the paper's code differs.
    place: Place  # Location of the document, for messages.
    # Tables of the paper that are printed below ours, from ``published.json`` in the folder of the document.
    tables: list[str] = field(default_factory=list)
    # Variables that the processes of the runs start with, such as those that choose a processor's instructions.
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def homes(self) -> list[Path]:
        """Folders of the document and of its bases, its own first, in which files that it names are searched."""
        return [file.parent for file, _ in reversed(self.place.layers)]

    def file(self, name: str) -> Path:
        """Return the path of a file that the document names, such as a plan.

        Raises:
            ConfigError: No such file exists.
        """
        files = [home / name for home in dict.fromkeys(self.homes)]
        file = next((file for file in files if file.is_file()), None)
        if file is None:
            raise self.place.error(f"expected a file {' or '.join(map(str, files))}, found none; correct its name")
        return file


def find(name: str) -> Path:
    """Return the file of a reproduction: one that comes with fedlit by name, or a YAML document by path.

    Raises:
        ConfigError: The reproduction does not exist.
    """
    if name.endswith((".yaml", ".yml")):
        return Path(name)
    if name not in NAMES:
        hint = near(name, NAMES) or f"; expected {', '.join(NAMES)}, or a document of yours such as my_table.yaml"
        raise ConfigError(f"reproduce: there is no {name!r}{hint}")
    return next(CONFIGS.glob(f"*/{name}.yaml"))


def read_document(file: Path) -> Document:
    """Read a document.

    Raises:
        ConfigError: A key is unknown or missing, or a value has another type; names file and key.
    """
    layers = _layers(file, ())
    whole: dict[str, Any] = {}
    for _, layer in layers:
        whole = patched(whole, {key: value for key, value in layer.items() if key != "base"})
    place = Place(layers)
    of_document = {each.name for each in fields(Document)} - {"name", "place"}
    known = of_document | {each.name for each in fields(Scale)}
    for key in whole.keys() - known:
        raise place.below(key).error(f"there is no such key{near(str(key), known)}")
    common = {key: value for key, value in whole.items() if key not in of_document}
    written = place.below("scales").mapping(whole.get("scales", {}))
    if not written.keys() & set(SCALES) or written.keys() - {*SCALES, LINKED}:
        raise place.below("scales").error(
            f"expected {' or '.join(SCALES)}, and {LINKED} with paper, found {', '.join(map(str, written)) or 'none'}"
        )
    if LINKED in written and "paper" not in written:
        raise place.below("scales", LINKED).error("expected a scale paper, which it overrides; add one, or rename this")
    scales = {}
    for name in (each for each in (*SCALES, LINKED) if each in written):
        where = place.below("scales", name)
        base = patched(common, written["paper"]) if name == LINKED else common
        scales[name] = where.checked(Scale, patched(base, where.mapping(written[name])))
    head = {key: value for key, value in whole.items() if key in of_document}
    return place.checked(Document, head, name=file.stem, scales=scales, place=place)


def _layers(file: Path, derived: tuple[Path, ...]) -> tuple[tuple[Path, dict], ...]:
    """Return a document and its bases, the base first; ``derived`` are the documents of which it is the base."""
    try:
        layer = documents.load(file)
    except OSError as error:
        of = f", the base of {derived[-1]}" if derived else ""
        raise ConfigError(f"{file}: expected a YAML document{of}; it cannot be read: {error.strerror}") from error
    place = Place(((file, layer),))
    derived = (*derived, file.resolve())
    if "base" not in place.mapping(layer):
        return ((file, layer),)
    if not isinstance(layer["base"], str):
        raise place.below("base").error(f"expected the path of a document, found {layer['base']!r}")
    base = file.parent / layer["base"]
    if base.resolve() in derived:
        raise place.below("base").error(f"expected another document, found {base}, whose base this is; remove one")
    return (*_layers(base, derived), (file, layer))
