"""Methods: runs that differ in their seed alone, under names that tell them apart, and what their settings differ in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from fedlit.core.aggregator import Aggregator
from fedlit.core.errors import ConfigError
from fedlit.experiment.choices import shipped
from fedlit.experiment.mistakes import near
from fedlit.reports.compare.past_run import PastRun

NAMING_TAGS = ("fedlit.case", "fedlit.method")
"""Tags that say what people call a method, the best first."""

LAST = ("federation.rounds", "federation.schedule", "model", "data")
OF_THE_RUN = "that of the run"
"""What a seed of the data is in words where it follows the seed of the run."""
WORD_LENGTH = 28
ABSENT = "-"
Draw = tuple[tuple[str, int], ...]


@dataclass(frozen=True, eq=False)
class Method:
    """Runs with the same settings."""

    name: str  # Name that is unique among those that are compared.
    runs: tuple[PastRun, ...]  # Runs by seed.
    settings: Mapping[str, str]  # Settings in words, by key.

    @property
    def seeds(self) -> tuple[int | None, ...]:
        """Seeds of the runs, None where unknown."""
        return tuple(run.seed for run in self.runs)

    @property
    def draws(self) -> tuple[Draw, ...]:
        """Draws of the data, one for each run."""
        return tuple(run.draw for run in self.runs)


def grouped(runs: Sequence[PastRun]) -> list[Method]:
    """Group runs by method, in the order in which methods appear."""
    groups: dict[tuple, list[PastRun]] = {}
    for run in runs:
        groups.setdefault(tuple(sorted((k, str(v)) for k, v in run.settings.items())), []).append(run)
    members = [part for group in groups.values() for part in _by_draw(sorted(group, key=lambda run: run.seed or 0))]
    words = [_weighted(in_words(group[0].settings | _drawn(group))) for group in members]
    names = _names([_name(group, settings) for group, settings in zip(members, words, strict=True)], words)
    return [Method(n, tuple(group), settings) for n, group, settings in zip(names, members, words, strict=True)]


def _by_draw(group: list[PastRun]) -> list[list[PastRun]]:
    """Return the runs whole if each has drawn its own data by its seed, else those of each draw."""
    if len({tuple((key, value - (run.seed or 0)) for key, value in run.draw) for run in group}) == 1:
        return [group]
    return [[run for run in group if run.draw == draw] for draw in dict.fromkeys(run.draw for run in group)]


def aggregators_of(words: Mapping[str, str]) -> dict[str, type[Aggregator]]:
    """Return those of a method's aggregators that ship, by the key that names them."""
    ours = {cls.__name__: cls for cls in shipped("aggregators")}
    return {key: ours[word] for key, word in words.items() if "federation.aggregators" in key and word in ours}


def _weighted(words: dict[str, str]) -> dict[str, str]:
    """Return settings in words with the client weights that were used, whether the federation or an aggregator states them."""
    found = aggregators_of(words)
    stated = [words.get("federation.weights"), *(words.get(f"{key}.weights") for key in found)]
    stated += [cls.weights for cls in found.values()]
    used = next((each for each in stated if each not in (None, ABSENT)), "examples")
    return words | {"federation.weights": used} if found else words


def _drawn(group: Sequence[PastRun]) -> dict[str, object]:
    """Return the seeds of the data as settings."""
    own = len({run.draw for run in group}) > 1
    return {key: OF_THE_RUN if own else value for key, value in group[0].draw}


def chosen_baseline(methods: Sequence[Method], name: str | None) -> Method:
    """Return the method of this name; without one, the first.

    Raises:
        ConfigError: If there is none.
    """
    names = [method.name for method in methods]
    if name is not None and name not in names:
        hint = near(name, names) or f"; there are: {'; '.join(names)}"
        raise ConfigError(f"--baseline: there is no method {name!r}{hint}")
    return methods[names.index(name) if name is not None else 0]


def differences(methods: Sequence[Method]) -> pd.DataFrame:
    """Return keys in which settings differ (index) x methods: values in words, ``-`` where a method has no such key."""
    keys = _differing([method.settings for method in methods])
    rows = {method.name: [method.settings.get(key, ABSENT) for key in keys] for method in methods}
    return pd.DataFrame(rows, index=pd.Index(keys, name="setting"))


def in_words(settings: Mapping[str, object]) -> dict[str, str]:
    """Return settings as people read them: classes by their short names, keys as options of the command line."""
    words = {}
    for key, value in settings.items():
        text = ABSENT if value is None else str(value)
        if key.endswith("class_path"):
            text = text.rpartition(".")[2]
        words[key.replace(".init_args", "").removesuffix(".class_path")] = text
    return words


def _name(runs: Sequence[PastRun], words: Mapping[str, str]) -> str:
    for tag in NAMING_TAGS:
        values = {run.tags.get(tag, "") for run in runs}
        if len(values) == 1 and "" not in values:
            return values.pop()
    aggregators = [words[key] for key in words if key.startswith("federation.aggregators.") and key.count(".") == 2]
    return "+".join(aggregators) or runs[0].name


def _names(names: Sequence[str], words: Sequence[Mapping[str, str]]) -> list[str]:
    """Add to equal names as many of the differing settings as tell them apart."""
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
    """Rank objectives first, then aggregators and all that is not named in LAST."""
    if key.endswith("objective"):
        return 0
    return next((2 + i for i, start in enumerate(LAST) if key.startswith(start)), 1)


def _word(key: str, words: Mapping[str, str]) -> str:
    """Return a setting as a part of a name; an objective's value is enough."""
    value = words.get(key, ABSENT)
    value = value if len(value) <= WORD_LENGTH else value[: WORD_LENGTH - 1] + "~"
    if key.endswith("objective"):
        return "" if value == ABSENT else value
    return f"{key.rpartition('.')[2]}={value}"


def _differing(settings: Sequence[Mapping[str, str]]) -> list[str]:
    keys = dict.fromkeys(key for each in settings for key in each)
    return [key for key in keys if len({each.get(key, ABSENT) for each in settings}) > 1]
