"""Reproductions: a paper's figure or table from runs that anybody can start, with ``fedlit reproduce NAME``."""

from fedlit.reports.reproductions.base import Reproduction
from fedlit.reports.reproductions.fdam import (
    FDAMFigure1,
    FDAMFigure2,
    FDAMFigure3,
    FDAMFigure4,
    FDAMTable3,
    FDAMTable4,
    FDAMTable5,
)
from fedlit.reports.reproductions.localscgdam import (
    LocalSCGDAMFigure1,
    LocalSCGDAMFigure2,
    LocalSCGDAMFigure3,
    LocalSCGDAMFigure4,
    LocalSCGDAMFigure5,
    LocalSCGDAMTable1,
)
from fedlit.reports.reproductions.surgical import (
    SurgicalTable1,
    SurgicalTable2,
    SurgicalTable3,
    SurgicalTable4,
    SurgicalTables,
)
from fedlit.reports.reproductions.surgical.simulation import SurgicalFigure5, SurgicalFigure6, SurgicalFigure7

REPRODUCTIONS: dict[str, type[Reproduction]] = {
    kind.name: kind
    for kind in (
        FDAMFigure1,
        FDAMFigure2,
        FDAMFigure3,
        FDAMFigure4,
        FDAMTable3,
        FDAMTable4,
        FDAMTable5,
        LocalSCGDAMTable1,
        LocalSCGDAMFigure1,
        LocalSCGDAMFigure2,
        LocalSCGDAMFigure3,
        LocalSCGDAMFigure4,
        LocalSCGDAMFigure5,
        SurgicalTables,
        SurgicalTable1,
        SurgicalTable2,
        SurgicalTable3,
        SurgicalTable4,
        SurgicalFigure5,
        SurgicalFigure6,
        SurgicalFigure7,
    )
}
"""By name; those of one paper together."""

__all__ = ["REPRODUCTIONS", "Reproduction"]
