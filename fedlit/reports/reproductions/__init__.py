"""Reproductions: a paper's figure or table from runs that anybody can start, with ``fedlit reproduce NAME``."""

from fedlit.reports.reproductions.base import Reproduction
from fedlit.reports.reproductions.fdam_fig1 import FDAMFigure1
from fedlit.reports.reproductions.surgical_tables import SurgicalTables

REPRODUCTIONS: dict[str, type[Reproduction]] = {"fdam-fig1": FDAMFigure1, "surgical-tables": SurgicalTables}

__all__ = ["REPRODUCTIONS", "Reproduction"]
