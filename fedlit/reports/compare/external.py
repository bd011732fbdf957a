"""Files of predictions: of `fedlit predict`, or of a model that fedlit did not train."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from fedlit.core.errors import ConfigError
from fedlit.predictions.table import COLUMNS, GROUP, LABEL, PROBABILITIES, SCORE, SCORES, Predictions, read
from fedlit.reports.compare.methods import FILE
from fedlit.reports.compare.past_run import Notes, PastRun

EXPECTED = (
    "expected the columns image and score/CLASS for at least one class, and, if you have them, patient, site, client "
    "and label/CLASS, as `fedlit predict --format csv` writes them"
)


def read_external(path: Path) -> PastRun:
    """Read a CSV or Parquet file as the run of a method with the file's name.

    The method has one seed, unless the name ends as those of runs do: ``NAME,seed=1.csv``. A file that `fedlit predict`
    wrote into a run's directory has the settings and the seed of the run.

    Raises:
        ConfigError: If the file cannot be read, a column is missing, or a value is not a score or a label.
        DataError: If it is a Parquet file that fedlit did not write.
    """
    table = read(path) if path.suffix.lower() == ".parquet" else _read_csv(path)
    name, _, seed = path.stem.partition(",seed=")
    run = path.absolute().parent.parent
    if path.absolute().parent.name == PROBABILITIES and (run / "config.yaml").is_file():
        past = PastRun.read(run)
        settings = {**past.settings, FILE: path.stem}
        return replace(past, where=str(path), directory=path, settings=settings, table=table)
    seed = int(seed) if seed.isdecimal() else None
    # Files of the same name in other folders are other methods, unless they are seeds.
    settings = (
        {FILE: name}
        if seed is not None
        else {FILE: f"{path.absolute().parent.name}/{name}", f"{FILE}.place": str(path)}
    )
    words = {"tags": {"fedlit.method": name}, "settings": settings}
    return PastRun(str(path), path.stem, seed, "", **words, directory=path, table=table)


def _read_csv(path: Path) -> Predictions:
    try:
        table = pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8-sig")
    except (OSError, ValueError) as error:  # ValueError: not CSV, not UTF-8, or empty
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path}: expected a CSV file of predictions, found another file: {reason}") from error
    classes = tuple(c.removeprefix(SCORE) for c in table.columns if c.startswith(SCORE) and c != SCORE)
    for column, present in (("image", "image" in table), (f"{SCORE}CLASS", bool(classes)), ("image", bool(len(table)))):
        if not present:
            what = f"no column {column}, only {', '.join(map(str, table.columns[:8]))}" if len(table) else "no rows"
            raise ConfigError(f"{path}: {EXPECTED}; found {what}")
    numbers = {SCORE: _numbers(path, table, SCORE, classes), LABEL: _numbers(path, table, LABEL, classes)}
    wrong = ~np.isin(numbers[LABEL], (0, 1)) & ~np.isnan(numbers[LABEL])
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise ConfigError(
            f"{path}: column {LABEL}{classes[column]}, line {row + 2}: expected 0, 1 or nothing, found "
            f"{numbers[LABEL][row, column]:g}"
        )
    texts = {name: table[c].to_numpy(str) if c in table else np.full(len(table), "") for c, name in COLUMNS.items()}
    groups = {c.removeprefix(GROUP): table[c].to_numpy(str) for c in table.columns if c.startswith(GROUP)}
    scores, labels = (torch.from_numpy(numbers[kind]) for kind in (SCORE, LABEL))
    return Predictions(path.name, 0, SCORES, classes, scores, labels, **texts, groups=groups)


def completed(external: PastRun, others: Sequence[Predictions], notes: Notes) -> Predictions:
    """Return external predictions with what they lack (labels, patients, sites, clients), taken from runs by image.

    Images are matched by name, or by site and name if the file has sites. Notes name what was taken.
    """
    table = external.table
    keys = ["image", "site"] if (table.sites != "").all() else ["image"]
    known = [_frame(other) for other in others]
    known = pd.concat(known).groupby(keys, sort=False).first() if known else pd.DataFrame()
    wanted = _frame(table).set_index(keys)
    if not len(known) or not wanted.index.isin(known.index).any():
        return table
    matched = known.reindex(wanted.index)
    taken, texts = [], {}
    for column, name in COLUMNS.items():
        values = getattr(table, name)
        if column in matched and column != "model" and (values == "").all() and matched[column].notna().any():
            texts[name] = matched[column].fillna("").to_numpy(str)
            taken.append(column)
    labels = table.labels.clone()
    for i, name in enumerate(table.classes):
        if labels[:, i].isnan().all() and f"{LABEL}{name}" in matched:
            labels[:, i] = torch.from_numpy(matched[f"{LABEL}{name}"].to_numpy(np.float32, copy=True))
            taken.append(f"{LABEL}{name}")
    if taken:
        notes.append(f"{external.where} lacks {', '.join(taken)}; they are those of the runs, by image.")
    return replace(table, labels=labels.masked_fill(table.scores.isnan(), torch.nan), **texts)


def _frame(predictions: Predictions) -> pd.DataFrame:
    """Return names and labels of images; what is unknown is missing."""
    columns = {column: getattr(predictions, name) for column, name in COLUMNS.items() if column != "model"}
    labels = {f"{LABEL}{name}": predictions.labels[:, i].numpy() for i, name in enumerate(predictions.classes)}
    frame = pd.DataFrame(columns | labels)
    texts = frame.columns[: len(columns)]
    frame[texts] = frame[texts].mask(frame[texts] == "")
    return frame


def _numbers(path: Path, table: pd.DataFrame, kind: str, classes: Sequence[str]) -> np.ndarray:
    """Return the columns of a kind, [N, C] float32; NaN for empty cells and absent columns."""
    values = np.full((len(table), len(classes)), np.nan, dtype=np.float32)
    for i, name in enumerate(classes):
        if (column := f"{kind}{name}") not in table:
            continue
        cells = table[column].str.strip()
        values[:, i] = pd.to_numeric(cells, errors="coerce")
        wrong = np.isnan(values[:, i]) & ~cells.str.lower().isin(("", "nan")).to_numpy()
        if wrong.any():
            row = int(wrong.argmax())
            raise ConfigError(
                f"{path}: column {column}, line {row + 2}: expected a number or nothing, found {cells.iloc[row]!r}"
            )
    return values
