"""What the arguments of ``ImageTable`` may be, from a look at a table and a folder of images."""

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from fedlit.core.errors import ConfigError
from fedlit.data.dicom import has_mark
from fedlit.data.located import SUFFIXES
from fedlit.data.own.cells import NO_FINDING, SPELLED, SPLITS, folded
from fedlit.data.own.written import read_any_table
from fedlit.data.records import listed

FRONTAL = ("pa", "ap", "ap_horizontal", "frontal")
SEPARATORS = ("|", ";", ",", "/")
ROWS, FILES, PATTERNS, SITES = 500, 300_000, 400, 50
"""Rows and files that are looked at, patterns that are tried, and most sites that there may be."""

_NAMED = {
    "patient": re.compile(r"patient|subject|person|\bpid\b|\bmrn\b|\bcase", re.IGNORECASE),
    "site": re.compile(
        r"site|hospital|instit|cent(er|re)|clinic|klinik|krankenhaus|organi[sz]ation|hopital", re.IGNORECASE
    ),
    "findings": re.compile(r"finding|label|diagnos|befund|patholog", re.IGNORECASE),
    "views": re.compile(r"view|projection|position", re.IGNORECASE),
}


@dataclass
class Proposal:
    """Arguments of ``ImageTable``, and why they are so.

    Attributes:
        arguments: The arguments.
        reasons: A remark for each of them, and for what was not found.
        written: How the table is written.
    """

    arguments: dict[str, Any] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    written: str = ""

    def document(self, experiment: str) -> str:
        """Return a YAML for ``fedlit fit --config FILE``, with a remark at each argument."""
        lines = [f"# {self.written}", f"experiment: {experiment}", "data:", "  class_path: ImageTable", "  init_args:"]
        for name, value in self.arguments.items():
            text = yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True).removesuffix(
                "\n...\n"
            )
            remark = f"  # {self.reasons[name]}" if self.reasons.get(name) else ""
            lines.append(f"    {name}: {text.strip()}{remark}")
        lines += [f"    # {reason}" for name, reason in self.reasons.items() if name not in self.arguments]
        return "\n".join(lines)


def propose(table: Path, root: Path | None = None, given: Mapping[str, Any] | None = None) -> Proposal:
    """Look at a table's columns and values, and at the files below a folder.

    Args:
        table: The table.
        root: The folder with the images; by default that of the table.
        given: Arguments that are known; nothing is looked for in their place.

    Raises:
        ConfigError: There is no image below the folder, none is named in the table, or no column is a label.
    """
    read, written = read_any_table(table)
    folder = table.parent if root is None else root
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder of images; name it: --root FOLDER")
    rows, files = read.rows, list(images_below(folder))
    if not files:
        raise ConfigError(
            f"{folder}: found no image ({', '.join(SUFFIXES)}), in subfolders neither; name the folder: --root"
        )
    found = Proposal({"table": str(table), "root": str(folder)}, written=written)
    given = dict(given or {})
    pattern, hits = (str(given["image"]), 0) if "image" in given else image_pattern(rows, files)
    if not pattern:
        examples = f"the first files are {listed(files, 3)}; columns are {listed(rows.columns, 40)}"
        raise ConfigError(f"{table}: no column, nor several, name the images below {folder}; {examples}")
    found.arguments["image"] = pattern
    if hits:
        found.reasons["image"] = f"{hits:,} of {len(rows):,} rows have their image among {len(files):,} files"
    free = [name for name in rows.columns if name not in re.findall(r"\{([^{}]+)\}", pattern) and name != pattern]
    for key in [key for key in ("patient", "site", "split") if key not in given]:
        _add(found, key, rows, free if key != "patient" else list(rows.columns))
    free = [name for name in free if name not in found.arguments.values()]
    labels, negative = ([], []) if {"labels", "findings"} & given.keys() else _label_columns(rows, free)
    if labels:
        found.arguments["labels"] = labels
        found.reasons["labels"] = f"left out, as {listed(negative)} says that there is no finding" if negative else ""
    elif not {"labels", "findings"} & given.keys():
        _add_findings(found, rows, free)
    found.arguments |= given
    if "labels" not in found.arguments and "findings" not in found.arguments:
        raise ConfigError(
            f"{table}: no column has labels such as 1, 0, -1, yes, no, positive, negative, nor lists of findings; columns are "
            f"{listed(rows.columns, 40)}. Say what the cells mean: --set '{{labels: [COLUMN], values: {{WORD: positive}}}}'"
        )
    if "views" not in given:
        _add_views(found, rows, [name for name in free if name not in labels])
    return found


def images_below(folder: Path) -> Iterator[str]:
    """Yield the path of each image below a folder, with slashes, in no order; at most ``FILES`` of them."""
    count = 0
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        relative = os.path.relpath(parent, folder).replace(os.sep, "/")
        for name in names:
            if name.lower().endswith(SUFFIXES) or (_unnamed(name) and has_mark(Path(parent, name))):
                yield name if relative == "." else f"{relative}/{name}"
                count += 1
                if count == FILES:
                    return


def image_pattern(rows: pd.DataFrame, files: Sequence[str]) -> tuple[str, int]:
    """Return the column, or the pattern of columns, that leads from most rows to a file of its own, and how many it does.

    A path may lack its suffix, and begin with folders that all files share.
    """
    known = frozenset(files) | frozenset(_stem(file) for file in files)
    sample = rows.iloc[np.unique(np.linspace(0, len(rows) - 1, min(ROWS, len(rows))).astype(int))]
    scored = []
    for pattern in _patterns(sample, files):
        paths = _filled(pattern, sample)
        hits = len(known.intersection(paths))  # of two rows with one path, one is of no use
        scored.append((hits, -len(pattern), pattern))
    best = max(scored, default=(0, 0, ""))
    if not best[0]:
        return "", 0
    pattern = best[2]
    hits = len(known.intersection(_filled(pattern, rows)))
    alone = re.fullmatch(r"\{([^{}]+)\}", pattern)
    return alone[1] if alone else pattern, hits


def _patterns(rows: pd.DataFrame, files: Sequence[str]) -> Iterator[str]:
    values = {name: set(cells) - {""} for name, cells in rows.items()}
    yield from (f"{{{name}}}" for name in values)
    depths = Counter(file.count("/") for file in files)
    for depth, _ in depths.most_common(2):
        parts = [file.split("/") for file in files if file.count("/") == depth]
        choices = [_choices([p[level] for p in parts], values, level == depth) for level in range(depth + 1)]
        shared = [next(iter({p[level] for p in parts[:1000]})) for level in range(depth)]
        yield from (f"{'/'.join(shared[:level])}/{{{name}}}" for level in range(1, depth + 1) for name in values)
        for number, chosen in enumerate(product(*choices)):
            if number == PATTERNS:
                break
            yield "/".join(chosen)


def _choices(parts: Sequence[str], values: dict[str, set[str]], last: bool) -> list[str]:
    """Return what a level of a path may come from: a folder that all share, or columns whose cells it has."""
    found = set(parts)
    if len(found) == 1 and not last:
        return [next(iter(found))]
    stems = {_stem(part) for part in found} if last else found
    suffix = Counter(os.path.splitext(part)[1] for part in found).most_common(1)[0][0] if last else ""
    mixed = len({os.path.splitext(part)[1] for part in found}) > 1
    choices = []
    for name, cells in values.items():
        if cells & found:
            choices.append((len(cells & found), f"{{{name}}}"))
        elif cells & stems:
            choices.append((len(cells & stems), f"{{{name}}}" + ("" if mixed else suffix)))
    return [choice for _, choice in sorted(choices, reverse=True)]


def _filled(pattern: str, rows: pd.DataFrame) -> list[str]:
    columns = re.findall(r"\{([^{}]+)\}", pattern)
    text = re.sub(r"\{[^{}]+\}", "{}", pattern)
    cells = [rows[name] for name in columns]
    return [os.path.normpath(text.format(*row).replace("\\", "/")) for row in zip(*cells, strict=True)]


def _add(found: Proposal, key: str, rows: pd.DataFrame, columns: Sequence[str]) -> None:
    named = [name for name in columns if key == "split" or _NAMED[key].search(name)]
    fits = next((name for name in named if _fits(key, rows[name])), "")
    if fits:
        found.arguments[key] = fits
        found.reasons[key] = f"{rows[fits].nunique():,} different"
    else:
        without = {
            "patient": "patient: no column is named so; each image is then a patient of its own",
            "site": "site: no column is named so; patients are then dealt to four clients. A hospital of a federation adds a column with its name",
            "split": "split: no column says train, val and test; patients are then divided by `split`",
        }
        found.reasons[key] = without[key].replace("`split`", "the fractions of the data")


def _fits(key: str, cells: pd.Series) -> bool:
    if key == "split":
        return set(cells.str.casefold()) <= set(SPLITS)
    different = cells[cells != ""].nunique()
    return 1 < different <= SITES if key == "site" else different > 1


def _label_columns(rows: pd.DataFrame, columns: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the columns whose cells are all labels, and those of them that say that there is no finding."""
    labels = []
    for name in columns:
        meanings = {SPELLED.get(folded(cell)) for cell in rows[name].unique()}
        if None not in meanings and "positive" in meanings and len(meanings) > 1:
            labels.append(name)
    negative = [name for name in labels if folded(name).replace("_", " ") in NO_FINDING]
    return [name for name in labels if name not in negative], negative


def _add_findings(found: Proposal, rows: pd.DataFrame, columns: Sequence[str]) -> None:
    for name in sorted(columns, key=lambda name: not _NAMED["findings"].search(name)):
        cells = rows[name][rows[name] != ""]
        if _NAMED["findings"].search(name) and len(cells):
            separator = max(SEPARATORS, key=lambda sign: cells.str.contains(sign, regex=False).sum())
            parts = {part.strip() for cell in cells.unique() for part in cell.split(separator)}
            if len(parts) <= max(2, len(cells) // 3):
                found.arguments |= {"findings": name, "separator": separator}
                found.reasons["findings"] = f"{len(parts)} different: {listed(sorted(parts), 6)}"
                return


def _add_views(found: Proposal, rows: pd.DataFrame, columns: Sequence[str]) -> None:
    for name in columns:
        counts = rows[name].value_counts()
        frontal = [str(view) for view in counts.index if str(view).casefold() in FRONTAL]
        if _NAMED["views"].search(name) and frontal and len(frontal) < len(counts):
            found.arguments["views"] = {name: frontal}
            others = ", ".join(f"{count:,} {view or 'none'}" for view, count in counts.items() if view not in frontal)
            found.reasons["views"] = f"left out: {others}"
            return


def _unnamed(name: str) -> bool:
    """Return whether a name has no suffix; a number behind a dot is a part of a UID."""
    return not os.path.splitext(name)[1].strip(".0123456789")


def _stem(file: str) -> str:
    return os.path.splitext(file)[0]
