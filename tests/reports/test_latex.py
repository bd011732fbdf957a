"""LaTeX tables of a comparison: their structure, escapes, and what is bold."""

import re
from dataclasses import replace

import pytest
from past_runs import compared, predictions

from fedlit.reports.compare.tables import auroc_table, differences_table
from fedlit.reports.table import escaped


def cells(table: str) -> list[list[str]]:
    """Return the cells of all rows."""
    body = table.split(r"\toprule")[1].split(r"\bottomrule")[0]
    return [line.removesuffix(r" \\").split(" & ") for line in body.splitlines() if line.endswith(r"\\")]


@pytest.fixture(scope="module")
def numbers():
    names = ("Nodule_&_Mass", "50%", "Plain")
    found = {
        (method, seed): replace(predictions(strength, seed + place, 600), classes=names)
        for place, (method, strength) in enumerate((("FedAvg", 0.5), ("FedProx", 0.52), ("Scaffold", 2.0)))
        for seed in (0, 10, 20)
    }
    return compared(found, draws=100)


def test_rows_have_the_columns_of_the_table(numbers):
    for table in (auroc_table(numbers, "federation").latex(), differences_table(numbers).latex()):
        columns = re.search(r"\\begin\{tabular\}\{(l+r+)\}", table)[1]
        assert {len(row) for row in cells(table)} == {len(columns)}
        assert len(cells(table)) == 1 + len(numbers.shared.classes) + 1
        for word in (r"\toprule", r"\midrule", r"\bottomrule", r"\caption{", r"\end{tabular}", r"\end{table}"):
            assert word in table
        assert not re.search(r"(?<!\\)[_%#](?!.*needs)", table.split("\n", 1)[1])
        assert table.count("{") - table.count(r"\{") == table.count("}") - table.count(r"\}")
        assert table.count("$") % 2 == 0
    assert r"Nodule\_\&\_Mass" in table
    assert r"50\%" in table


def test_bold_is_what_the_test_claims_and_not_the_largest_mean(numbers):
    close, better = numbers.against
    assert not close.macro.claimed
    assert better.macro.claimed
    *rows, macro = cells(auroc_table(numbers, "federation").latex())[1:]
    for row in (*rows, macro):
        assert "textbf" not in row[1] + row[2]
        assert row[3].startswith(r"\textbf{")
    for row in cells(differences_table(numbers).latex())[1:]:
        assert "textbf" not in row[1]
        assert row[3].startswith(r"\textbf{+")


def test_the_baseline_is_bold_if_all_others_are_worse(numbers):
    worse = [replace(e, macro=replace(e.macro, value=-0.1, p_holm=0.001), classes=tuple(
        replace(c, value=-0.1, p_holm=0.001) for c in e.classes)) for e in numbers.against]  # fmt: skip
    row = cells(auroc_table(replace(numbers, against=tuple(worse)), "federation").latex())[1]
    assert row[1].startswith(r"\textbf{")
    assert "textbf" not in row[2] + row[3]
    row = cells(auroc_table(replace(numbers, against=(worse[0], numbers.against[0])), "federation").latex())[1]
    assert "textbf" not in row[1]


def test_characters_that_mean_something_are_escaped():
    assert escaped("a_b & 5% #1 {x} $2 ~ ^ \\") == (
        r"a\_b \& 5\% \#1 \{x\} \$2 \textasciitilde{} \textasciicircum{} \textbackslash{}"
    )
