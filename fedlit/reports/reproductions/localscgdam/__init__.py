"""LocalSCGDAM: Zhang et al., "Federated Compositional Deep AUC Maximization", NeurIPS 2023."""

from fedlit.reports.reproductions.localscgdam.figures import (
    LocalSCGDAMFigure1,
    LocalSCGDAMFigure2,
    LocalSCGDAMFigure3,
    LocalSCGDAMFigure4,
    LocalSCGDAMFigure5,
)
from fedlit.reports.reproductions.localscgdam.table1 import LocalSCGDAMTable1

__all__ = [
    "LocalSCGDAMFigure1",
    "LocalSCGDAMFigure2",
    "LocalSCGDAMFigure3",
    "LocalSCGDAMFigure4",
    "LocalSCGDAMFigure5",
    "LocalSCGDAMTable1",
]
