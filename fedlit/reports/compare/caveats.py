"""What else a difference between methods may come from: other settings and seeds, control variates under Adam."""

from collections.abc import Sequence

from fedlit.core.aggregator import governed
from fedlit.core.optimizer import ADAPTIVE, control_variates_warning
from fedlit.experiment.choices import shipped
from fedlit.reports.compare.methods import ABSENT, Method
from fedlit.reports.compare.past_run import Notes

METHOD = "method"
MOST = 4
"""Settings that a note names."""


def caveats(methods: Sequence[Method], baseline: Method) -> Notes:
    """Return a note for each method that differs from the baseline in more than one thing, or whose steps do not fit it."""
    notes = [note for method in methods if method is not baseline for note in _confounded(method, baseline)]
    return notes + [note for method in methods for note in _adaptive(method)]


def _confounded(method: Method, baseline: Method) -> Notes:
    """Say where other things than the method differ; where one thing alone differs, that is the method."""
    differing: dict[str, list[str]] = {}
    for key in dict.fromkeys([*baseline.settings, *method.settings]):
        ours, theirs = (each.settings.get(key, ABSENT) for each in (method, baseline))
        if ours != theirs and not key.endswith("root"):
            differing.setdefault(_about(key), []).append(f"{key} ({ours} and {theirs})")
    others = {about: keys for about, keys in differing.items() if about != METHOD}
    notes = []
    if others and len(differing) > 1:
        listed = "; ".join(f"{about}: {_first(keys)}" for about, keys in others.items())
        notes.append(
            f"{method.name} and {baseline.name} differ in more than the method, so a difference may be of that. {listed}."
        )
    if method.seeds != baseline.seeds:
        ours, theirs = (", ".join(map(str, each.seeds)) for each in (method, baseline))
        notes.append(
            f"{method.name} and {baseline.name} have other seeds ({ours} and {theirs}), so they may differ in their partitions."
        )
    return notes


def _about(key: str) -> str:
    """Return what a setting is about."""
    if "aggregators" in key or "objective" in key:
        return METHOD
    if key.endswith("weights"):
        return "client weights"
    if "optimizer" in key:
        return "optimizer"
    if key.startswith(("federation", "phases")) or key.endswith("batch_size"):
        return "budget"
    return key.partition(".")[0]


def _first(keys: Sequence[str]) -> str:
    return ", ".join(keys[:MOST]) + (f" and {len(keys) - MOST} more" if len(keys) > MOST else "")


def _adaptive(method: Method) -> Notes:
    """Warn of control variates under an adaptive optimizer."""
    ours = {cls.__name__ for cls in shipped("aggregators") if "control variates" in governed(cls())}
    named = [word for key, word in method.settings.items() if "aggregators" in key and word in ours]
    steps = [word for key, word in method.settings.items() if key.endswith("optimizer") and word in ADAPTIVE]
    warned = control_variates_warning(named, steps[0]) if named and steps else ""
    return [f"{method.name}: {warned}."] if warned else []
