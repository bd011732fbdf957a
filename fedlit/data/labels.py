"""What the labels of a source mean: policies for uncertain and blank ones, and one name for each finding."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Literal

import numpy as np
import yaml

UNCERTAIN = -1.0
"""A reader's value for a label that its source marks as uncertain; NaN is a blank."""

Policy = Literal["ignore", "zeros", "ones"]
Names = dict[str, str | dict[str, list[str]]]
"""Class, and the label of the source that it is; of several labels a rule makes one: ``{any: [...]}`` or ``{all: [...]}``."""

_MEANS = {"ignore": np.nan, "zeros": 0.0, "ones": 1.0}


@cache
def harmonised() -> dict[str, dict[str, str | dict[str, list[str]]]]:
    """Canonical name of each finding, and what each source calls it; from ``harmonised.yaml``."""
    return yaml.safe_load((files("fedlit.data") / "harmonised.yaml").read_text(encoding="utf-8"))


def harmonised_names(source: str) -> Names:
    """Canonical name and the source's own label, or labels, of the findings that a source labels."""
    return {name: called[source] for name, called in harmonised().items() if source in called}


@dataclass(frozen=True)
class Origin:
    """The labels of a source that a class comes from, and how several make one: ``any`` or ``all`` of them."""

    labels: tuple[str, ...]
    rule: str = "any"

    def of(self, columns: np.ndarray) -> np.ndarray:
        """The class [N] of these labels [N, L] in {0, 1, NaN}: what is known decides, else it is NaN."""
        decides, other = (1.0, 0.0) if self.rule == "any" else (0.0, 1.0)
        decided, unknown = (columns == decides).any(axis=1), np.isnan(columns).any(axis=1)
        return np.where(decided, decides, np.where(unknown, np.nan, other)).astype(np.float32)


def origins(names: Names, labels: Sequence[str], key: str) -> dict[str, Origin]:
    """A label map, checked against a source's labels.

    Raises:
        ValueError: a class that comes from no label, an unknown label, several labels without a rule, or a label that
            two classes claim.
    """
    found: dict[str, Origin] = {}
    claimed: dict[str, str] = {}
    for name, of in names.items():
        if isinstance(of, str):
            found[name] = Origin((of,))
        elif isinstance(of, Mapping) and len(of) == 1 and set(of) <= {"any", "all"} and next(iter(of.values())):
            ((rule, several),) = of.items()
            found[name] = Origin(tuple(several), rule)
        else:
            raise ValueError(
                f"{key}: class {name!r}: expected a label, or several with a rule such as {{any: [one, other]}} or "
                f"{{all: [one, other]}}, found {of!r}"
            )
        for label in found[name].labels:
            if label not in labels:
                raise ValueError(f"{key}: class {name!r}: unknown label {label!r}; {near(label, labels)}")
            if label in claimed:
                raise ValueError(
                    f"{key}: label {label!r} is claimed by {claimed[label]!r} and by {name!r}; keep it in one of them"
                )
            claimed[label] = name
    if not found:
        raise ValueError(f"{key}: expected at least one class, found none")
    return found


def checked_classes(classes: Sequence[str], known: Sequence[str], key: str = "data.classes") -> tuple[str, ...]:
    """Some of the known classes.

    Raises:
        ValueError: an unknown class, the same one twice, or none at all.
    """
    for label in classes:
        if label not in known:
            raise ValueError(f"{key}: unknown class {label!r}; {near(label, known)}")
    if not classes or len(set(classes)) != len(classes):
        raise ValueError(f"{key}: expected one or more different classes, found {list(classes)}")
    return tuple(classes)


def near(label: str, known: Sequence[str]) -> str:
    """The nearest known names, or all of them, for an error message."""
    folded = {name.casefold(): name for name in known}
    close = [folded[match] for match in get_close_matches(label.casefold(), folded, n=3, cutoff=0.6)]
    return f"near names are {', '.join(close)}" if close else f"labels are {', '.join(known)}"


def checked_policy(policy: Policy | dict[str, Policy], labels: Sequence[str], key: str) -> dict[str, str]:
    """The policy of every label; ``default`` in a mapping stands for those that it does not name.

    Raises:
        ValueError: another policy than ignore, zeros or ones, an unknown label, or a mapping that leaves some out.
    """
    told = {"default": policy} if isinstance(policy, str) else dict(policy)
    for label, value in told.items():
        if value not in _MEANS:
            raise ValueError(f"{key}: expected ignore, zeros or ones, found {value!r} for {label!r}")
        if label != "default" and label not in labels:
            raise ValueError(f"{key}: unknown label {label!r}; {near(label, labels)}")
    missing = [label for label in labels if label not in told]
    if missing and "default" not in told:
        raise ValueError(f"{key}: no policy for {', '.join(missing)}; add them, or a default")
    return {label: told.get(label, told.get("default", "ignore")) for label in labels}


def decided(labels: np.ndarray, where: np.ndarray, policy: Mapping[str, str]) -> np.ndarray:
    """The labels [N, L] with a policy (one a label, in order) applied ``where`` (bool [N, L])."""
    meant = np.array([_MEANS[value] for value in policy.values()], dtype=np.float32)
    return np.where(where, meant, labels).astype(np.float32)
