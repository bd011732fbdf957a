"""Labels of a source: policies for uncertain and blank ones, and the harmonised names of findings."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Literal

import numpy as np
import yaml

from fedlit.core.errors import DataError

UNCERTAIN = -1.0
"""Value of a label that its source marks as uncertain; a blank label is NaN."""

Policy = Literal["ignore", "zeros", "ones"]
Names = dict[str, str | dict[str, list[str]]]
"""A map from classes to a label of the source, or to several with a rule: ``{any: [...]}`` or ``{all: [...]}``."""

_MEANS = {"ignore": np.nan, "zeros": 0.0, "ones": 1.0}


@cache
def harmonised() -> dict[str, dict[str, str | dict[str, list[str]]]]:
    """Return the label of each finding in each source, by harmonised name, from ``harmonised.yaml``."""
    return yaml.safe_load((files("fedlit.data") / "harmonised.yaml").read_text(encoding="utf-8"))


def harmonised_names(source: str) -> Names:
    """Return the label or labels of a source's findings, by harmonised name."""
    return {name: labels[source] for name, labels in harmonised().items() if source in labels}


@dataclass(frozen=True)
class Origin:
    """The labels of a source that a class comes from.

    Attributes:
        labels: The labels of the source.
        rule: How several labels make one class: ``any`` or ``all`` of them.
    """

    labels: tuple[str, ...]
    rule: str = "any"

    def of(self, columns: np.ndarray) -> np.ndarray:
        """Return the class, [N] float32, of labels [N, L] in {0, 1, NaN}; NaN if blank labels leave it undecided."""
        decides, other = (1.0, 0.0) if self.rule == "any" else (0.0, 1.0)
        decided, unknown = (columns == decides).any(axis=1), np.isnan(columns).any(axis=1)
        return np.where(decided, decides, np.where(unknown, np.nan, other)).astype(np.float32)


def origins(names: Names, labels: Sequence[str], key: str) -> dict[str, Origin]:
    """Check a map of names against the labels of a source, and return the origin of each class.

    Args:
        names: A map from each class to a label, or to several labels with a rule.
        labels: The labels of the source.
        key: The option, for messages.

    Raises:
        DataError: A class has no label, a label is unknown, several labels have no rule, or two classes have the same
            label.
    """
    origin_of: dict[str, Origin] = {}
    claimed: dict[str, str] = {}
    for name, of in names.items():
        if isinstance(of, str):
            origin_of[name] = Origin((of,))
        elif isinstance(of, Mapping) and len(of) == 1 and set(of) <= {"any", "all"} and next(iter(of.values())):
            ((rule, several),) = of.items()
            origin_of[name] = Origin(tuple(several), rule)
        else:
            raise DataError(
                f"{key}: class {name!r}: expected a label, or several with a rule such as {{any: [one, other]}} or "
                f"{{all: [one, other]}}, found {of!r}"
            )
        for label in origin_of[name].labels:
            if label not in labels:
                raise DataError(f"{key}: {name!r}: unknown label {label!r}; {similar_names(label, labels)}")
            if label in claimed:
                raise DataError(
                    f"{key}: label {label!r} is claimed by {claimed[label]!r} and by {name!r}; keep it in one of them"
                )
            claimed[label] = name
    if not origin_of:
        raise DataError(f"{key}: expected at least one class, found none")
    return origin_of


def checked_classes(
    classes: Sequence[str], allowed: Sequence[str], key: str = "data.classes", advice: str = ""
) -> tuple[str, ...]:
    """Return the classes after checking them.

    Args:
        classes: Names of the classes.
        allowed: Names to choose from.
        key: The option, for messages.
        advice: End of the message about an unknown class.

    Raises:
        DataError: A class is unknown or repeated, or there is no class.
    """
    for label in classes:
        if label not in allowed:
            raise DataError(f"{key}: unknown class {label!r}; {similar_names(label, allowed)}{advice}")
    if not classes or len(set(classes)) != len(classes):
        raise DataError(f"{key}: expected one or more different classes, found {list(classes)}")
    return tuple(classes)


def letters(label: str) -> str:
    """Return a name without case, blanks and punctuation."""
    return re.sub(r"[\W_]+", "", label.casefold())


def similar_names(label: str, names: Sequence[str]) -> str:
    """Return the names most similar to a label, or all of them if none is similar, for an error message."""
    folded = {name.casefold(): name for name in names}
    close = [folded[match] for match in get_close_matches(label.casefold(), folded, n=3, cutoff=0.6)]
    return f"similar names are {', '.join(close)}" if close else f"known names are {', '.join(names)}"


def checked_policy(policy: Policy | dict[str, Policy], labels: Sequence[str], key: str) -> dict[str, str]:
    """Return the policy of every label, given one policy or a map with ``default`` for all other labels.

    Raises:
        DataError: A policy is not ignore, zeros or ones, a label is unknown, or a label has no policy.
    """
    policies = {"default": policy} if isinstance(policy, str) else dict(policy)
    for label, value in policies.items():
        if value not in _MEANS:
            raise DataError(f"{key}: {label!r}: expected ignore, zeros or ones, found {value!r}")
        if label != "default" and label not in labels:
            raise DataError(f"{key}: unknown label {label!r}; {similar_names(label, labels)}")
    missing = [label for label in labels if label not in policies]
    if missing and "default" not in policies:
        raise DataError(
            f"{key}: expected a policy for every label, found none for {', '.join(missing)}; add them, or a default"
        )
    return {label: policies.get(label) or policies["default"] for label in labels}


def decided(labels: np.ndarray, where: np.ndarray, policy: Mapping[str, str]) -> np.ndarray:
    """Return labels, [N, L] float32, with the policy of each label applied at a mask, [N, L] bool."""
    values = np.array([_MEANS[value] for value in policy.values()], dtype=np.float32)
    return np.where(where, values, labels).astype(np.float32)
