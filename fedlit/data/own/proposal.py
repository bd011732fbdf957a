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
from fedlit.data.own.cells import NO_FINDING, SPELLED, SPLITS, folded, split_words
from fedlit.data.own.table_formats import is_numeric, read_any_table
from fedlit.data.pictures.dicom import has_mark
from fedlit.data.records import listed
from fedlit.data.spelling import SUFFIXES, plain

FRONTAL = ("pa", "ap", "ap_horizontal", "frontal")
SEPARATORS = ("|", ";", ",", "/")
ROWS, FILES, PATTERNS, SITES, WORDS, FEW_WORDS = 500, 300_000, 400, 50, 10, 5
"""Rows and files that are looked at, patterns that are tried, and most sites, words for splits and words of a label."""

_NAMED = {
    "patient": re.compile(
        r"patient|subject|person|\bpid\b|\bmrn\b|\bcase|fall[ _-]?(nr|nummer|id)|\bpat[ ._-]*(id|nr|no|num)",
        re.IGNORECASE,
    ),
    "site": re.compile(
        r"site|hospital|instit|cent(er|re)|clinic|klinik|krankenhaus|organi[sz]ation|hopital", re.IGNORECASE
    ),
    "findings": re.compile(r"finding|label|diagnos|befund|patholog", re.IGNORECASE),
    "split": re.compile(
        r"(data|train)?[ _-]?(split|fold|(sub)?set|partition)s?([ _-]?(name|id))?|(.*[ _-])?(split|fold|partition)([ _-].*)?",
        re.IGNORECASE,
    ),
    "views": re.compile(r"view|projection|position", re.IGNORECASE),
}

_NO_FINDINGS = re.compile(
    r"(patients?[ _]?)?(sex|gender|geschlecht|sexe|sexo|age|alter|portable|bedside|male|female|inpatient|follow[ _-]?up)",
    re.IGNORECASE,
)
"""Names of columns that are no findings, though their cells look like labels."""

_QUANTITIES = re.compile(
    r"width|height|rows|col(umn)?s|size|bytes|date|datum|time|zeit|year|jahr|dose|kvp|pixel|weight|gewicht|gr(ö|oe)(ß|ss)e|score|"
    r"follow|birth|geburt",
    re.IGNORECASE,
)
"""Names of columns that are no ids, though their cells repeat."""

_TIMES = re.compile(r"\d+[dwmy]|\d{1,4}([-./])\d\d?\1\d{1,4}( .*)?", re.IGNORECASE)
"""Ages as DICOM writes them, such as 045Y, and dates."""

LARGEST = 250
"""What repeats and is larger is no quantity such as years, kilograms, centimetres or kilovolts."""

MOST, ASKED, FEW = 0.9, (0.2, 1.0), 0.1
"""Share of the cells of a column of labels that are labels at least, shares of different cells of ids that repeat, and share of
the rows that must find their image by a pattern."""


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
    given = dict(given or {})
    read, written = read_any_table(table, given.get("sheet"))
    folder = table.parent if root is None else root
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder of images; name it: --root FOLDER")
    rows, files = read.rows, list(images_below(folder))
    if not files:
        raise ConfigError(
            f"{folder}: found no image ({', '.join(SUFFIXES)}), in subfolders neither; name the folder: --root"
        )
    found = Proposal({"table": str(table), "root": str(folder)}, written=written)
    pattern, hits = (str(given["image"]), 0) if "image" in given else image_pattern(rows, files)
    if not pattern:
        if why := _why_no_image(rows, files) or written.partition(": only ")[2]:
            raise ConfigError(f"{table}: no column names the images below {folder}: {why}")
        examples = f"the first files are {listed(files, 3)}; columns are {listed(rows.columns, 40)}"
        raise ConfigError(f"{table}: no column, nor several, name the images below {folder}; {examples}")
    found.arguments["image"] = pattern
    if hits:
        found.reasons["image"] = f"{hits:,} of {len(rows):,} rows have their image among {len(files):,} files"
    free = [name for name in rows.columns if name not in re.findall(r"\{([^{}]+)\}", pattern) and name != pattern]
    for key in [key for key in ("patient", "site", "split") if key not in given]:
        _add(found, key, rows, free if key != "patient" else list(rows.columns), given.get("splits") or {})
    free = [name for name in free if name not in found.arguments.values()]
    words = _few_words(rows, free)
    labels, left_out = ([], "") if {"labels", "findings"} & given.keys() else _label_columns(rows, free)
    if labels:
        found.arguments["labels"], found.reasons["labels"] = labels, left_out
    elif not {"labels", "findings"} & given.keys():
        _add_findings(found, rows, free)
    found.arguments |= given
    if "classes" in given:
        _add_classes(found, given, rows, free)
    elif labels and (idle := _without_positives(rows, free, labels)):
        found.reasons["labels"] = "; ".join(
            filter(
                None,
                (
                    left_out,
                    f"left out, as no image is positive: {listed(idle)}; --classes names what a federation trains for",
                ),
            )
        )
    if "labels" not in found.arguments and "findings" not in found.arguments:
        raise ConfigError(
            f"{table}: no column has labels such as 1, 0, -1, yes, no, positive, negative, nor lists of findings; columns are "
            f"{listed(rows.columns, 40)}{f'; of few words are {words}' * bool(words)}. Say what the cells mean: --set '{{labels: [COLUMN], values: {{WORD: positive}}}}'"
        )
    if "views" not in given:
        _add_views(found, rows, [name for name in free if name not in labels])
    arguments = found.arguments
    used = {*labels, *arguments.get("labels", ()), *arguments.get("views", ()), *map(str, arguments.values())}
    if words := _few_words(rows, [name for name in free if name not in used]):
        found.reasons["unused"] = f"not used: {words}. Is one a label (labels, values) or the split (split, splits)?"
    return found


def _why_no_image(rows: pd.DataFrame, files: Sequence[str]) -> str:
    """Return how a column nearly names the images, in words; "" where none does."""
    names = {plain(os.path.basename(file)) for file in files}
    bare = {_stem(name).lstrip("0"): name for name in names if name[0] == "0"}
    for column, cells in rows.items():
        for cell in cells:
            path = cell.replace("\\", "/")
            if "/" in path and plain(path.rpartition("/")[2]) in names:
                where = "paths of another machine" if path[1:2] == ":" else "names of these files in other folders"
                return f"{column!r} holds {where}, such as {cell!r}: keep what lies below --root, such as {files[0]!r}"
            if cell.strip("0") and cell in bare:
                return f"{column!r} has lost zeros: {cell!r} is the file {bare[cell]!r}; write the column as text"
    return ""


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
    files = [plain(file) for file in files]
    alone = Counter(os.path.dirname(file) for file in files)
    known = {*files, *map(_stem, files), *(f"{folder}/*" for folder, images in alone.items() if images == 1)}
    sample = rows.iloc[np.unique(np.linspace(0, len(rows) - 1, min(ROWS, len(rows))).astype(int))]
    scored = []
    for pattern in _patterns(sample, files):
        paths = _filled(pattern, sample)
        hits = len(known.intersection(paths))  # of two rows with one path, one is of no use
        scored.append((-hits, "*" in pattern, len(pattern), pattern))
    most, *_, pattern = min(scored, default=(0, ""))
    if -most < FEW * len(sample):
        return "", 0
    hits = len(known.intersection(_filled(pattern, rows)))
    column = re.fullmatch(r"\{([^{}]+)\}", pattern)
    return column[1] if column else pattern, hits


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
    common = [name for name, count in Counter(parts).most_common(3) if count > 1]  # a folder per examination
    return [choice for _, choice in sorted(choices, reverse=True)] + (common or ["*"] if last else [])


def _filled(pattern: str, rows: pd.DataFrame) -> list[str]:
    columns = re.findall(r"\{([^{}]+)\}", pattern)
    text = re.sub(r"\{[^{}]+\}", "{}", pattern)
    cells = [rows[name] for name in columns]
    return [plain(os.path.normpath(text.format(*row).replace("\\", "/"))) for row in zip(*cells, strict=True)]


def _add(found: Proposal, key: str, rows: pd.DataFrame, columns: Sequence[str], words: Mapping[str, str]) -> None:
    if key == "split":  # by its name, else by words that could not be labels
        named = [name for name in columns if _NAMED[key].fullmatch(name)]
        named += [name for name in columns if not set(map(folded, rows[name])) <= SPELLED.keys()]
    else:
        named = [name for name in columns if _NAMED[key].search(name)]
    fits = next((name for name in named if _fits(key, rows[name], words)), "")
    if key == "split" and not fits:  # a word that is not known is refused with its line, not left out
        fits = next((name for name in named if _may_be_split(name, rows[name])), "")
    if fits:
        found.arguments[key] = fits
        different = rows[fits].nunique()
        found.reasons[key] = f"{different:,} different" if different > 1 else f"all {rows[fits].iloc[0]}: one client"
    else:
        without = {
            "patient": "patient: no column is named so; each image is then a patient of its own",
            "site": "site: no column is named so; patients are then dealt to four clients. A hospital of a federation adds a column with its name",
            "split": "split: no column says train, val and test; patients are then divided by `split`",
        }
        found.reasons[key] = without[key].replace("`split`", "the fractions of the data")
        repeated = [] if key != "patient" else _repeated(rows)
        found.reasons[key] += f". Is it {' or '.join(repeated)}?" if repeated else ""


def _fits(key: str, cells: pd.Series, words: Mapping[str, str]) -> bool:
    if key == "split":
        return set(cells.str.casefold()) <= split_words(words).keys()
    different = cells[cells != ""].nunique()
    return 0 < different <= SITES if key == "site" else different > 1


def _repeated(rows: pd.DataFrame) -> list[str]:
    """Return the columns whose cells may be ids of patients with several images, with their numbers, at most three."""
    counts = rows.where(rows != "").nunique().sort_values(ascending=False, kind="stable")
    counts = counts[(counts > 1) & (counts / len(rows) >= ASKED[0]) & (counts / len(rows) < ASKED[1])]
    ids = [name for name in counts.index if _may_be_ids(name, rows[name][rows[name] != ""])]
    return [f"{name!r} ({counts[name]:,} different)" for name in ids[:3]]


def _may_be_ids(name: str, cells: pd.Series) -> bool:
    """Return whether cells that repeat may be ids, by their column's name and their values.

    Texts may be, but for dates and ages. Whole numbers may be, but for years, where they are above ``LARGEST``, count on without
    a gap, or where equal ones always stand together, as in a table sorted by patient. Other quantities, such as ages, have gaps
    and repeat far apart; so have ids up to ``LARGEST`` with gaps in a table in no order, which are not found.
    """
    others = [
        _NO_FINDINGS.fullmatch,
        _QUANTITIES.search,
        *(_NAMED[key].search for key in ("findings", "views", "site")),
    ]
    if any(matches(name) for matches in others) or cells.str.fullmatch(_TIMES).mean() >= MOST:
        return False
    if not is_numeric(cells):
        return True
    if not cells.str.fullmatch(r"\d+").all():
        return False
    numbers, different = cells.astype(int), cells.nunique()
    counted = numbers.max() - numbers.min() < different
    together = (cells != cells.shift()).sum() == different
    return bool((counted or together or numbers.max() > LARGEST) and not numbers.between(1900, 2100).all())


def _may_be_split(name: str, cells: pd.Series) -> bool:
    """Return whether a column says by its name, or by some of its words, that it divides the images."""
    words = set(cells.str.casefold()) - {""}
    named = _NAMED["split"].fullmatch(name) and 0 < len(words) <= WORDS
    return bool(named or len({SPLITS[word] for word in words & SPLITS.keys()}) > 1)


def _label_columns(rows: pd.DataFrame, columns: Sequence[str]) -> tuple[list[str], str]:
    """Return the columns of which nearly all cells are labels, and why others with such cells are left out, in words."""
    labels = []
    for name in columns:
        meanings = rows[name].map({cell: SPELLED.get(folded(cell), "") for cell in rows[name].unique()})
        kinds = set(meanings) - {""}
        if (meanings != "").mean() >= MOST and "positive" in kinds and len(kinds) > 1:
            labels.append(name)
    negative = [name for name in labels if folded(name).replace("_", " ") in NO_FINDING]
    others = [name for name in labels if _NO_FINDINGS.fullmatch(name)]
    words = [f"as {listed(negative)} says that there is no finding"] * bool(negative)
    words += [f"as they are no findings by their names: {listed(others)}"] * bool(others)
    left_out = f"left out, {'; '.join(words)}" if words else ""
    return [name for name in labels if name not in negative and name not in others], left_out


def _add_classes(found: Proposal, given: Mapping[str, Any], rows: pd.DataFrame, columns: Sequence[str]) -> None:
    """Find the labels of the classes that a federation trains for, and say which of them these images do not have.

    A column of labels that are all negative is of a class that was looked for; one without any label, and a finding that no
    list names, are of classes that were not.
    """
    arguments, classes = found.arguments, [str(name) for name in given["classes"]]
    if column := arguments.get("findings"):
        separator = arguments.get("separator", "|")
        there = sorted({part.strip() for cell in rows[column].unique() for part in cell.split(separator)} - {""})
        of = _like(classes, [part for part in there if folded(part) not in NO_FINDING])
        what = f"no list of {column!r} names {{}}; if it was looked for and never found, name it in labels and not here"
    else:
        of = _like(classes, [name for name in columns if _meanings(rows[name]) - {"blank"}])
        arguments["labels"] = given.get("labels") or [of[name] for name in classes if name in of]
        found.reasons["labels"] = ""
        what = "no column has labels of {}"
    if "names" not in given and any(name != label for name, label in of.items()):
        arguments["names"] = {name: of[name] for name in classes if name in of}
    if "unlabelled" not in given and (without := [name for name in classes if name not in of]) and of:
        arguments["unlabelled"], found.reasons["unlabelled"] = without, what.format(listed(without))


def _like(classes: Sequence[str], labels: Sequence[str]) -> dict[str, str]:
    """Return the label of each class that is spelled like it but for case, blanks and signs."""
    spelled = {re.sub(r"[\W_]+", "", label.casefold()): label for label in labels}
    of = {name: spelled.get(re.sub(r"[\W_]+", "", name.casefold())) for name in classes}
    return {name: label for name, label in of.items() if label is not None}


def _meanings(cells: pd.Series) -> set[str]:
    """Return what the cells of a column mean as labels; nothing where one of them means nothing."""
    means = {SPELLED.get(folded(cell), "") for cell in cells.unique()}
    return set() if "" in means else means


def _without_positives(rows: pd.DataFrame, columns: Sequence[str], labels: Sequence[str]) -> list[str]:
    """Return the columns that may be labels, of which none is positive: all cells are 0, no or empty."""
    others = [name for name in columns if name not in labels and not _NO_FINDINGS.fullmatch(name)]
    return [
        name
        for name in others
        if "positive" not in (kinds := _meanings(rows[name])) and kinds and not _QUANTITIES.search(name)
    ]


def _few_words(rows: pd.DataFrame, columns: Sequence[str]) -> str:
    """Return the columns that have two to five different words, so that they may mean something, with these."""
    few = {name: sorted(set(rows[name]) - {""}) for name in columns if not _NO_FINDINGS.fullmatch(name)}
    return "; ".join(
        f"{name!r} ({', '.join(words)})"
        for name, words in few.items()
        if 1 < len(words) <= FEW_WORDS and not is_numeric(words)
    )


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
