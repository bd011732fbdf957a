"""Methods, which are runs that differ only in their seed: their names and the settings that differ."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from fedlit.core.errors import ConfigError
from fedlit.experiment.choices import shipped
from fedlit.experiment.mistakes import near
from fedlit.reports.compare.past_run import PastRun
from fedlit.reports.table import ABSENT
from fedlit.tracking.names import CHOSEN, STAGE

LAST = ("federation.rounds", "federation.schedule", "model", "data")
START, SEED_OF_START = "model.init_args.weights", re.compile(r"seed=-?\d+$")
"""Setting with the run from whose weights a run starts, which a plan chooses by the seed; and that seed."""
OF_EACH_SEED = "chosen by each seed"
"""Text for a setting that each seed has chosen in a tuning."""
OF_THE_RUN = "that of the run"
"""Text for a seed of the data that follows the seed of the run."""
WORD_LENGTH = 28
FILE = "predictions"
"""Setting with the name of a file of predictions."""

Draw = tuple[tuple[str, int], ...]

ALONE = "There is only one method, so there are no differences; add runs of another method."


@dataclass(frozen=True, eq=False)
class Method:
    """Runs with the same settings."""

    name: str  # Unique name.
    runs: tuple[PastRun, ...]  # Runs by seed.
    settings: Mapping[str, str]  # Readable settings by key.

    @property
    def seeds(self) -> tuple[int | None, ...]:
        """Return the seeds of the runs, None if unknown."""
        return tuple(run.seed for run in self.runs)

    @property
    def draws(self) -> tuple[Draw, ...]:
        """Return the draws of the data, one for each run."""
        return tuple(run.draw for run in self.runs)

    @property
    def epsilon(self) -> str:
        """Return the largest epsilon of a client in the runs, and what it is worth; "" if no step was private."""
        accounts = [run.privacy for run in self.runs if run.privacy]
        if not accounts:
            return ""
        epsilons = [client["epsilon"] for account in accounts for client in account["clients"].values()]
        most = "infinite" if None in epsilons else f"{max(epsilons):.2f}"  # None: without noise
        return f"{most} at delta {accounts[0]['delta']:g}; {accounts[0]['why']}"


def grouped(runs: Sequence[PastRun]) -> list[Method]:
    """Group runs by method, in the order in which methods appear."""
    groups: dict[tuple, list[PastRun]] = {}
    for run in _of_any_choice(_of_any_start(runs)):
        groups.setdefault(_settings(run), []).append(run)
    members = [part for group in groups.values() for part in _by_draw(sorted(group, key=lambda run: run.seed or 0))]
    several_draws = [len({run.draw for run in group}) > 1 for group in members]
    words = [
        _weighted(
            readable(group[0].settings | {key: OF_THE_RUN if several else seed for key, seed in group[0].draw}), group
        )
        for group, several in zip(members, several_draws, strict=True)
    ]
    names = _names([_name(group, settings) for group, settings in zip(members, words, strict=True)], words)
    return [Method(n, tuple(group), settings) for n, group, settings in zip(names, members, words, strict=True)]


def _settings(run: PastRun) -> tuple[tuple[str, str], ...]:
    # A key without a value is left out: a run of an earlier version lacks the keys that have come since.
    return tuple(sorted((key, str(value)) for key, value in run.settings.items() if value is not None))


def _of_any_start(runs: Sequence[PastRun]) -> list[PastRun]:
    """Return the runs, with one name for starts that differ only in their seed, if each seed has one run."""
    renamed = []
    for run in runs:
        start = SEED_OF_START.sub("seed of the run", str(run.settings.get(START, "")))
        renamed.append(replace(run, settings=run.settings | {START: start}) if start else run)
    seeds: dict[tuple, list[int | None]] = {}
    for run in renamed:
        seeds.setdefault((_settings(run), run.draw), []).append(run.seed)
    return [
        new if len({*(of := seeds[_settings(new), new.draw])}) == len(of) else old
        for old, new in zip(runs, renamed, strict=True)
    ]


def _of_any_choice(runs: Sequence[PastRun]) -> list[PastRun]:
    """Return the runs, with one text for what differs between those of a method that each seed has chosen."""
    choices: dict[object, list[PastRun]] = {}
    for run in runs:
        if run.tags.get(STAGE) == CHOSEN:
            choices.setdefault((run.directory.parent, run.tags.get("fedlit.method")), []).append(run)
    renamed = {}
    for group in choices.values():
        if len({run.seed for run in group}) == len(group):
            settings = dict.fromkeys(_differing([dict(_settings(run)) for run in group]), OF_EACH_SEED)
            renamed |= {run.where: replace(run, settings={**run.settings, **settings}) for run in group}
    return [renamed.get(run.where, run) for run in runs]


def _by_draw(group: list[PastRun]) -> list[list[PastRun]]:
    """Return one group if each run has drawn its own data by its seed, else one group per draw."""
    if len({tuple((key, value - (run.seed or 0)) for key, value in run.draw) for run in group}) == 1:
        return [group]
    return [[run for run in group if run.draw == draw] for draw in dict.fromkeys(run.draw for run in group)]


def _weighted(words: dict[str, str], runs: Sequence[PastRun]) -> dict[str, str]:
    """Set the client weights in readable settings to those that the runs used.

    A run that did not record them used those of the federation's setting or of a built-in aggregator, or else examples.
    """
    if not any(key.startswith("federation.") for key in words):
        return words
    ours = {cls.__name__: cls for cls in shipped("aggregators")}
    aggregators = {k: ours[word] for k, word in words.items() if "federation.aggregators" in k and word in ours}
    stated = [run.client_weights for run in runs]
    stated += [words.get("federation.weights"), *(words.get(f"{key}.weights") for key in aggregators)]
    stated += [cls.weights for cls in aggregators.values()]
    return words | {"federation.weights": next((each for each in stated if each not in (None, "", ABSENT)), "examples")}


def baseline_method(methods: Sequence[Method], name: str | None) -> Method:
    """Return the method with this name, or the first if the name is None.

    Raises:
        ConfigError: If no method has this name.
    """
    names = [method.name for method in methods]
    if name is not None and name not in names:
        hint = near(name, names) or f"; choose one of: {'; '.join(names)}"
        raise ConfigError(f"--baseline: no method is named {name!r}{hint}")
    return methods[names.index(name) if name is not None else 0]


def differences(methods: Sequence[Method]) -> pd.DataFrame:
    """Return the settings that differ, one row per key and one column per method; ``-`` if a method lacks a key.

    The epsilons of private training, which follow from several settings, are the last row. Predictions from elsewhere
    have no settings, and are left out.
    """
    methods = [method for method in methods if not any(run.unknown for run in method.runs)]
    keys = _differing([method.settings for method in methods])
    rows = {method.name: [method.settings.get(key, ABSENT) for key in keys] for method in methods}
    if any(method.epsilon for method in methods):
        keys, rows = [*keys, "epsilon"], {each.name: [*rows[each.name], each.epsilon or ABSENT] for each in methods}
    return pd.DataFrame(rows, index=pd.Index(keys, name="setting"))


def readable(settings: Mapping[str, object]) -> dict[str, str]:
    """Return settings with short names of classes, by keys as on the command line."""
    words = {}
    for key, value in settings.items():
        if key.endswith(".init_args"):  # {}: a class without arguments, which its class_path names
            continue
        text = ABSENT if value is None else str(value)
        if key.endswith("class_path"):
            text = text.rpartition(".")[2]
        words[key.replace(".init_args", "").removesuffix(".class_path")] = text
    return words


def _name(runs: Sequence[PastRun], words: Mapping[str, str]) -> str:
    values = {run.tags.get("fedlit.method", "") for run in runs}
    if len(values) == 1 and "" not in values:
        return values.pop()
    aggregators = [words[key] for key in words if key.startswith("federation.aggregators.") and key.count(".") == 2]
    return "+".join(aggregators) or runs[0].name


def _names(names: Sequence[str], words: Sequence[Mapping[str, str]]) -> list[str]:
    """Add differing settings to equal names until the names are distinct."""
    names = list(names)
    for name in dict.fromkeys(names):
        same = [i for i, other in enumerate(names) if other == name]
        if len(same) < 2:
            continue
        keys = sorted(_differing([words[i] for i in same]), key=lambda key: (_rank(key), key.count("."), key))
        parts: dict[int, tuple[str, ...]] = dict.fromkeys(same, ())
        for key in keys:
            more = {i: (*parts[i], _word(key, words[i])) for i in same}
            if len(set(more.values())) > len(set(parts.values())):
                parts = more
        for i in same:
            names[i] = ", ".join((name, *filter(None, parts[i])))
    return [n if n not in names[:i] else f"{n} ({names[:i].count(n) + 1})" for i, n in enumerate(names)]


def _rank(key: str) -> int:
    if key.endswith("objective"):
        return 0
    return next((2 + i for i, start in enumerate(LAST) if key.startswith(start)), 1)


def _word(key: str, words: Mapping[str, str]) -> str:
    """Return a setting as part of a name; an objective and a file of predictions need no key."""
    value = words.get(key, ABSENT)
    value = value if len(value) <= WORD_LENGTH else value[: WORD_LENGTH - 1] + "~"
    if key.endswith(("objective", FILE)):
        return "" if value == ABSENT else value
    return f"{key.rpartition('.')[2]}={value}"


def listed(names: Sequence[str], most: int = 4) -> str:
    """Return the first names and the number of all others."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _differing(settings: Sequence[Mapping[str, str]]) -> list[str]:
    keys = dict.fromkeys(key for each in settings for key in each)
    return [key for key in keys if len({each.get(key, ABSENT) for each in settings}) > 1]


def paired_by_seed(method: Method, baseline: Method) -> bool:
    """Return True if each seed has its own draw of the data; equal seeds on one draw are separate trainings."""
    return method.draws == baseline.draws and len(set(method.draws)) >= max(2, len(method.draws))
