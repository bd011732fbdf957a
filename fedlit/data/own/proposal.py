"""Proposal of the arguments of ``ImageTable``, from a table and a folder of images."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from fedlit.core.errors import ConfigError
from fedlit.core.system import documents
from fedlit.data.labels import letters
from fedlit.data.own.cells import NO_FINDING, SPELLED, SPLITS, folded, parts_of, split_words
from fedlit.data.own.image_paths import columns_of, image_pattern, images_below, why_no_image
from fedlit.data.records import listed
from fedlit.data.spelling import SUFFIXES
from fedlit.data.tables import is_numeric, read_any_table

_POSITION = (
    r"(erect|supine|standing|upright|semi[ _-]?erect|sitting|seated|recumbent|horizontal|portable|mobile|bedside|view|"
    r"chest)"
)
_FRONT = r"(pa|ap|p\.a\.|a\.p\.|frontal|(post|ant)ero[ _-]?(anterior|posterior))"
FRONTAL = re.compile(rf"({_POSITION}[ _,.-]*)*{_FRONT}([ _,.()-]*{_POSITION})*[ )]*", re.IGNORECASE)
"""Views from the front, whatever the patient's position."""

SEPARATORS = ("|", ";", ",", "/")
SITES, WORDS, FEW_WORDS = 50, 10, 5
"""Limits: sites, words for splits, and words of a label."""

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
        r"(data|train)?[ _-]?(split|fold|(sub)?set|partition)s?([ _-]?(name|id))?"
        r"|(.*[ _-])?(split|fold|partition)([ _-].*)?",
        re.IGNORECASE,
    ),
    "views": re.compile(r"view|projection|position", re.IGNORECASE),
}

_NO_FINDINGS = re.compile(
    r"(patients?[ _]?)?"
    r"(sex|gender|geschlecht|sexe|sexo|age|alter|portable|bedside|male|female|inpatient|follow[ _-]?up)",
    re.IGNORECASE,
)
"""Names of columns that are not findings, although their cells look like labels."""

_QUANTITIES = re.compile(
    r"width|height|rows|col(umn)?s|size|bytes|date|datum|time|zeit|year|jahr|dose|kvp|pixel|weight|gewicht|gr(ö|oe)(ß|ss)e|score|"
    r"follow|birth|geburt",
    re.IGNORECASE,
)
"""Names of columns that are not ids, although their cells repeat."""

_TIMES = re.compile(r"\d+[dwmy]|\d{1,4}([-./])\d\d?\1\d{1,4}( .*)?", re.IGNORECASE)
"""Ages as DICOM writes them, such as 045Y, and dates."""

LARGEST = 250
"""Largest quantity in years, kilograms, centimetres or kilovolts; larger repeated numbers may be ids."""

MOST, ASKED = 0.9, (0.2, 1.0)
"""Smallest share of labels in a column of labels, and range of the share of different cells in a column of ids."""


@dataclass
class Proposal:
    """Proposed arguments of ``ImageTable``, with reasons.

    Attributes:
        arguments: The arguments.
        reasons: A remark about each argument, and about missing ones.
        written: A description of the table's format.
    """

    arguments: dict[str, Any] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    written: str = ""

    def document(self, experiment: str) -> str:
        """Return a YAML for ``fedlit fit --config FILE``, with a remark about each argument."""
        lines = [f"# {self.written}", f"experiment: {experiment}", "data:", "  class_path: ImageTable", "  init_args:"]
        for name, value in self.arguments.items():
            text = documents.dump(value, default_flow_style=True, width=10_000).removesuffix("\n...\n")
            remark = f"  # {self.reasons[name]}" if self.reasons.get(name) else ""
            lines.append(f"    {name}: {text.strip()}{remark}")
        lines += [f"    # {reason}" for name, reason in self.reasons.items() if name not in self.arguments]
        return "\n".join(lines)


def propose(table: Path, root: Path | None = None, known: Mapping[str, Any] | None = None) -> Proposal:
    """Propose arguments from a table's columns and cells, and from the files below a folder.

    Args:
        table: The table.
        root: The folder with the images; by default that of the table.
        known: Known arguments, which are not searched for.

    Raises:
        ConfigError: There is no image below the folder, the table names no image, or no column is a label.
    """
    known = dict(known or {})
    read, written = read_any_table(table, known.get("sheet"), known.get("encoding"))
    folder = table.parent if root is None else root
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder of images; name it: --root FOLDER")
    rows, files = read.rows, list(images_below(folder))
    if not files:
        raise ConfigError(
            f"{folder}: found no image ({', '.join(SUFFIXES)}), also not in subfolders; name the folder: --root"
        )
    proposal = Proposal({"table": str(table), "root": str(folder)}, written=written)
    pattern, hits = (str(known["image"]), 0) if "image" in known else image_pattern(rows, files)
    if not pattern:
        if why := why_no_image(rows, files) or written.partition(": only ")[2]:
            raise ConfigError(f"{table}: no column names images of {folder}: {why}")
        examples = f"the first files are {listed(files, 3)}; columns are {listed(rows.columns, 40)}"
        raise ConfigError(f"{table}: no column or combination of columns names the images below {folder}; {examples}")
    proposal.arguments["image"] = pattern
    if hits:
        proposal.reasons["image"] = f"{hits:,} of {len(rows):,} rows have their image among {len(files):,} files"
    free = [name for name in rows.columns if name not in columns_of(pattern)]
    for key in [key for key in ("patient", "site", "split") if key not in known]:
        _add(proposal, key, rows, free if key != "patient" else list(rows.columns), known.get("splits") or {})
    free = [name for name in free if name not in proposal.arguments.values()]
    words = _few_words(rows, free)
    labels, left_out = ([], "") if {"labels", "findings"} & known.keys() else _label_columns(rows, free)
    if labels:
        proposal.arguments["labels"], proposal.reasons["labels"] = labels, left_out
    elif not {"labels", "findings"} & known.keys():
        _add_findings(proposal, rows, free)
    proposal.arguments |= known
    if "classes" in known:
        _add_classes(proposal, known, rows, free)
    elif labels and (idle := _without_positives(rows, free, labels)):
        idle_reason = (
            f"left out, because no image is positive: {listed(idle)}; --classes sets the classes of a federation"
        )
        proposal.reasons["labels"] = "; ".join(filter(None, (left_out, idle_reason)))
    if "labels" not in proposal.arguments and "findings" not in proposal.arguments:
        raise ConfigError(
            f"{table}: no column has labels such as 1, 0, -1, yes, no, positive, negative, nor lists of findings; "
            f"columns are {listed(rows.columns, 40)}{f'; of few words are {words}' * bool(words)}. Define the meaning "
            f"of the cells: --set '{{labels: [COLUMN], values: {{WORD: positive}}}}'"
        )
    if "views" not in known:
        _add_views(proposal, rows, [name for name in free if name not in labels])
    arguments = proposal.arguments
    groups = arguments.get("groups") or ()
    used = {*(groups.values() if isinstance(groups, Mapping) else groups)}
    used |= {*labels, *arguments.get("labels", ()), *arguments.get("views", ()), *map(str, arguments.values())}
    if words := _few_words(rows, [name for name in free if name not in used]):
        proposal.reasons["unused"] = (
            f"not used: {words}. Is one of them a label (labels, values) or the split (split, splits)?"
        )
    return proposal


def _add(proposal: Proposal, key: str, rows: pd.DataFrame, columns: Sequence[str], words: Mapping[str, str]) -> None:
    if key == "split":  # by name, else by words that are not labels
        named = [name for name in columns if _NAMED[key].fullmatch(name)]
        named += [name for name in columns if not set(map(folded, rows[name])) <= SPELLED.keys()]
    else:
        named = [name for name in columns if _NAMED[key].search(name)]
    fits = next((name for name in named if _fits(key, rows[name], words)), "")
    if key == "split" and not fits:  # unknown words are then errors with their lines
        fits = next((name for name in named if _may_be_split(name, rows[name])), "")
    if fits:
        proposal.arguments[key] = fits
        different = rows[fits].nunique()
        proposal.reasons[key] = f"{different:,} different" if different > 1 else f"all {rows[fits].iloc[0]}: one client"
    else:
        without = {
            "patient": "patient: no column has such a name; each image is then a patient of its own",
            "site": "site: no column has such a name; patients are then dealt to four clients. A hospital of a "
            "federation adds a column with its name",
            "split": "split: no column has train, val and test; patients are then divided by the fractions of the data",
        }
        proposal.reasons[key] = without[key]
        repeated = [] if key != "patient" else _repeated(rows)
        proposal.reasons[key] += f". Is it {' or '.join(repeated)}?" if repeated else ""


def _fits(key: str, cells: pd.Series, words: Mapping[str, str]) -> bool:
    if key == "split":
        return set(cells.str.casefold()) <= split_words(words).keys()
    different = cells[cells != ""].nunique()
    return 0 < different <= SITES if key == "site" else different > 1


def _repeated(rows: pd.DataFrame) -> list[str]:
    """Return at most three columns whose cells may be ids of patients with several images, with their numbers."""
    counts = rows.where(rows != "").nunique().sort_values(ascending=False, kind="stable")
    counts = counts[(counts > 1) & (counts / len(rows) >= ASKED[0]) & (counts / len(rows) < ASKED[1])]
    ids = [name for name in counts.index if _may_be_ids(name, rows[name][rows[name] != ""])]
    return [f"{name!r} ({counts[name]:,} different)" for name in ids[:3]]


def _may_be_ids(name: str, cells: pd.Series) -> bool:
    """Return True if repeated cells may be ids, by the name of their column and their values.

    Text may be ids, except for dates and ages. Whole numbers other than years may be ids in three cases: they exceed
    ``LARGEST``, they have no gaps, or equal ones are always adjacent, as in a table sorted by patient. Other
    quantities, such as ages, have gaps and repeat far apart. Ids up to ``LARGEST`` with gaps, in an unsorted table, are
    not recognised.
    """
    others = [_NO_FINDINGS.fullmatch, _QUANTITIES.search]
    others += [_NAMED[key].search for key in ("findings", "views", "site")]
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
    words = set(cells.str.casefold()) - {""}
    named = _NAMED["split"].fullmatch(name) and 0 < len(words) <= WORDS
    return bool(named or len({SPLITS[word] for word in words & SPLITS.keys()}) > 1)


def _label_columns(rows: pd.DataFrame, columns: Sequence[str]) -> tuple[list[str], str]:
    """Return the columns whose cells are nearly all labels, and the reason why others are left out, or ""."""
    labels = []
    for name in columns:
        meanings = rows[name].map({cell: SPELLED.get(folded(cell), "") for cell in rows[name].unique()})
        kinds = set(meanings) - {""}
        if (meanings != "").mean() >= MOST and "positive" in kinds and len(kinds) > 1:
            labels.append(name)
    negative = [name for name in labels if folded(name).replace("_", " ") in NO_FINDING]
    others = [name for name in labels if _NO_FINDINGS.fullmatch(name)]
    words = [f"because {listed(negative)} means that there is no finding"] * bool(negative)
    words += [f"because their names are not findings: {listed(others)}"] * bool(others)
    left_out = f"left out, {'; '.join(words)}" if words else ""
    return [name for name in labels if name not in negative and name not in others], left_out


def _add_classes(proposal: Proposal, known: Mapping[str, Any], rows: pd.DataFrame, columns: Sequence[str]) -> None:
    """Add the labels of a federation's classes, and the classes that these images are not labelled for.

    A column whose labels are all negative belongs to a class that was looked for. A column without labels, and a
    finding that no list names, belong to classes that were not.
    """
    arguments, classes = proposal.arguments, [str(name) for name in known["classes"]]
    if column := arguments.get("findings"):
        separator = arguments.get("separator", "|")
        there = sorted({part for cell in rows[column].unique() for part in parts_of(cell, separator)})
        of = _like(classes, [part for part in there if folded(part) not in NO_FINDING])
        what = f"no list of {column!r} names {{}}; if it was looked for and never found, add it to labels, not here"
    else:
        of = _like(classes, [name for name in columns if _meanings(rows[name]) - {"blank"}])
        arguments["labels"] = known.get("labels") or [of[name] for name in classes if name in of]
        proposal.reasons["labels"] = ""
        what = "no column has labels of {}"
    if "names" not in known and any(name != label for name, label in of.items()):
        arguments["names"] = {name: of[name] for name in classes if name in of}
    if "unlabelled" not in known and (without := [name for name in classes if name not in of]) and of:
        arguments["unlabelled"], proposal.reasons["unlabelled"] = without, what.format(listed(without))


def _like(classes: Sequence[str], labels: Sequence[str]) -> dict[str, str]:
    """Return the label of each class that differs only in case, blanks and punctuation."""
    spelled = {letters(label): label for label in labels}
    return {name: spelled[letters(name)] for name in classes if letters(name) in spelled}


def _meanings(cells: pd.Series) -> set[str]:
    means = {SPELLED.get(folded(cell), "") for cell in cells.unique()}
    return set() if "" in means else means


def _without_positives(rows: pd.DataFrame, columns: Sequence[str], labels: Sequence[str]) -> list[str]:
    """Return the columns that may be labels but have no positive cell: all cells are 0, no or empty."""
    others = [name for name in columns if name not in labels and not _NO_FINDINGS.fullmatch(name)]
    return [
        name
        for name in others
        if "positive" not in (kinds := _meanings(rows[name])) and kinds and not _QUANTITIES.search(name)
    ]


def _few_words(rows: pd.DataFrame, columns: Sequence[str]) -> str:
    """Return the columns with two to five different words, which may have a meaning, and these words."""
    few = {name: sorted(set(rows[name]) - {""}) for name in columns if not _NO_FINDINGS.fullmatch(name)}
    return "; ".join(
        f"{name!r} ({', '.join(words)})"
        for name, words in few.items()
        if 1 < len(words) <= FEW_WORDS and not is_numeric(words)
    )


def _add_findings(proposal: Proposal, rows: pd.DataFrame, columns: Sequence[str]) -> None:
    for name in sorted(columns, key=lambda name: not _NAMED["findings"].search(name)):
        cells = rows[name][rows[name] != ""]
        if _NAMED["findings"].search(name) and len(cells):
            plain = cells[~cells.str.fullmatch(r"[\[({].*[\])}]")]  # of lists as Python and JSON write them
            separator = max(SEPARATORS, key=lambda sign: plain.str.contains(sign, regex=False).sum())
            parts = {part for cell in cells.unique() for part in parts_of(cell, separator)}
            if len(parts) <= max(2, len(cells) // 3):
                proposal.arguments |= {"findings": name, "separator": separator}
                proposal.reasons["findings"] = f"{len(parts)} different: {listed(sorted(parts), 6)}"
                return


def _add_views(proposal: Proposal, rows: pd.DataFrame, columns: Sequence[str]) -> None:
    for name in columns:
        counts = rows[name].value_counts()
        frontal = [str(view) for view in counts.index if FRONTAL.fullmatch(str(view).strip())]
        if _NAMED["views"].search(name) and frontal and len(frontal) < len(counts):
            proposal.arguments["views"] = {name: frontal}
            others = ", ".join(f"{count:,} {view or 'none'}" for view, count in counts.items() if view not in frontal)
            proposal.reasons["views"] = f"left out: {others}"
            return
