"""Model card of a run: a Markdown document, whose numbers all come from the run's own files.

Whatever the run cannot know, such as the intended use or how patients were chosen, is a blank to fill in, marked so.
"""

import json
import re
from collections.abc import Mapping
from html import escape
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

from fedlit.core.checkpoints import checkpoint
from fedlit.core.checkpoints.manifest import Best, Manifest, sha256
from fedlit.core.errors import ConfigError
from fedlit.experiment.past_runs import monitored
from fedlit.metrics.intervals import FEWEST, MIN_PATIENTS
from fedlit.predictions.table import Predictions
from fedlit.reports.audit import FILE, FOLDER
from fedlit.reports.compare.alignment import share
from fedlit.reports.compare.logged import logged_metrics
from fedlit.reports.compare.methods import grouped
from fedlit.reports.compare.page import template
from fedlit.reports.compare.past_run import PastRun
from fedlit.reports.compare.runs import from_directory
from fedlit.reports.compare.statistics import statistics
from fedlit.reports.table import ABSENT, interval_text, short, size
from fedlit.tracking.names import CLIENT_MEAN
from fedlit.tracking.run import Result

Row = tuple[object, ...]
SECTIONS = ("data.", "model.", "federation.", "phases.")
TASKS = {"ImageClassifier": "image-classification", "LogisticRegression": "tabular-classification"}
"""What model hubs call the task of a model; fedlit does not know that of another class."""

ALL = "all"
"""Row of a metric that is of the test images of all clients."""

TOTALS = ("total/bytes_up", "total/bytes_down", "total/steps")


def model_card(directory: Path, level: float, draws: int) -> str:
    """Return the model card of a finished run as Markdown, with intervals of this level from draws of a bootstrap.

    Raises:
        ConfigError: If the directory is not that of a finished run, or it has no checkpoint.
    """
    run = from_directory(directory)
    if run is None:
        raise ConfigError(f"{directory} has not finished; resume it with --ckpt_path {directory}, or name another run")
    result, best = Result.read(directory), checkpoint.find(directory / "checkpoints", "best")
    if best is None:
        raise ConfigError(
            f"{directory}: expected checkpoints of the tested model, found none; name the directory in which the run "
            "was trained"
        )
    tests = {name: table for name in run.sets if (table := run.predictions(name)) is not None}
    sent, sites, left_out = directory / "leaves_a_site.txt", directory / "sites.json", _csv(directory / "left_out.csv")
    aurocs = {name: _aurocs(run, name, table, level, draws) for name, table in tests.items()}
    logged = {name: rows for name in _tested_sets(run) if (rows := _logged(run, name, level))}
    card = template("compare/card.md.jinja").render(
        run=run,
        result=result,
        level=f"{100 * level:g}%",
        classes=next(iter(tests.values())).classes if tests else (),
        method=grouped([run])[0].name,
        version=Manifest.read(best).fedlit,
        weights=[
            (str(file.relative_to(directory)), sha256(file))
            for file in (*sorted(best.glob("*.pt")), *sorted(directory.glob("model*.safetensors")))
        ],
        settings={section: _settings(run, section) for section in SECTIONS},
        draws=draws,
        narrowest=FEWEST,
        selection=_selection(run, checkpoint.best(best)),
        sites=json.loads(sites.read_text())["sites"] if sites.is_file() else [],
        clients=_clients(directory),
        scored=any((table.clients != "").any() for table in tests.values()),
        labels=_labels(directory),
        counts=_csv(directory / "counts.csv"),
        left_out=[] if left_out is None else list(left_out["reason"].value_counts().items()),
        groups=_groups(directory, tests),
        sent=sent.read_text().strip().replace("\n", "\n- ") if sent.is_file() else "",
        totals={key: _total(run, key) for key in TOTALS},
        audit=_audit(directory, best),
        privacy=run.privacy.get("says", []),
        aurocs=aurocs,
        logged=[row for rows in logged.values() for row in rows],
    )
    return _front_matter(run, aurocs, logged) + re.sub(r"\n{3,}", "\n\n", card).lstrip()


def _front_matter(run: PastRun, aurocs: Mapping[str, list[Row] | str], logged: Mapping[str, list[Row]]) -> str:
    """Return what model hubs read, as YAML: library, tags, and metrics by test set; what the run cannot know is absent.

    Names are escaped as in the card: a reader without front matter shows this block as text.
    """
    model, data = (str(run.settings.get(f"{part}.class_path", "")).rpartition(".")[2] for part in ("model", "data"))
    task = TASKS.get(model, "other")
    metrics: dict[str, list[dict[str, object]]] = {}
    for name, rows in aurocs.items():
        known = [] if isinstance(rows, str) else [row for row in rows if row[1] != ABSENT]
        metrics[name] = [
            {"type": "roc_auc", "name": escape(f"AUROC, {row[0]}"), "value": float(str(row[1]))} for row in known
        ]
    for name, rows in logged.items():
        whole = [row for row in rows if row[2] == ALL]
        metrics[name] = metrics.get(name, []) + [
            {"type": escape(str(row[1])), "name": escape(str(row[1])), "value": float(str(row[3]))} for row in whole
        ]
    results = [
        {
            "task": {"type": task},
            "dataset": {"type": escape(data), "name": escape(f"{data}, test set {name}")},
            "metrics": values,
        }
        for name, values in metrics.items()
        if values
    ]
    block: dict[str, object] = {
        "library_name": "fedlit",
        "tags": ["federated-learning", *([task] if task != "other" else [])],
    }
    if results:
        kinds = list(dict.fromkeys(value["type"] for values in metrics.values() for value in values))
        block |= {"metrics": kinds, "model-index": [{"name": escape(run.name), "results": results}]}
    return f"---\n{yaml.safe_dump(block, sort_keys=False, allow_unicode=True)}---\n\n"


def _selection(run: PastRun, best: Best) -> str:
    """Return a sentence about the choice of the tested model."""
    if best.value != best.value:
        return "no validation metric was recorded, so the last model was tested."
    settings = {key: run.settings.get(f"federation.{key}", "auto") for key in ("monitor", "monitor_mode")}
    metric, mode = monitored(settings, run.keys)
    extreme = "lowest" if mode == "min" else "highest"
    return f"the model with the {extreme} `{metric}` was tested: {best.value:.4f}, after round {best.round}."


def _settings(run: PastRun, section: str) -> list[Row]:
    """Return the settings of a section that are set, with short names of classes."""
    rows = [(key.removeprefix(section).replace("init_args.", ""), value) for key, value in run.settings.items()
            if key.startswith(section) and value not in (None, [], {})]  # fmt: skip
    rows = [(key, ", ".join(map(str, value)) if isinstance(value, list) else value) for key, value in rows]
    return [(key.replace(".class_path", "").replace("class_path", "class"), value) for key, value in rows]


def _clients(directory: Path) -> list[Row]:
    """Return a table with client, split, images, patients and, for each class, positives among labelled images."""
    table, labels = _csv(directory / "partition.csv"), _csv(directory / "labels.csv")
    if table is None:
        return []
    counts = table.groupby(["client", "split"]).agg(images=("image", "size"), patients=("patient", "nunique"))
    if labels is not None:
        cells = labels.assign(cell=labels.apply(_positives, axis=1)).set_index(["client", "split", "class"])["cell"]
        positives = cells.unstack("class")[list(dict.fromkeys(labels["class"]))].reindex(counts.index)
        counts = pd.concat([counts, positives.fillna(ABSENT)], axis=1)
    order = {"train": 0, "val": 1, "test": 2}
    rows = sorted(counts.itertuples(name=None), key=lambda row: (row[0][0], order[row[0][1]]))
    return [("client", "split", *counts.columns), *((*place, *cells) for place, *cells in rows)]


def _positives(row: pd.Series) -> str:
    """Return the positive images of a class among the labelled ones, such as ``20 of 250``."""
    if row["labelled"] != "True" or not row["positives"]:
        return ABSENT
    positives, negatives = (int(float(row[key])) for key in ("positives", "negatives"))
    return f"{positives:,} of {positives + negatives:,}"


def _labels(directory: Path) -> list[tuple[str, str]]:
    """Return each client with the classes that it labels, and the source's labels where they differ."""
    table = _csv(directory / "classes.csv")
    if table is None:
        return []
    named = table["class"].where(table["class"] == table["label"], table["class"] + " (from " + table["label"] + ")")
    return [(client, ", ".join(names)) for client, names in named.groupby(table["client"])]


def _groups(directory: Path, tests: Mapping[str, Predictions]) -> list[Row]:
    """Return a table with client, kind of group, group, and images (patients) of each part."""
    if (counts := _csv(directory / "groups.csv")) is None:
        counts = pd.DataFrame(
            [
                ("", f"test set {name}", kind, group, mask.sum(), len(np.unique(table.patients[mask])))
                for name, table in tests.items()
                for kind, values in table.groups.items()
                for group, mask in ((group, values == group) for group in np.unique(values).tolist())
            ],
            columns=["client", "split", "group", "value", "images", "patients"],
        )
    if counts.empty:
        return []
    texts = counts.assign(cell=[_counted(*row) for row in counts[["images", "patients"]].itertuples(index=False)])
    texts = texts.replace({"client": {"": "all"}, "value": {"": "unknown"}})
    parts = texts.set_index(["client", "group", "value", "split"])["cell"].unstack("split", fill_value=ABSENT)
    parts = parts[list(dict.fromkeys(counts["split"]))]
    rows = [(*index, *row) for index, *row in parts.itertuples(name=None)]
    return [("client", "group", "value", *parts.columns), *rows]


def _counted(images: object, patients: object) -> str:
    """Return images (patients); few patients are not counted exactly."""
    if patients == "":
        return f"{images} (unknown)"
    few = float(patients) < MIN_PATIENTS
    return f"few (fewer than {MIN_PATIENTS})" if few else f"{images} ({float(patients):.0f})"


def _aurocs(run: PastRun, name: str, table: Predictions, level: float, draws: int) -> list[Row] | str:
    """Return class, AUROC, interval, positives and negatives, or the reason for which there are none."""
    (method,) = grouped([run])
    try:
        numbers = statistics([method], method, share([name], [table]), level, draws)
    except ConfigError as error:
        return str(error)
    (scored,) = numbers.scored
    rows = [
        (cls, short(each.value), interval_text(each.interval.low, each.interval.high),
         numbers.support.positives(i), numbers.support.negatives(i))
        for i, (cls, each) in enumerate(zip(numbers.shared.classes, scored.classes, strict=True))
    ]  # fmt: skip
    macro = scored.macro
    ends = interval_text(macro.interval.low, macro.interval.high)
    return [*rows, (numbers.support.macro_name, short(macro.value), ends, "", "")]


def _tested_sets(run: PastRun) -> list[str]:
    keys = [key.split("/") for key in run.keys if key.startswith("test/") and key.endswith(CLIENT_MEAN)]
    return list(dict.fromkeys(name for _, name, *_ in keys))


def _logged(run: PastRun, name: str, level: float) -> list[Row]:
    """Return test set, metric, the client or all, value and interval of what the module logs."""
    (method,) = grouped([run])
    rows: list[Row] = []
    for metric in logged_metrics([method], method, name, level, []):
        (of_run,) = metric.methods
        ends = interval_text(of_run.interval.low, of_run.interval.high)
        rows.append((name, metric.name, ALL, f"{of_run.value:.4g}", ends))
        rows += [(name, metric.name, client, f"{value[0]:.4g}", ABSENT) for client, value in of_run.clients.items()]
    return rows


def _audit(directory: Path, best: Path) -> dict[str, object]:
    """Return the content of ``audit.json``, with rows for a table; {} if there is none, or it is of other weights."""
    file = directory / FOLDER / FILE
    found = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    if not found or found["weights"] != Manifest.read(best).sha256["server.pt"]:
        return {}
    rows = []
    for result in found["results"]:
        counts = [result[side] or f"fewer than {MIN_PATIENTS}" for side in ("members", "others")]
        auroc = [float(np.nan if end is None else end) for end in (result["auroc"] or dict.fromkeys("vlh")).values()]
        rows.append((f"{result['of']} {result['value']}", *counts, short(auroc[0]), interval_text(*auroc[1:])))
    return found | {"rows": rows}


def _total(run: PastRun, key: str) -> str:
    series = run.metric(key)
    if not len(series):
        return ""
    return size(series.iloc[-1]) if "bytes" in key else f"{series.iloc[-1]:,.0f}"


def _csv(file: Path) -> pd.DataFrame | None:
    return pd.read_csv(file, dtype=str, keep_default_na=False) if file.is_file() else None
