"""Evaluation of a method: from its runs to the numbers of ``fedlit evaluate``.

Each measure is computed for every class and group, on each test set, for each run. With several runs, which differ in
their seed, values and draws are means over runs. All classes, groups and runs share the draws of patients, so gaps
between groups are paired if they share patients. Runs with their own draws of the data have their own test images: the
patients of all draws are drawn together, and each run takes its own.
"""

import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from fedlit.core.errors import ConfigError
from fedlit.metrics import measures
from fedlit.metrics.claim import ALPHA, extra_variance, holm
from fedlit.metrics.intervals import FEWEST, patient_codes, resampled
from fedlit.metrics.levels import DRAWS, LEVEL
from fedlit.metrics.measures import AT_THRESHOLD, MEASURES, SUPPORT, PatientCounts, standard_error
from fedlit.metrics.performance import Performance, Stated
from fedlit.predictions.table import GROUP
from fedlit.reports.compare.methods import Method, grouped
from fedlit.reports.compare.past_run import Notes, PastRun
from fedlit.reports.evaluation.images import COLUMNS, RANKING, Images, test_images, validation_images
from fedlit.reports.evaluation.points import FEDERATION, Point, Threshold, by_owner, choose

ALL = "all"
CHUNK = 128
"""Draws at a time: their counts and sums stay in the processor's cache."""
MOST_GROUPS = 12
RATES = ("sensitivity", "specificity")


@dataclass(frozen=True)
class EvaluationOptions:
    """Options of an evaluation."""

    by: tuple[str, ...] | None = None  # Kinds of groups; None for all that the files have.
    test_set: str | None = None  # Test set; None for all.
    points: tuple[Point, ...] = ()  # Operating points.
    stated: Stated = field(default_factory=Stated)  # Rates at which classes are judged.
    # Share of positives for predictive values at thresholds; None for that of the test set, of all groups together.
    prevalence: float | None = None
    level: float = LEVEL  # Level of the intervals.
    draws: int = DRAWS  # Number of draws of the bootstrap.


@dataclass(frozen=True, eq=False)
class Cell:
    """Numbers of one class in one group of a test set."""

    place: tuple[str, str, str, str]  # Test set, kind of group, group, class.
    support: PatientCounts
    runs: dict[str, np.ndarray]  # `[R]` of each measure, by run.
    draws: dict[str, np.ndarray]  # `[B]` of each measure, the mean over runs.
    thresholds: tuple[Threshold, ...]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Numbers of a method."""

    method: Method
    request: EvaluationOptions
    sets: tuple[Images, ...]
    kinds: tuple[str, ...]  # Kinds of groups.
    estimates: pd.DataFrame  # A row for each test set, kind of group, group, class and measure.
    points: pd.DataFrame  # The same for each threshold.
    gaps: pd.DataFrame  # A row for each gap between a group and the reference group.
    notes: Notes = field(default_factory=list)


def evaluate_runs(
    runs: Sequence[PastRun],
    request: EvaluationOptions,
    notes: Sequence[str] = (),
    progress: Callable[[str], None] = lambda text: None,
) -> Evaluation:
    """Evaluate the finished runs of one method.

    Raises:
        ConfigError: There is no run, there are several methods, or predictions, groups or thresholds are missing.
    """
    if not runs:
        raise ConfigError("evaluate: expected finished runs, found none: " + " ".join(notes))
    notes, methods = list(notes), grouped(runs)
    if len(methods) > 1:
        named = "; ".join(f"{method.runs[0].where} is {method.name}" for method in methods[:4])
        command = shlex.join(["fedlit", "evaluate", *(run.where for run in methods[0].runs)])
        raise ConfigError(
            f"evaluate: expected runs of one method, which differ only in their seed, found {len(methods)} methods "
            f"({named}); name only the runs of one: {command}. `fedlit compare` compares methods"
        )
    method = methods[0]
    objective = str(method.runs[0].settings.get("model.init_args.objective.class_path", "")).rpartition(".")[2]
    sets = test_images(method.runs, request.test_set, notes)
    if of_draws := [images for images in sets if images.draws > 1]:
        common = f", of which two draws have {100 * of_draws[0].overlap:.0f}% in common" if of_draws[0].overlap else ""
        notes.append(
            f"Runs have their own draws of the data: on {', '.join(images.name for images in of_draws)}, each run is "
            f"evaluated on the test images of its draw{common}, and values are means over runs."
        )
    if objective in RANKING:
        notes.append(
            f"{objective} trains scores to rank images; they are not probabilities. Calibration, Brier score and net "
            "benefit are those of the sigmoid of the score."
        )
    thresholds: list[Threshold] = []
    if request.points:
        validation = validation_images(method.runs, notes)
        if validation.round != sets[0].round:
            raise ConfigError(
                f"{validation.file}: expected predictions of the model of {sets[0].file}, after {sets[0].round[0]} "
                f"rounds, found those after {validation.round[0]} rounds; write them again with `fedlit predict`"
            )
        thresholds = choose(request.points, validation, notes)
    if len(method.runs) == 1:
        notes.append(
            "There is one run, so trainings were not varied: intervals and gaps describe this model on other patients, "
            "and do not say how another training would do."
        )
    kinds = _kinds(sets, request, notes)
    return evaluate_images(method, sets, kinds, thresholds, request, notes=notes, progress=progress)


def evaluate_images(
    method: Method,
    sets: Sequence[Images],
    kinds: Sequence[str],
    thresholds: Sequence[Threshold],
    request: EvaluationOptions,
    notes: Notes,
    progress: Callable[[str], None] = lambda text: None,
) -> Evaluation:
    """Evaluate a method on sets of images, by kinds of groups and with thresholds; add notes to ``notes``."""
    cells: list[Cell] = []
    for images in sets:
        progress(f"evaluating {images.name}")
        cells += _cells(images, kinds, thresholds, request, notes)
    if any(cell.support.fewest < FEWEST for cell in cells):
        notes.append(
            f"With fewer than {SUPPORT} positive or negative patients (for AUROC: {FEWEST}), a class has neither "
            "interval nor claim, as these would be wrong too often."
        )
    frames = {
        "estimates": pd.DataFrame([_where(cell) | _estimate(cell, key, request) for cell in cells for key in MEASURES]),
        "points": pd.DataFrame([row for cell in cells for row in _point_rows(cell, request)]),
        "gaps": _gaps(cells, kinds, {images.name: extra_variance(images.overlap) for images in sets}, request),
    }
    return Evaluation(method, request, tuple(sets), tuple(kinds), notes=notes, **frames)


def _kinds(sets: Sequence[Images], request: EvaluationOptions, notes: Notes) -> tuple[str, ...]:
    """Return the kinds of groups: those asked for, or else all in the files."""
    named = [kind for images in sets for kind in images.groups if kind not in COLUMNS]
    kinds = tuple(dict.fromkeys(named)) if request.by is None else request.by
    there = ", ".join([*(f"{GROUP}{name}" for name in sets[0].groups if name not in COLUMNS), *COLUMNS])
    for kind in kinds:
        if not any(kind in images.groups for images in sets):
            raise ConfigError(
                f"{sets[0].file}: column {GROUP}{kind}: expected the group of each image, found only the columns "
                f"{there}; name {kind} in `groups` of the data and write the file again with `fedlit test`"
            )
    if request.by is None and not kinds:
        notes.append(
            f"{sets[0].file} has no column group/..., so groups of patients are not compared. Name them as `groups` of "
            "the data, or use --by client."
        )
    return kinds


def _groups(images: Images, kind: str, notes: Notes) -> dict[str, np.ndarray]:
    """Return the rows of each group of a kind, the largest group first."""
    column = kind if kind in COLUMNS else f"group/{kind}"
    if kind not in images.groups:
        notes.append(f"{images.file} has no column {column}; this test set has no groups by {kind}.")
        return {}
    values = images.groups[kind]
    names = sorted(set(values.tolist()) - {""})
    if unknown := int((values == "").sum()):
        notes.append(
            f"{images.file}: column {column}: {unknown:,} of {len(values):,} images have no value, and are in no group."
        )
    if len(names) > MOST_GROUPS and kind not in COLUMNS:
        raise ConfigError(
            f"{images.file}: column {column}: expected at most {MOST_GROUPS} groups, found {len(names)}, such as "
            f"{names[0]!r}; put numbers into bands in the data, or leave {kind} out of --by"
        )
    if len(names) == 1:
        notes.append(
            f"{images.file}: column {column}: all images have the value {names[0]!r}; there is nothing to compare."
        )
    rows = {name: values == name for name in names}
    return dict(sorted(rows.items(), key=lambda item: -len(np.unique(images.units[item[1]]))))


def _cells(
    images: Images, kinds: Sequence[str], thresholds: Sequence[Threshold], request: EvaluationOptions, notes: Notes
) -> list[Cell]:
    patient, count = patient_codes(images.units, len(images.units))
    counts = np.concatenate([part.astype(np.uint8) for part in resampled(count, request.draws, 0, CHUNK)], axis=1)
    groups = {(ALL, ALL): np.ones(len(patient), dtype=bool)}
    transport = ("client",) if thresholds and images.name == FEDERATION and "client" not in kinds else ()
    for kind in (*kinds, *transport):
        groups |= {(kind, name): rows for name, rows in _groups(images, kind, notes).items()}
    places = [(column, *place) for column in range(len(images.classes)) for place in groups]

    def cell(place: tuple[int, str, str]) -> Cell | None:
        return _cell(images, place, groups[place[1:]], patient, counts, thresholds=thresholds, request=request)

    with ThreadPoolExecutor(max(1, min(4, os.cpu_count() or 1))) as threads:
        cells = list(threads.map(cell, places))
    absent = [
        ("all images" if kind == ALL else f"{kind} {name}", f"label/{images.classes[column]}")
        for (column, kind, name), made in zip(places, cells, strict=True)
        if made is None
    ]
    if absent:
        in_draw = ", in a draw of the data" if images.draws > 1 else ""
        notes.append(
            f"{images.file}: without positive images, or without negative ones{in_draw}, so there are no values: "
            f"{by_owner(absent)}."
        )
    return [each for each in cells if each is not None]


def _cell(
    images: Images,
    place: tuple[int, str, str],
    rows: np.ndarray,
    patient: np.ndarray,
    counts: np.ndarray,
    thresholds: Sequence[Threshold],
    request: EvaluationOptions,
) -> Cell | None:
    column, *group = place
    labels, name = images.labels[:, column], images.classes[column]
    known = ~np.isnan(labels)
    prevalence = float(labels[known].mean()) if request.prevalence is None and known.any() else request.prevalence
    stated, chosen = replace(request.stated, prevalence=prevalence), tuple(t for t in thresholds if t.name == name)
    parts, values = [], []
    for number, (logits, scored) in enumerate(images.by_run):
        ours = rows & known & scored
        logit, positive = logits[ours, column], labels[ours] == 1
        if positive.all() or not positive.any():
            return None
        ids, local = np.unique(patient[ours], return_inverse=True)
        part = Performance(logit, positive, local, len(ids), stated, [t.values[number] for t in chosen])
        values.append({key: value[0] for key, value in part.values(np.ones((len(ids), 1))).items()})
        parts.append((ids, part))
    draws: dict[str, list[np.ndarray]] = {}
    for start in range(0, counts.shape[1], CHUNK):
        drawn = counts[:, start : start + CHUNK]
        of_runs = [part.values(drawn[ids].astype(np.float32)) for ids, part in parts]
        for key in of_runs[0]:
            draws.setdefault(key, []).append(np.mean([each[key] for each in of_runs], axis=0))
    return Cell(
        (images.name, *group, name),
        _support(rows, labels, images.numbers, patient),
        {key: np.array([each[key] for each in values]) for key in values[0]},
        {key: np.concatenate(each) for key, each in draws.items()},
        chosen,
    )


def _support(rows: np.ndarray, labels: np.ndarray, image: np.ndarray, patient: np.ndarray) -> PatientCounts:
    """Count the images and patients, given the numbers of both, `[N]`, which may repeat in other draws of the data."""
    sides = [rows & (labels == value) for value in (1, 0)]
    return PatientCounts(*(len(np.unique(of[side])) for of in (image, patient) for side in sides))


def _estimate(cell: Cell, key: str, request: EvaluationOptions) -> dict[str, object]:
    """Return value, standard deviation over seeds, and interval of a measure."""
    by_run, measure = cell.runs[key], _measure(key)
    value, sd = float(by_run.mean()), float(by_run.std(ddof=1)) if len(by_run) > 1 else np.nan
    error = standard_error(cell.draws[key], cell.support.patients(measure.side))
    ends = measures.interval(measure, value, error, cell.support, request.level)
    name = key.partition("@")[0]
    return {"measure": name, "value": value, "sd_over_seeds": sd, "low": ends.low, "high": ends.high}


def _measure(key: str) -> measures.Measure:
    name, _, threshold = key.partition("@")
    return (AT_THRESHOLD if threshold else MEASURES)[name]


def _where(cell: Cell) -> dict[str, object]:
    counts = {name: getattr(cell.support, name) for name in ("n_pos", "n_neg", "patients_pos", "patients_neg")}
    return dict(zip(("set", "by", "group", "class"), cell.place, strict=True)) | counts


def _point_rows(cell: Cell, request: EvaluationOptions) -> Iterator[dict[str, object]]:
    for number, threshold in enumerate(cell.thresholds):
        chosen = {"at": threshold.point.title, "chosen_on": threshold.source}
        chosen["threshold"] = float(np.mean(threshold.values))
        for name in AT_THRESHOLD:
            yield _where(cell) | chosen | _estimate(cell, f"{name}@{number}", request)


def _gaps(
    cells: Sequence[Cell], kinds: Sequence[str], extra: Mapping[str, float], request: EvaluationOptions
) -> pd.DataFrame:
    """Test the gaps between each group and the largest group of its kind, with Holm's correction for all of them.

    ``extra`` is the extra variance of the mean over seeds, by test set.
    """
    rows: list[dict[str, object]] = []
    references: dict[tuple[str, str, str], Cell] = {}
    for cell in cells:
        name, kind, group, label = cell.place
        if kind not in kinds:
            continue
        reference = references.setdefault((name, kind, label), cell)
        if reference is cell:
            continue
        fixed = [f"{rate}@{i}" for i, t in enumerate(cell.thresholds) if t.source == FEDERATION for rate in RATES]
        for key in (*measures.TESTED, *fixed):
            samples = [measures.Sample(each.runs[key], each.draws[key], each.support) for each in (cell, reference)]
            gap = measures.compare_groups(_measure(key), *samples, request.level, extra[name])
            measure, _, threshold = key.partition("@")
            at = cell.thresholds[int(threshold)].point.title if threshold else ""
            where = {"set": name, "by": kind, "group": group, "reference": reference.place[2], "class": label}
            ends = {"gap": gap.value, "low": gap.interval.low, "high": gap.interval.high}
            tests = {"p_images": gap.p_images, "p_seeds": gap.p_seeds, "p": gap.p}
            rows.append(where | {"measure": measure, "at": at} | ends | tests)
    p_holm = holm([row["p"] for row in rows])
    return pd.DataFrame(rows).assign(p_holm=p_holm, beyond_noise=p_holm < ALPHA)
