"""``fedlit compare`` from its arguments to its numbers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedlit import checkpoint
from fedlit.errors import ConfigError
from fedlit.metrics.auroc import slug
from fedlit.metrics.intervals import DRAWS, LEVEL
from fedlit.mistakes import near
from fedlit.predictions import Predictions
from fedlit.reports.compare.methods import Method, chosen_baseline, grouped
from fedlit.reports.compare.runs import Notes, PastRun
from fedlit.reports.compare.shared import share
from fedlit.reports.compare.statistics import Statistics, statistics

METRIC, SET = "val/auroc_macro", "federation"


@dataclass(frozen=True, eq=False)
class Comparison:
    """What is known of methods and of their differences.

    Attributes:
        methods: all, those without predictions too.
        baseline: one of them.
        test_set: on which they are compared.
        statistics: None where no run has predictions.
        metric: shown by round; None where no run has the default one.
        notes: what was left out, and why.
    """

    methods: tuple[Method, ...]
    baseline: Method
    test_set: str
    statistics: Statistics | None
    metric: str | None
    notes: Notes


def compare(
    runs: Sequence[PastRun],
    notes: Sequence[str] = (),
    baseline: str | None = None,
    test_set: str | None = None,
    metric: str | None = None,
    level: float = LEVEL,
    draws: int = DRAWS,
    say: Callable[[str], None] = lambda text: None,
) -> Comparison:
    """Compare runs.

    Args:
        runs: that have ended.
        notes: what was left out before.
        baseline: name of a method; the first by default.
        test_set: on whose predictions; ``federation`` by default.
        metric: shown by round; ``val/auroc_macro`` by default.
        level: of the intervals.
        draws: of the bootstrap.
        say: told what is being done.

    Raises:
        ConfigError: there is no run, no such baseline, test set or metric, or the runs have nothing in common.
    """
    if not runs:
        raise ConfigError("compare: none of these runs has finished: " + " ".join(notes))
    notes = list(notes)
    methods = grouped(runs)
    metric = _metric(runs, metric, notes)
    chosen = chosen_baseline(methods, baseline)
    test_set = _set(runs, test_set)
    say("reading predictions")
    found = {run.where: run.predictions(test_set) for run in runs} if test_set else {}
    tested = [m for method in methods if (m := _tested(method, found, test_set or SET, notes))]
    if not tested:
        notes.append("no AUROC, interval or test: they are computed from predictions.")
        return Comparison(tuple(methods), chosen, test_set or SET, None, metric, notes)
    by_name = {method.name: method for method in tested}
    if chosen.name not in by_name and baseline is not None:
        raise ConfigError(f"--baseline: {baseline!r} has no predictions; {_advice(chosen.runs[0])}")
    chosen = by_name.get(chosen.name, tested[0])
    several = {method.name: len(method.runs) > 1 for method in tested}
    names = [f"{m.name} (seed {run.seed})" if several[m.name] else m.name for m in tested for run in m.runs]
    shared = share(names, [found[run.where] for method in tested for run in method.runs])
    numbers = statistics(tested, chosen, shared, level, draws, say)
    return Comparison(tuple(methods), chosen, test_set, numbers, metric, notes + shared.notes)


def _set(runs: Sequence[PastRun], name: str | None) -> str | None:
    """The test set on which runs are compared; None where no run has predictions of any."""
    known = list(dict.fromkeys(found for run in runs for found in run.sets))
    wanted = name or SET
    if not known or slug(wanted) in known:
        return wanted if known else None
    if name is None and len(known) == 1:
        return known[0]
    hint = near(wanted, known) or f"; there are {', '.join(known)}"
    raise ConfigError(f"--set: no run has predictions of {wanted!r}{hint}")


def _metric(runs: Sequence[PastRun], key: str | None, notes: Notes) -> str | None:
    known = list(dict.fromkeys(found for run in runs for found in run.keys))
    if (key or METRIC) in known:
        return key or METRIC
    shown = [found for found in known if "/n_" not in found and not found.startswith("client/")]
    if key is not None:
        alike = [found for found in shown if found.startswith(f"{key.partition('/')[0]}/")]
        hint = near(key, known) or (f"; there are {', '.join((alike or shown)[:8])}" if shown else "; they logged none")
        raise ConfigError(f"--metric: no run has logged {key!r}{hint}")
    told = f"there are {', '.join(shown[:20])}" if shown else "they logged none"
    notes.append(f"no curves: no run has logged {METRIC}; --metric names another: {told}.")
    return None


def _tested(method: Method, found: Mapping[str, Predictions | None], name: str, notes: Notes) -> Method | None:
    """A method's runs that have predictions, or None where none has."""
    having = tuple(run for run in method.runs if found.get(run.where) is not None)
    notes += [
        f"{run.where} ({method.name}) has no predictions of {name!r}: {_advice(run)}"
        for run in method.runs
        if run not in having
    ]
    return replace(method, runs=having) if having else None


def _advice(run: PastRun) -> str:
    """What to do about a run without predictions of the test set."""
    if run.sets:
        return f"it has those of {', '.join(run.sets)}; see --set."
    folder = Path(run.where) / "checkpoints"
    best = checkpoint.find(folder, "best") or checkpoint.find(folder, "last")
    if best is None:
        return "compare its run directory, in which `fedlit test --output FOLDER/predictions` can write them."
    return f"`fedlit test --config {run.where}/config.yaml --ckpt_path {best} --output {run.where}/predictions` writes them."
