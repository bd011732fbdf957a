"""Operating points: thresholds that are chosen on validation images, before the test."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from fedlit.core.errors import ConfigError
from fedlit.experiment.mistakes import near
from fedlit.metrics.intervals import MIN_PATIENTS
from fedlit.metrics.thresholds import choose_threshold
from fedlit.reports.compare.past_run import Notes
from fedlit.reports.evaluation.images import Images

FEDERATION, EACH = "federation", "each"
AT = re.compile(r"(sensitivity|specificity) (0?\.\d+)")
FORM = "{class: NAME, at: sensitivity 0.9, on: val}"


@dataclass(frozen=True)
class Point:
    """An operating point, as the option ``--threshold`` names it."""

    rate: str  # ``sensitivity`` or ``specificity``.
    value: float  # Value that it reaches on the validation images.
    on: str  # ``federation``, ``each`` or a client: whose validation images.
    name: str | None  # Class; None for all classes.

    @property
    def title(self) -> str:
        """Return the rate and its value."""
        return f"{self.rate} {self.value:g}"

    @classmethod
    def read(cls, entry: object) -> "Point":
        """Read a mapping of the form of the option.

        Raises:
            ConfigError: The mapping is not of this form, or names other than validation images.
        """
        if not isinstance(entry, Mapping):
            raise ConfigError(f"--threshold: expected {FORM}, found {entry!r}")
        # YAML 1.1 reads the key `on` as true.
        keys = {"on" if key is True else str(key): value for key, value in entry.items()}
        if unknown := [key for key in keys if key not in ("class", "at", "on")]:
            raise ConfigError(f"--threshold: expected the keys class, at and on, found {unknown[0]!r}; write {FORM}")
        at, on = str(keys.get("at", "sensitivity 0.9")).strip(), str(keys.get("on", "val"))
        matched = AT.fullmatch(at)
        if matched is None or not 0 < float(matched[2]) < 1:
            raise ConfigError(f"--threshold: at: expected sensitivity or specificity and a rate, found {at!r}; {FORM}")
        part, _, owner = on.partition("/")
        if part != "val":
            raise ConfigError(
                f"--threshold: on: expected val, val/each or val/CLIENT, found {on!r}; a threshold is chosen on "
                "validation images, because on the images that it is chosen on its rates are better than on others"
            )
        name = str(keys["class"]) if "class" in keys else None
        return cls(matched[1], float(matched[2]), owner or FEDERATION, name)


@dataclass(frozen=True)
class Threshold:
    """A threshold of a class."""

    point: Point
    source: str  # ``federation``, or the client on whose validation images it was chosen.
    name: str  # Class.
    values: tuple[float, ...]  # Probability for each run.


def choose(points: Sequence[Point], images: Images, notes: Notes) -> list[Threshold]:
    """Choose the thresholds on validation images.

    Raises:
        ConfigError: There is no such class or client.
    """
    owner, chosen = images.groups["client"], []
    clients = sorted(set(owner.tolist()) - {""})
    for point in points:
        if point.name is not None and point.name not in images.classes:
            hint = near(point.name, images.classes) or f"; choose one of {', '.join(images.classes)}"
            raise ConfigError(f"--threshold: class: {images.file} has no column label/{point.name}{hint}")
        if point.on not in (FEDERATION, EACH, *clients):
            hint = near(point.on, clients) or f"; choose one of {', '.join(clients)}"
            raise ConfigError(f"--threshold: on: column client of {images.file} has no {point.on!r}{hint}")
        kind, absent, few = "positive" if point.rate == "sensitivity" else "negative", [], []
        for source in (FEDERATION, *clients) if point.on == EACH else (point.on,):
            for name in images.classes if point.name is None else (point.name,):
                column = images.classes.index(name)
                known = ~np.isnan(images.labels[:, column])
                rows = known & ((owner == source) | (source == FEDERATION))
                positive = images.labels[:, column] == 1
                side = rows & (positive if point.rate == "sensitivity" else ~positive)
                patients = min(len(np.unique(images.units[side & scored])) for _, scored in images.by_run)
                if not patients:
                    absent.append((source, f"label/{name}"))
                    continue
                if patients < MIN_PATIENTS:
                    few.append((source, f"label/{name} ({patients})"))
                values = (
                    choose_threshold(expit(logits[ours, column]), positive[ours], point.rate, point.value)
                    for logits, ours in ((logits, rows & scored) for logits, scored in images.by_run)
                )
                chosen.append(Threshold(point, source, name, tuple(values)))
        if absent:
            notes.append(f"{images.file}: no {kind} image, so no threshold for {point.title}: {by_owner(absent)}.")
        if few:
            notes.append(
                f"{images.file}: fewer than {MIN_PATIENTS} {kind} patients, so uncertain thresholds for {point.title}: "
                f"{by_owner(few)}."
            )
    # The last of equal ones: a list may ask for a class by name and for all classes.
    return list({(each.point.title, each.source, each.name): each for each in chosen}.values())


def by_owner(pairs: Sequence[tuple[str, str]]) -> str:
    """Return the entries of each owner as text: ``north: a, b; south: c``."""
    entries: dict[str, list[str]] = {}
    for owner, entry in pairs:
        entries.setdefault(owner, []).append(entry)
    return "; ".join(f"{owner}: {', '.join(listed)}" for owner, listed in entries.items())
