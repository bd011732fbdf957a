"""Tables of a comparison for a paper, in LaTeX with booktabs.

A number is bold because of its test, never because its mean is the largest: a method if it is better than the baseline
beyond noise, and the baseline if all other methods are worse beyond noise.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from fedlit.metrics.intervals import FEWEST, Interval
from fedlit.metrics.paired import p_text
from fedlit.reports.compare.difference import Difference
from fedlit.reports.compare.joining import Joining
from fedlit.reports.compare.statistics import Statistics
from fedlit.reports.compare.words import short

MACRO = " macro: mean over classes."
SIGNS = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$", "\u2212": "$-$", "\u00b1": r"$\pm$",
    "\u00b2": "$^2$",
}  # fmt: skip


def write_latex(folder: Path, numbers: Statistics | None, joining: Joining | None) -> list[Path]:
    """Write a ``.tex`` file for each table of the numbers and the gains; return the files."""
    tables = {}
    if numbers is not None:
        tables["auroc"] = auroc_table(numbers)
        if numbers.against:
            tables["differences"] = differences_table(numbers)
    if joining is not None:
        tables["gains"] = gains_table(joining)
    for name, text in tables.items():
        (folder / f"{name}.tex").write_text(text, encoding="utf-8")
    return [folder / f"{name}.tex" for name in tables]


def auroc_table(numbers: Statistics) -> str:
    """Return the AUROC of each class and method, with its interval, as a LaTeX table."""
    changes = {each.method.name: each.rows for each in numbers.against}
    rows = []
    for i, name in enumerate(numbers.names):
        of_class = [each[i] for each in changes.values()]
        cells = []
        for scored in numbers.scored:
            estimate, change = scored.rows[i], changes.get(scored.method.name)
            better = change[i].claimed and change[i].value > 0 if change else False
            if not change and of_class:
                better = all(each.claimed and each.value < 0 for each in of_class)
            cells.append(_bold(f"{short(estimate.value)}{_ends(estimate.interval)}", better))
        rows.append([escaped(name), *cells])
    seeds = "one seed" if numbers.spread is None else f"mean over {numbers.spread}"
    caption = (
        f"AUROC on {numbers.images} ({seeds}), {100 * numbers.level:g}% intervals under test-set noise; none with "
        f"fewer than {FEWEST} patients on the rarer side.{MACRO}"
    )
    if numbers.against:
        caption += (
            f" Bold: better than {numbers.against[0].baseline.name} beyond test-set and seed noise (Holm-corrected p "
            "below 0.05), or, for it, better than all others."
        )
    return _table(caption, ["class", *(scored.method.name for scored in numbers.scored)], rows, apart=1)


def differences_table(numbers: Statistics) -> str:
    """Return each method's difference from the baseline, with interval and p, as a LaTeX table."""
    rows = []
    for i, name in enumerate(numbers.names):
        changes = [each.rows[i] for each in numbers.against]
        cells = [cell for each in changes for cell in (_change(each), escaped(p_text(each.p_holm)))]
        rows.append([escaped(name), *cells])
    baseline = numbers.against[0].baseline.name
    noise = "test-set and seed noise" if any(each.several_seeds for each in numbers.against) else "test-set noise only"
    caption = (
        f"Difference in AUROC from {baseline}, with {100 * numbers.level:g}% intervals under {noise}, and p corrected "
        f"by Holm; intervals are not corrected. Bold: beyond noise (p below 0.05).{MACRO}"
    )
    head = ["class", *(word for each in numbers.against for word in (each.method.name, "p"))]
    return _table(caption, head, rows, apart=1)


def gains_table(joining: Joining) -> str:
    """Return the gain of each site from each method as a LaTeX table, with the summary over sites."""
    by_site = zip(*(each.home for each in joining.methods), strict=True)
    rows = [[escaped(g[0].site), short(g[0].own.value), *(_change(each.gain) for each in g)] for g in by_site]
    summaries = [each.summary for each in joining.methods]
    if apart := int(any(summaries)):
        rows.append(["all sites", "", *("--" if s is None else _change(s.as_difference) for s in summaries)])
    caption = (
        f"AUROC of each site's own model on its test images, and what joining adds, with {100 * joining.level:g}% "
        "intervals under test-set and seed noise, which are not corrected. Bold: beyond noise (p below 0.05, "
        "Holm-corrected over sites and methods). All sites: random effects (DerSimonian-Laird, Hartung-Knapp)."
    )
    return _table(caption, ["site", "own model", *(each.method.name for each in joining.methods)], rows, apart)


def escaped(text: str) -> str:
    """Return text with the characters escaped that mean something to LaTeX."""
    return re.sub("|".join(map(re.escape, SIGNS)), lambda match: SIGNS[match[0]], text)


def _table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]], apart: int) -> str:
    """Return a table; the last rows may be set apart by a rule."""
    body = [" & ".join(row) + r" \\" for row in rows]
    if apart:
        body.insert(len(body) - apart, r"\midrule")
    columns = rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}"
    lines = ["% needs \\usepackage{booktabs}", r"\begin{table}", r"\centering", rf"\caption{{{escaped(caption)}}}"]
    lines += [columns, r"\toprule", " & ".join(map(escaped, head)) + r" \\", r"\midrule"]
    return "\n".join([*lines, *body, r"\bottomrule", r"\end{tabular}", r"\end{table}"]) + "\n"


def _change(change: Difference) -> str:
    if change.value != change.value:
        return "--"
    return _bold(_signed(f"{change.value:+.3f}") + _ends(change.interval, "+.3f"), change.claimed)


def _bold(text: str, claimed: bool) -> str:
    return rf"\textbf{{{text}}}" if claimed else text


def _ends(interval: Interval, form: str = ".3f") -> str:
    if interval.low != interval.low:
        return ""
    return f" [{_signed(format(interval.low, form))}, {_signed(format(interval.high, form))}]"


def _signed(text: str) -> str:
    return text.replace("-", "$-$")
