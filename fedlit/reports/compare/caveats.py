"""Other causes of a difference between methods: settings, seeds, control variates under Adam."""

from collections.abc import Sequence

from fedlit.core.governing import ADAPTIVE, control_variates_warning, governed
from fedlit.experiment.choices import shipped
from fedlit.reports.compare.methods import ABSENT, Method, listed
from fedlit.reports.compare.past_run import Notes
from fedlit.tracking.names import BUDGET, STAGE

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
