"""Reproductions: a paper's figure or table from runs that anybody can start, with ``fedlit reproduce NAME``."""

from fedlit.reports.reproductions.base import Reproduction
from fedlit.reports.reproductions.fdam import FDAMFigure1, FDAMTable3, FDAMTable4, FDAMTable5
from fedlit.reports.reproductions.localscgdam import LocalSCGDAMFigure4, LocalSCGDAMFigure5, LocalSCGDAMTable1
from fedlit.reports.reproductions.surgical import (
    SurgicalTable1,
    SurgicalTable2,
    SurgicalTable3,
    SurgicalTable4,
    SurgicalTables,
)

REPRODUCTIONS: dict[str, type[Reproduction]] = {
    kind.name: kind
    for kind in (
        FDAMFigure1,
        FDAMTable3,
        FDAMTable4,
        FDAMTable5,
        LocalSCGDAMTable1,
        LocalSCGDAMFigure4,
        LocalSCGDAMFigure5,
        SurgicalTables,
        SurgicalTable1,
        SurgicalTable2,
        SurgicalTable3,
        SurgicalTable4,
    )
}
"""By name; those of one paper together."""

__all__ = ["REPRODUCTIONS", "Reproduction"]
