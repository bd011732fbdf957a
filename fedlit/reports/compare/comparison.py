"""``fedlit compare`` from its arguments to its numbers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from fedlit.core.checkpoints import checkpoint
from fedlit.core.errors import ConfigError
from fedlit.experiment.mistakes import near
from fedlit.metrics.auroc import slug
from fedlit.metrics.intervals import DRAWS, LEVEL
from fedlit.predictions.table import Predictions
from fedlit.reports.compare.alignment import share_by_draw
from fedlit.reports.compare.caveats import caveats
from fedlit.reports.compare.methods import Method, chosen_baseline, grouped
from fedlit.reports.compare.past_run import Notes, PastRun
from fedlit.reports.compare.statistics import Statistics, statistics

METRIC, SET = "val/auroc_macro", "federation"


@dataclass(frozen=True, eq=False)
class Comparison:
    """What is known of methods and of their differences."""

    methods: tuple[Method, ...]  # All methods, those without predictions too.
    baseline: Method  # The method from which the others are subtracted.
    test_set: str  # Test set on which they are compared.
    statistics: Statistics | None  # All numbers; None where no run has predictions.
    metric: str | None  # Key of the metric that is shown by round; None where no run has the default one.
    notes: Notes  # What was left out, and why.


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
    """Compare finished runs, with notes of what was left out before.

    By default the baseline is the first method, the test set ``federation``, and the metric by round
    ``val/auroc_macro``. ``say`` is told what is being done.

    Raises:
        ConfigError: If there is no run, no such baseline, test set or metric, or the runs have nothing in common.
    """
    if not runs:
        raise ConfigError("compare: none of these runs has finished: " + " ".join(notes))
    notes = list(notes)
    methods = grouped(runs)
    metric = _metric(runs, metric, notes)
    chosen = chosen_baseline(methods, baseline)
    notes += caveats(methods, chosen)
    test_set = _set(runs, test_set)
    say("reading predictions")
    predictions = {run.where: run.predictions(test_set) for run in runs} if test_set else {}
    tested = [m for method in methods if (m := _tested(method, predictions, test_set or SET, notes))]
    if not tested:
        notes.append("no AUROC, interval or test: they are computed from predictions.")
        return Comparison(tuple(methods), chosen, test_set or SET, None, metric, notes)
    tested = _of_common_draws(tested, notes)
    by_name = {method.name: method for method in tested}
    if chosen.name not in by_name and baseline is not None:
        raise ConfigError(f"--baseline: {baseline!r} has no predictions; {_advice(chosen.runs[0])}")
    chosen = by_name.get(chosen.name, tested[0])
    several = {method.name: len(method.runs) > 1 for method in tested}
    names = [f"{m.name} (seed {run.seed})" if several[m.name] else m.name for m in tested for run in m.runs]
    alike = all(set(method.draws) == set(chosen.draws) for method in tested)
    drawn = [run.draw if alike else () for method in tested for run in method.runs]
    shared = share_by_draw(names, [predictions[run.where] for method in tested for run in method.runs], drawn)
    numbers = statistics(tested, chosen, shared, level, draws, say)
    return Comparison(tuple(methods), chosen, test_set, numbers, metric, notes + shared.notes + numbers.support.notes)


def _set(runs: Sequence[PastRun], name: str | None) -> str | None:
    """Return the test set on which runs are compared; None where no run has predictions of any."""
    sets = list(dict.fromkeys(test_set for run in runs for test_set in run.sets))
    wanted = name or SET
    if not sets or slug(wanted) in sets:
        return wanted if sets else None
    if name is None and len(sets) == 1:
        return sets[0]
    hint = near(wanted, sets) or f"; there are {', '.join(sets)}"
    raise ConfigError(f"--set: no run has predictions of {wanted!r}{hint}")


def _metric(runs: Sequence[PastRun], key: str | None, notes: Notes) -> str | None:
    logged = list(dict.fromkeys(each for run in runs for each in run.keys))
    if (key or METRIC) in logged:
        return key or METRIC
    shown = [each for each in logged if "/n_" not in each and not each.startswith("client/")]
    if key is not None:
        alike = [each for each in shown if each.startswith(f"{key.partition('/')[0]}/")]
        there = f"; there are {', '.join((alike or shown)[:8])}" if shown else "; they logged none"
        raise ConfigError(f"--metric: no run has logged {key!r}{near(key, logged) or there}")
    others = f"there are {', '.join(shown[:20])}" if shown else "they logged none"
    notes.append(f"no curves: no run has logged {METRIC}; --metric names another: {others}.")
    return None


def _tested(method: Method, predictions: Mapping[str, Predictions | None], name: str, notes: Notes) -> Method | None:
    """Return a method with those of its runs that have predictions, or None where none has."""
    tested = tuple(run for run in method.runs if predictions.get(run.where) is not None)
    without = [run for run in method.runs if run not in tested]
    notes += [f"{run.where} ({method.name}) has no predictions of {name!r}: {_advice(run)}" for run in without]
    return replace(method, runs=tested) if tested else None


def _of_common_draws(methods: Sequence[Method], notes: Notes) -> list[Method]:
    """Return the methods with the runs on those draws of the data that all of them have; with all runs if there is none."""
    common = set.intersection(*(set(method.draws) for method in methods))
    if not common or all(set(method.draws) == common for method in methods):
        return list(methods)
    left = [run.where for method in methods for run in method.runs if run.draw not in common]
    notes.append(f"other draws of the data than all methods have: {', '.join(left)}.")
    return [replace(m, runs=tuple(run for run in m.runs if run.draw in common)) for m in methods]


def _advice(run: PastRun) -> str:
    """Return what to do about a run without predictions of the test set."""
    if run.sets:
        return f"it has those of {', '.join(run.sets)}; see --set."
    folder = run.directory / "checkpoints"
    best = checkpoint.find(folder, "best") or checkpoint.find(folder, "last")
    if best is None:
        return "compare its run directory, in which `fedlit test --output FOLDER/predictions` can write them."
    return f"`fedlit test --config {run.where}/config.yaml --ckpt_path {best} --output {run.where}/predictions` writes them."
