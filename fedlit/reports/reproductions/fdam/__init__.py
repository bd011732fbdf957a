"""FDAM: Yuan et al., "Federated Deep AUC Maximization", ICML 2021."""

from fedlit.reports.reproductions.fdam.appendix import FDAMFigure2, FDAMFigure3, FDAMFigure4
from fedlit.reports.reproductions.fdam.figure1 import FDAMFigure1
from fedlit.reports.reproductions.fdam.table3 import FDAMTable3
from fedlit.reports.reproductions.fdam.target import FDAMTable4, FDAMTable5

__all__ = ["FDAMFigure1", "FDAMFigure2", "FDAMFigure3", "FDAMFigure4", "FDAMTable3", "FDAMTable4", "FDAMTable5"]
