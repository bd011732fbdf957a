"""Comparison of runs: from the arguments of ``fedlit compare`` to its numbers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fedlit.core.checkpoints import checkpoint
from fedlit.core.errors import ConfigError
from fedlit.core.governing import ADAPTIVE, control_variates_warning, governed
from fedlit.experiment.choices import shipped
from fedlit.experiment.mistakes import near
from fedlit.experiment.past_runs import monitored
from fedlit.metrics.auroc import slug
from fedlit.metrics.levels import DRAWS, LEVEL
from fedlit.predictions.table import Predictions
from fedlit.reports.compare.between_sites import BySite, by_site
from fedlit.reports.compare.external import completed
from fedlit.reports.compare.logged import LoggedMetric, logged_metrics, ranks
from fedlit.reports.compare.methods import Method, baseline_method, grouped, listed
from fedlit.reports.compare.past_run import Notes, PastRun
from fedlit.reports.compare.statistics import SET, Statistics, numbers_of
from fedlit.reports.table import ABSENT
from fedlit.tracking.names import BUDGET, STAGE

if TYPE_CHECKING:
    from fedlit.reports.compare.joining import Joining
    from fedlit.reports.compare.margin import MarginTest

METRIC = "val/auroc_macro"


@dataclass(frozen=True, eq=False)
class Comparison:
    """Methods, their differences, and notes."""

    methods: tuple[Method, ...]  # All methods, including those without predictions.
    baseline: Method  # The method from which the others are subtracted.
    test_set: str  # Test set on which they are compared.
    statistics: Statistics | None  # All numbers; None if no run has predictions.
    metric: str | None  # Key of the metric that is plotted; None if no run has the default one.
    notes: Notes  # What was left out and why, and other causes of differences.
    logged: tuple[LoggedMetric, ...] = ()  # Metrics that the modules log, such as a Dice.
    sites: tuple[BySite, ...] = ()  # Metrics by site.
    joining: "Joining | None" = None  # Gains of the sites, if they were asked for.
    margins: "tuple[MarginTest, ...]" = ()  # Tests against a margin, if one was given.


def compare_runs(
    runs: Sequence[PastRun],
    notes: Sequence[str] = (),
    baseline: str | None = None,
    test_set: str | None = None,
    metric: str | None = None,
    level: float = LEVEL,
    draws: int = DRAWS,
    progress: Callable[[str], None] = lambda text: None,
) -> Comparison:
    """Compare finished runs, of which others may have been left out with notes before.

    By default the baseline is the first method, the test set is ``federation``, and the curves are of
    ``val/auroc_macro``, or else of what selects the first run's best model.

    Raises:
        ConfigError: If there is no run, no such baseline, test set or metric, or the runs have nothing in common.
    """
    if not runs:
        raise ConfigError("compare: expected finished runs, found none: " + " ".join(notes))
    notes = list(notes)
    runs = _without_individual(runs, notes)
    methods = grouped(runs)
    metric = _metric(runs, metric, notes)
    subtracted = baseline_method(methods, baseline)
    notes += caveats(methods, subtracted)
    test_set = _set(runs, test_set)
    logged = logged_metrics(methods, subtracted, test_set or SET, level, notes)
    progress("reading predictions")
    predictions = predictions_of(runs, test_set, notes) if test_set else {}
    tested = [m for method in methods if (m := _tested(method, predictions, test_set or SET, notes))]
    if not tested:
        none = "No AUROC is shown: the modules score no classes."
        notes.append(none if logged else "No AUROC, interval or test is shown: they are computed from predictions.")
        return Comparison(
            tuple(methods), subtracted, test_set or SET, None, metric, notes, logged=logged, sites=by_site(None, logged)
        )
    by_name = {method.name: method for method in tested}
    if subtracted.name not in by_name and baseline is not None:
        raise ConfigError(f"--baseline: {baseline!r} has no predictions; {_advice(subtracted.runs[0])}")
    subtracted = by_name.get(subtracted.name, tested[0])
    numbers = numbers_of(tested, subtracted, predictions, notes, level=level, draws=draws, progress=progress)
    subtracted = numbers.scored[tested.index(subtracted)].method
    return Comparison(
        tuple(methods), subtracted, test_set, numbers, metric, notes, logged=logged, sites=by_site(numbers, logged)
    )


def predictions_of(runs: Sequence[PastRun], test_set: str, notes: Notes) -> dict[str, Predictions | None]:
    """Return the predictions of a test set by the place of a run; those from elsewhere get the labels of the runs."""
    scored = {run.where: run.predictions(test_set) for run in runs}
    known = [scored[run.where] for run in runs if run.table is None and scored[run.where] is not None]
    return scored | {run.where: completed(run, known, notes) for run in runs if run.table is not None}


def _without_individual(runs: Sequence[PastRun], notes: Notes) -> Sequence[PastRun]:
    """Return the runs that are not of single clients, if there are any; a run of one client tests only its images."""
    others = [run for run in runs if run.site is None]
    if others and len(others) < len(runs):
        notes.append(
            f"{len(runs) - len(others)} runs of single clients are in no table of methods, as they are tested on other "
            "images. --against individual shows what the methods bring each client."
        )
    return others or runs


def _set(runs: Sequence[PastRun], name: str | None) -> str | None:
    """Return the test set on which runs are compared; None if no run has predictions."""
    sets = list(dict.fromkeys(test_set for run in runs for test_set in run.sets))
    wanted = name or SET
    if not sets and any(run.table is not None for run in runs):
        return wanted
    if not sets or slug(wanted) in sets:
        return wanted if sets else None
    if name is None and len(sets) == 1:
        return sets[0]
    hint = near(wanted, sets) or f"; choose one of {', '.join(sets)}"
    raise ConfigError(f"--set: no run has predictions of {wanted!r}{hint}")


def _metric(runs: Sequence[PastRun], key: str | None, notes: Notes) -> str | None:
    logged = list(dict.fromkeys(each for run in runs for each in run.keys))
    default, _ = monitored({"monitor": runs[0].settings.get("federation.monitor", "auto")}, logged)
    for each in (key,) if key else (METRIC, default):
        if each in logged:
            return each
    shown = [each for each in logged if "/n_" not in each and not each.startswith("client/")]
    if key is not None:
        of_group = [each for each in shown if each.startswith(f"{key.partition('/')[0]}/")]
        others = (
            f"; choose one of {', '.join((of_group or shown)[:8])}" if shown else "; the runs have logged no metric"
        )
        raise ConfigError(f"--metric: no run has logged {key!r}{near(key, logged) or others}")
    others = f"choose another with --metric: {', '.join(shown[:20])}" if shown else "the runs have logged no metric"
    notes.append(f"No curves are shown: no run has logged {METRIC}; {others}.")
    return None


def _tested(method: Method, predictions: Mapping[str, Predictions | None], name: str, notes: Notes) -> Method | None:
    """Return a method with those of its runs that have predictions, or None without any."""
    tested = tuple(run for run in method.runs if predictions.get(run.where) is not None)
    without = [run for run in method.runs if run not in tested and ranks(run, name)]
    notes += [f"{run.where} ({method.name}) has no predictions of {name!r}: {_advice(run)}" for run in without]
    return replace(method, runs=tested) if tested else None


def _advice(run: PastRun) -> str:
    if run.sets:
        return f"it has predictions of {', '.join(run.sets)}; see --set."
    folder = run.directory / "checkpoints"
    best = checkpoint.find(folder, "best") or checkpoint.find(folder, "last")
    if best is None:
        return "compare its run directory after `fedlit test --output FOLDER/predictions` has written them there."
    options = f"--config {run.where}/config.yaml --ckpt_path {best} --output {run.where}/predictions"
    return f"`fedlit test {options}` writes them."


METHOD = "method"


def caveats(methods: Sequence[Method], baseline: Method) -> Notes:
    """Return notes on methods that differ from the baseline in several ways or use an unsuitable optimizer."""
    notes = [note for method in methods if method is not baseline for note in _confounded(method, baseline)]
    chosen = [method.name for method in methods if any(run.tags.get(STAGE) == "final" for run in method.runs)]
    if chosen:
        notes.append(
            f"{listed(chosen)}: `fedlit tune` chose the settings once, so intervals and p are about these settings, "
            "not about the methods: they leave out the luck of the choice. With `rule: {by: seed}`, they contain it."
        )
    return notes + [note for method in methods for note in _adaptive(method)]


def _confounded(method: Method, baseline: Method) -> Notes:
    """Note settings that differ besides the method; if only one thing differs, that is the method."""
    if elsewhere := [each.name for each in (method, baseline) if each.runs[0].unknown]:
        return [f"{' and '.join(elsewhere)}: predictions from elsewhere, whose settings are unknown."]
    differing: dict[str, list[str]] = {}
    for key in dict.fromkeys([*baseline.settings, *method.settings]):
        ours, theirs = (each.settings.get(key, ABSENT) for each in (method, baseline))
        if ours != theirs and not key.endswith("root"):
            values = " and ".join("not set" if each == ABSENT else str(each) for each in (ours, theirs))
            differing.setdefault(_about(key), []).append(f"{key} ({values})")
    others = {about: keys for about, keys in differing.items() if about != METHOD}
    notes = []
    if others and len(differing) > 1:
        topics = "; ".join(f"{about}: {listed(keys)}" for about, keys in others.items())
        notes.append(
            f"{method.name} and {baseline.name} differ in more than the method, which may explain a difference. "
            f"{topics}."
        )
    if method.seeds != baseline.seeds:
        ours, theirs = (", ".join(map(str, each.seeds)) for each in (method, baseline))
        notes.append(
            f"{method.name} and {baseline.name} have different seeds ({ours} and {theirs}), so their partitions may "
            "differ."
        )
    budgets = [{run.tags.get(BUDGET, "not by `fedlit tune`") for run in each.runs} for each in (method, baseline)]
    ours, theirs = (", ".join(sorted(each)) for each in budgets)
    if ours != theirs:
        notes.append(
            f"{method.name} and {baseline.name} were tuned with different budgets ({ours} and {theirs}), which may "
            "explain a difference."
        )
    return notes


def _about(key: str) -> str:
    if "aggregators" in key or "objective" in key:
        return METHOD
    if key.endswith("weights"):
        return "client weights"
    if "optimizer" in key:
        return "optimizer"
    if key.startswith(("federation", "phases")) or key.endswith("batch_size"):
        return "budget"
    return key.partition(".")[0]


def _adaptive(method: Method) -> Notes:
    optimizers = [word for key, word in method.settings.items() if key.endswith("optimizer") and word in ADAPTIVE]
    if not optimizers:
        return []
    named = [word for key, word in method.settings.items() if "aggregators" in key]
    # Only those of the run are made: optimizers of the server import torch._dynamo, which takes seconds.
    made = {cls.__name__: cls() for cls in shipped("aggregators") if cls.__name__ in named and not cls.private}
    aggregators = [word for word in named if word in made and "control variates" in governed(made[word])]
    warning = control_variates_warning(aggregators, optimizers[0])
    return [f"{method.name}: {warning}."] if warning else []
