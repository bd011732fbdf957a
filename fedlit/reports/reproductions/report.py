"""The report of a reproduction, the function of ``tables.py`` that makes it, and readers of the metrics of runs."""

import inspect
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedlit.core.errors import ConfigError, FedlitError
from fedlit.core.system.argument_types import check_arguments
from fedlit.experiment.mistakes import near
from fedlit.reports.reproductions.document import Place
from fedlit.tracking.base import MetricsFile
from fedlit.tracking.run import Result

TABLES = "tables.py"
OTHER_DATA = "These are the paper's data and runs: compare the order of rows and the gaps between them, not values."
"""Advice on reading published results, unless a report has its own."""


@dataclass(frozen=True)
class Report:
    """Text, tables and figures that are made from runs."""

    text: str  # Tables of our results, as Markdown.
    tables: dict[str, pd.DataFrame]  # Tables by file name, without its ending.
    figures: dict[str, Figure] = field(default_factory=dict)  # Figures by file name, without its ending.
    how_to_read: str = OTHER_DATA  # Advice on reading the published results, which are printed below ours.


@cache
def tables_of(folder: Path) -> ModuleType:
    """Import ``tables.py`` of a folder, given by its absolute path; without that file the module is empty."""
    file = folder / TABLES
    spec = spec_from_file_location(f"fedlit tables of {folder}", file)
    module = module_from_spec(spec)
    if file.is_file():
        spec.loader.exec_module(module)
    return module


def maker(folders: Sequence[Path], name: str, place: Place) -> Callable[..., Report]:
    """Return a function of ``tables.py``, from the first of some folders whose file has it.

    Raises:
        ConfigError: No file has it, or a file cannot be imported.
    """
    known: list[str] = []
    for folder in dict.fromkeys(folders):
        try:
            module = tables_of(folder.resolve())
        except (Exception, SystemExit) as error:  # the user's own file may fail in any way
            raise place.error(f"{failure(folder / TABLES, error)}; correct it") from error
        own = {k: v for k, v in vars(module).items() if inspect.isfunction(v) and not k.startswith("_")}
        if name in own:
            return own[name]
        known += own
    files = " or ".join(str(folder / TABLES) for folder in dict.fromkeys(folders))
    hint = near(name, known) or (f"; its functions are {', '.join(known)}" if known else "; write it")
    raise place.error(f"expected a function {name} in {files}, found none{hint}")


def arguments(
    function: Callable[..., Report],
    written: Mapping[str, Any],
    others: Mapping[str, Any],
    file: Callable[[str], Path],
    place: Place,
) -> dict[str, Any]:
    """Return the arguments of a function besides the runs: written ones, and those of ``others`` that it takes.

    ``file`` finds the file of a name that is written for a parameter which is a path.

    Raises:
        ConfigError: One of them is unknown or missing, or has another type than it is annotated with.
    """
    _, *parameters = inspect.signature(function).parameters.values()
    names = {each.name for each in parameters}
    if unknown := [key for key in written if key not in names - others.keys()]:
        hint = near(str(unknown[0]), names) or f"; {function.__name__} takes {', '.join(names) or 'none'}"
        raise place.below(unknown[0]).error(f"there is no such key{hint}")
    paths = {each.name for each in parameters if each.annotation is Path}
    written = {key: file(value) if key in paths and isinstance(value, str) else value for key, value in written.items()}
    check_arguments(function, written, f"{place}.")
    taken = {key: value for key, value in others.items() if key in names} | dict(written)
    if missing := [each.name for each in parameters if each.default is each.empty and each.name not in taken]:
        raise place.error(f"expected the keys of {function.__name__}, found no {missing[0]}; add it")
    return taken


def make(function: Callable[..., Report], runs: pd.DataFrame, taken: Mapping[str, Any]) -> Report:
    """Make the report of the runs.

    Raises:
        ConfigError: The function fails, with its file and line, or returns something else.
    """
    file = Path(inspect.getfile(function))
    try:
        report = function(runs, **taken)
    except FedlitError:
        raise
    except Exception as error:  # it is the user's own code
        raise ConfigError(f"{failure(file, error)}; the runs are kept, so correct it and repeat the command") from error
    if not isinstance(report, Report):
        raise ConfigError(f"{file}: {function.__name__}: expected a Report, found {report!r}; return one")
    return report


def failure(file: Path, error: BaseException) -> str:
    """Return the last line of a file that an error passed through, and the error, on one line."""
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if Path(f.filename) == file.resolve()]
    line = error.lineno if isinstance(error, SyntaxError) else (lines[-1] if lines else None)
    place = f"{file}, line {line}" if line else str(file)
    return " ".join(f"{place}: {type(error).__name__}: {error}".split())


def measured(run: Path) -> dict[str, float]:
    """Return the metrics of a run's best model: on test sets, on validation data, and of clients in its round."""
    result = Result.read(run)
    rows = MetricsFile(run / "metrics.csv").rows()
    return {key: value for step, key, value in rows if step == result.best_round} | result.metrics


def curve(run: Path, metric: str) -> list[tuple[int, float]]:
    """Return the round and the value of each evaluation."""
    return [(step, value) for step, key, value in MetricsFile(run / "metrics.csv").rows() if key == metric]


def light_axes(axes: Axes, grid: str = "both") -> None:
    """Draw a faint grid, along one axis or both, and no spine at the top or right."""
    axes.grid(alpha=0.25, axis=grid)
    axes.spines[["top", "right"]].set_visible(False)
