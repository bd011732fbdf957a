"""Documents of reproductions: YAML files with the runs, tables and figures of each scale.

`CONTRIBUTING.md` describes the keys. A document may name another document as its ``base`` and then contains only the
differences.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from fedlit.core.errors import ConfigError
from fedlit.core.system import documents
from fedlit.core.system.layers import patched
from fedlit.core.system.shipped import CONFIGS
from fedlit.experiment.mistakes import near
from fedlit.reports.reproductions import NAMES
from fedlit.reports.reproductions.places import Place
from fedlit.tracking.names import TEST

SCALES = ("laptop", "paper")
"""Scales, of which a document has at least one; those of the package have both."""

LINKED = "linked"
"""The scale of the code that a paper links, if it differs: its keys override those of the scale ``paper``."""


@dataclass(frozen=True)
class Case:
    """One configuration of a part, which runs with every seed."""

    keys: dict[str, Any]  # Keys of the configuration.
    # Its labels in tables, such as its method and its window; columns of the table of runs.
    labels: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SweepPart:
    """One sweep: a federation, and runs that differ in a few keys."""

    experiment: str  # Experiment of the runs. Reproductions that name the same experiment share its runs.
    config: str  # YAML file of the federation, in the paper's folder.
    cases: dict[str, Case] = field(default_factory=dict)  # Cases by name. Without cases there is one run per seed.
    title: str = ""  # Name of the federation in tables and figures.
    settings: dict[str, Any] = field(default_factory=dict)  # Keys of all cases, in addition to those of the YAML file.
    body: "SweepPart | None" = None  # Part with one run, from whose weights all runs start.
    # Keys of ``data``, and the path below ``--root`` that each of them names.
    roots: dict[str, str] = field(default_factory=dict)
    seeds: list[int] | None = None  # Seeds instead of the reproduction's.
    may_fail: bool = False  # Whether to leave out runs that fail, such as those of a rate that diverges.
    metric: str = "test/federation/auroc_macro"  # Metric that is shown when a run ends.
    grid: str = ""  # Experiment of the runs that choose rates, without the name of the method.

    def chooses(self, label: str) -> list[Any]:
        """Return the values of a label among the cases, in order."""
        return list(dict.fromkeys(case.labels[label] for case in self.cases.values()))


@dataclass(frozen=True)
class CaseGrid:
    """Cases of a part that are written together: one for every combination of the labels' values."""

    # Values by label. Each value of a list brings the keys that ``values`` has for it; a single value brings none.
    labels: dict[str, Any]
    name: str = ""  # Name of the cases, with labels in braces. By default it is the key of the block.
    keys: dict[str, Any] = field(default_factory=dict)  # Keys of all these cases.
    leave_out: list[str] = field(default_factory=list)  # Names of combinations that are not run.


@dataclass(frozen=True)
class Axis:
    """A setting that is tried in addition to the rate."""

    title: str  # Name of the setting in tables, such as ``T0``.
    key: str  # Key of the setting in the configuration.
    values: list[float]  # Values that are tried.
    only: list[Any] | None = None  # Values of the label that have the setting; by default all.


@dataclass(frozen=True)
class Rates:
    """The choice of a method's rate: the best of a grid in validation, with a seed that the table does not have.

    With ``others`` it is the best combination of a rate and of the other settings.
    """

    key: str  # Key of the rate in the configuration.
    grid: list[float]  # Rates that are tried with every method.
    divided_by: dict[str, float]  # Number by which a method's rates are divided, by method.
    seed: int  # Seed of the runs that are tried.
    settings: dict[str, Any]  # Keys of the runs that are tried.
    metric: str  # Validation metric of the best model, by which the rate is chosen.
    text: str  # Text of the report; ``{rates}``, ``{tries}`` and ``{chosen}`` are replaced.
    label: str = "method"  # Label; each of its values gets its own choice.
    others: dict[str, Axis] = field(default_factory=dict, metadata={"each": Axis})  # Further settings by name.
    tries: int | None = None  # Number of combinations for each, drawn with ``seed``; by default all.

    def __post_init__(self) -> None:
        if self.metric.startswith(TEST):
            raise ConfigError(
                "rates.metric: expected a metric of the validation data, such as val/auroc_macro, "
                f"found {self.metric!r}: the test set may not choose a rate"
            )

    @property
    def constants(self) -> set[str]:
        """Keys of the rate and of the algorithm's constants: a step takes the same time with any of their values."""
        return {
            self.key,
            *(axis.key for axis in self.others.values() if axis.key.startswith("federation.aggregators.")),
        }


@dataclass(frozen=True)
class Scale:
    """A reproduction at one scale."""

    data: str  # Data behind our results, as text.
    time: str  # Time that it takes, and on which machine, as text.
    parts: dict[str, SweepPart]  # Sweeps by name.
    # Kind of the report, and the fields of that kind; with plans ``make``, the name of a function of ``tables.py`` (by
    # default ``make``), and its arguments.
    report: dict[str, Any] = field(default_factory=dict)
    # YAML files of sweeps and tunings, in the folder of the document. Their runs are those of the scale.
    plans: list[str] = field(default_factory=list)
    root: str | None = None  # Folder that ``--root`` must name, as text; None if the data are built in.
    settings: dict[str, Any] = field(default_factory=dict)  # Keys of the runs of all parts, but not of their bodies.
    # For each label, the keys that each of its values brings, or the one key that takes the value. The table of runs
    # has the labels in this order.
    values: dict[str, str | dict[Any, dict[str, Any]]] = field(default_factory=dict)
    rates: Rates | None = None  # Choice of rates; None if the parts have them.
    # Published number of images by source: gives the steps of an epoch if the data are missing.
    images: dict[str, int] = field(default_factory=dict)

    def keys(self, label: str, value: Any) -> dict[str, Any]:
        """Return the keys that a label's value brings.

        Raises:
            KeyError: ``values`` does not have this label, or the label does not have this value.
        """
        of_label = self.values[label]
        return {of_label: value} if isinstance(of_label, str) else of_label[value]


@dataclass(frozen=True)
class Document:
    """A paper's figure or table."""

    name: str  # Name on the command line.
    shows: str  # Description in one line.
    scales: dict[str, Scale]  # The scales: ``laptop``, ``paper`` or both, and ``linked`` if the paper's code differs.
    place: Place  # Location of the document, for messages.
    # Tables of the paper that are printed below ours, from ``published.json`` in the folder of the document.
    tables: list[str] = field(default_factory=list)
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])  # Seeds if the user names none.

    @property
    def homes(self) -> list[Path]:
        """Folders of the document and of its bases, its own first, in which files that it names are searched."""
        return [file.parent for file, _ in reversed(self.place.layers)]

    def file(self, name: str) -> Path:
        """Return the path of a file that the document names, such as the configuration of a part.

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
        ConfigError: A key is unknown or missing, or a case names an unknown value; names file and key.
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
        scales[name] = _scale(where, patched(base, where.mapping(written[name])))
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


def _scale(place: Place, keys: dict[str, Any]) -> Scale:
    rates = None
    if "rates" in keys:
        where = place.below("rates")
        rates = where.checked(Rates, {"others": {}} | where.mapping(keys["rates"]))
    scale = place.checked(Scale, keys | {"parts": {}}, rates=rates)
    for label, of_label in scale.values.items():
        where = place.below("values", label)
        for value in () if isinstance(of_label, str) else where.mapping(of_label):
            where.below(value).mapping(of_label[value])
    parts = {
        name: _part(place.below("parts", name), name, part, scale)
        for name, part in place.below("parts").mapping(keys.get("parts", {})).items()
    }
    return replace(scale, parts=parts)


def _part(place: Place, name: str, keys: Any, scale: Scale) -> SweepPart:
    keys = {"experiment": name} | place.mapping(keys)
    settings = place.below("settings").mapping(keys.get("settings", {}))
    made: dict[str, Any] = {"settings": scale.settings | settings, "cases": {}}
    if "body" in keys:
        made["body"] = _part(place.below("body"), f"{name}-body", keys["body"], replace(scale, settings={}))
    for block, written in place.below("cases").mapping(keys.get("cases", {})).items():
        where = place.below("cases", block)
        for case, other in _cases(where, block, where.checked(CaseGrid, written), scale):
            if made["cases"].setdefault(case, other) != other:
                raise where.error(f"two cases are named {case}; put the labels that differ into their names")
    return place.checked(SweepPart, keys, **made)


def _cases(place: Place, name: str, block: CaseGrid, scale: Scale) -> Iterator[tuple[str, Case]]:
    axes = []
    for label, values in block.labels.items():
        where, several = place.below("labels", label), isinstance(values, list)
        for value in values if several else [values]:
            if isinstance(value, (list, dict)):
                raise where.error(f"expected a value or a list of values, found {value}")
        try:
            axes.append([(label, v, scale.keys(label, v)) for v in values] if several else [(label, values, {})])
        except KeyError as error:
            raise where.error(f"values has no {error.args[0]!r} for it") from error
    names = set()
    for combination in itertools.product(*axes):
        chosen = {label: value for label, value, _ in combination}
        labels = {label: chosen[label] for label in (*scale.values, *chosen) if label in chosen}
        case = place.filled(block.name or name, {label: word(value) for label, value in labels.items()})
        names.add(case)
        if case not in block.leave_out:
            keys = {key: value for *_, keys in combination for key, value in keys.items()}
            yield case, Case(keys | block.keys, labels)
    if unknown := [case for case in block.leave_out if case not in names]:
        raise place.below("leave_out").error(f"expected names among {', '.join(names)}, found {unknown[0]!r}")


def word(value: object) -> str:
    """Return a label's value for names of cases: ``p = 4`` is ``p4``, ``CODA+`` is ``codaplus``."""
    return str(value).lower().replace("+", "plus").replace(" = ", "").replace(" ", "-")
