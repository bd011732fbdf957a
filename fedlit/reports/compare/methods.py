"""Methods: runs that differ in their seed alone, under names that tell them apart, and what their settings differ in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from fedlit.errors import ConfigError
from fedlit.mistakes import near
from fedlit.reports.compare.runs import PastRun

NAMING_TAGS = ("fedlit.case", "fedlit.method")
"""Tags that say what people call a method, the best first."""

LAST = ("federation.rounds", "federation.schedule", "model", "data")
WORD_LENGTH = 28
ABSENT = "-"


@dataclass(frozen=True, eq=False)
class Method:
    """Runs with the same settings.

    Attributes:
        name: unique among those that are compared.
        runs: by seed.
        settings: in words, by key.
    """

    name: str
    runs: tuple[PastRun, ...]
    settings: Mapping[str, str]

    @property
    def seeds(self) -> tuple[int | None, ...]:
        return tuple(run.seed for run in self.runs)


def grouped(runs: Sequence[PastRun]) -> list[Method]:
    """Runs by method, in the order in which methods appear."""
    groups: dict[tuple, list[PastRun]] = {}
    for run in runs:
        groups.setdefault(tuple(sorted((k, str(v)) for k, v in run.settings.items())), []).append(run)
    members = [sorted(group, key=lambda run: run.seed or 0) for group in groups.values()]
    words = [in_words(group[0].settings) for group in members]
    names = _names([_called(group, own) for group, own in zip(members, words, strict=True)], words)
    return [Method(n, tuple(group), own) for n, group, own in zip(names, members, words, strict=True)]


def chosen_baseline(methods: Sequence[Method], name: str | None) -> Method:
    """The method of this name; without one, the first.

    Raises:
        ConfigError: there is none.
    """
    names = [method.name for method in methods]
    if name is not None and name not in names:
        hint = near(name, names) or f"; there are: {'; '.join(names)}"
        raise ConfigError(f"--baseline: there is no method {name!r}{hint}")
    return methods[names.index(name) if name is not None else 0]


def differences(methods: Sequence[Method]) -> pd.DataFrame:
    """Keys in which the settings differ (index) x methods: values in words, ``-`` where a method has no such key."""
    keys = _differing([method.settings for method in methods])
    rows = {method.name: [method.settings.get(key, ABSENT) for key in keys] for method in methods}
    return pd.DataFrame(rows, index=pd.Index(keys, name="setting"))


def in_words(settings: Mapping[str, object]) -> dict[str, str]:
    """Settings as people read them: classes by their short names, keys as options of the command line."""
    words = {}
    for key, value in settings.items():
        text = ABSENT if value is None else str(value)
        if key.endswith("class_path"):
            text = text.rpartition(".")[2]
        words[key.replace(".init_args", "").removesuffix(".class_path")] = text
    return words


def _called(runs: Sequence[PastRun], words: Mapping[str, str]) -> str:
    for tag in NAMING_TAGS:
        told = {run.tags.get(tag, "") for run in runs}
        if len(told) == 1 and "" not in told:
            return told.pop()
    aggregators = [words[key] for key in words if key.startswith("federation.aggregators.") and key.count(".") == 2]
    return "+".join(aggregators) or runs[0].name


def _names(names: Sequence[str], words: Sequence[Mapping[str, str]]) -> list[str]:
    """Names with as many of the differing settings as tell them apart."""
    names = list(names)
    for name in dict.fromkeys(names):
        same = [i for i, other in enumerate(names) if other == name]
        if len(same) < 2:
            continue
        keys = sorted(_differing([words[i] for i in same]), key=lambda key: (_rank(key), key.count("."), key))
        kept: list[str] = []
        told: dict[int, tuple[str, ...]] = dict.fromkeys(same, ())
        for key in keys:
            more = {i: (*told[i], _word(key, words[i])) for i in same}
            if len(set(more.values())) > len(set(told.values())):
                kept, told = [*kept, key], more
        for i in same:
            names[i] = ", ".join((name, *filter(None, told[i])))
    return [n if n not in names[:i] else f"{n} ({names[:i].count(n) + 1})" for i, n in enumerate(names)]


def _rank(key: str) -> int:
    """Objectives first, then aggregators and all that is not named in LAST."""
    if key.endswith("objective"):
        return 0
    return next((2 + i for i, start in enumerate(LAST) if key.startswith(start)), 1)


def _word(key: str, words: Mapping[str, str]) -> str:
    """A setting as a part of a name; objectives speak for themselves."""
    value = words.get(key, ABSENT)
    value = value if len(value) <= WORD_LENGTH else value[: WORD_LENGTH - 1] + "~"
    if key.endswith("objective"):
        return "" if value == ABSENT else value
    return f"{key.rpartition('.')[2]}={value}"


def _differing(settings: Sequence[Mapping[str, str]]) -> list[str]:
    keys = dict.fromkeys(key for each in settings for key in each)
    return [key for key in keys if len({each.get(key, ABSENT) for each in settings}) > 1]
