"""Chest X-ray data sets, read in the layouts of their official downloads.

``base`` is the common base of the readers; each other module reads one data set. ``check`` finds mistakes in a folder.
"""

from fedlit.core.system.imports import lazily

__getattr__, __dir__, __all__ = lazily(__name__, __file__)
