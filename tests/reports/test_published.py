"""The papers' numbers that ship: as printed, as text, and apart from ours."""

import json

import pytest

from fedlit.reports.reproductions import NAMES as REPRODUCTIONS
from fedlit.reports.reproductions.document import find, read_document
from fedlit.reports.reproductions.published import PAPERS, Published, read_paper

NAMES = sorted(file.stem for file in PAPERS.glob("*.json"))


def row(paper: str, title: str, *start: str) -> tuple[str | None, ...]:
    found = [cells for cells in read_paper(paper).tables[title].rows if cells[: len(start)] == start]
    assert len(found) == 1
    return found[0][len(start) :]


@pytest.mark.parametrize("name", NAMES)
def test_no_cell_is_empty_and_every_row_and_column_has_a_name_of_its_own(name):
    for table in read_paper(name).tables.values():
        assert len(set(table.columns)) == len(table.columns)
        assert "" not in {cell for cells in table.rows for cell in cells}
        headings = [cells[:2] if table.columns[1] in ("I", "method", "seed") else cells[:1] for cells in table.rows]
        assert len(set(headings)) == len(headings)


@pytest.mark.parametrize("name", NAMES)
def test_the_files_hold_nothing_that_is_not_read(name):
    found = json.loads((PAPERS / f"{name}.json").read_text(encoding="utf-8"))
    assert set(found) == {"source", "tables"}
    assert all(set(table) <= {"caption", "columns", "rows", "note"} for table in found["tables"].values())


def test_numbers_are_those_of_the_papers():
    """Corners of each table, typed from the papers."""
    assert row("fdam", "Table 3", "CODA+ and CODASCA", "1") == ("0.8472", "0.8499", "0.7406", "0.7475", "0.8688")
    assert row("fdam", "Table 3", "CODASCA", "1024") == ("0.8363", "0.8444", "0.7346", "0.7481", "0.8674")
    assert row("fdam", "Table 4", "1") == ("0.9007", "0.9536", "0.9542", "0.9090", "0.9571", "0.9353")
    assert row("fdam", "Table 4", "5") == ("0.9066", "0.9583", "0.9544", "0.9101", "0.9584", "0.9376")
    assert row("fdam", "Table 5", "3") == ("0.9008", "0.9603", "0.9568", "0.9127", "0.9505", "0.9356")
    assert row("fdam", "Table 6", "ChestXrayAD") == ("0.153", "0.000", "0.024", "0.012", "0.069")
    assert row("fdam", "Figure 1", "16") == ("32", "128", "4")
    assert row("fdam", "Figure 1", "8") == ("128", "512", "4")
    assert row("localscgdam", "Table 1", "CATvsDOG", "CoDA") == ("0.895 ± 0.000", "0.892 ± 0.000", "0.883 ± 0.001")
    assert row("localscgdam", "Table 1", "Melanoma", "LocalSGDM_RL")[2] == "0.773 ± 0.001"
    assert row("surgical", "Table 1", "NIH Baseline") == ("0.84 ± 0.05 ns", "0.70 ± 0.07 **", "0.73 ± 0.10 **")
    assert row("surgical", "Table 2", "CheXpert Baseline") == (None, "0.74 ± 0.07 *", None)
    assert row("surgical", "Table 4", "FL + SurgAgg / FedBN+") == ("0.76 ± 0.10", "0.70 ± 0.12")
    assert row("flamby", "Fed-Heart-Disease", "SCAFFOLD", "42") == ("0.7500", "0.6966", "0.6875", "0.6222", "0.7520")
    assert row("flamby", "Fed-ISIC2019", "FedAvg", "46")[-2:] == ("0.4865", "0.3305")


def test_a_table_in_markdown():
    table = Published("Table 9", "What it shows", ("method", "AUC"), (("ours", "0.90"), ("theirs", None)), "A note.")
    assert table.markdown().splitlines() == [
        "Table 9. What it shows",
        "",
        "| method | AUC |",
        "|---|---|",
        "| ours | 0.90 |",
        "| theirs | - |",
        "",
        "A note.",
    ]


NOT_PUBLISHED = ["surgical-sites"]
"""A condition of a paper on its own, which no table of it shows."""


def test_every_reproduction_prints_tables_that_ship():
    assert [name for name in REPRODUCTIONS if not read_document(find(name)).tables] == NOT_PUBLISHED
    for name in REPRODUCTIONS:
        document = read_document(find(name))
        assert document.name == name
        assert set(document.tables) <= set(read_paper(document.paper).tables)
        assert {"laptop", "paper"} <= set(document.scales) <= {"laptop", "paper", "linked"}
        assert document.scales["paper"].root is not None
