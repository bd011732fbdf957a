"""The report: means over seeds, with differences paired by seed."""

from fedlit.reports.reproductions.means import means

__all__ = ["means"]
