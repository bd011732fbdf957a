"""Data of a federation: sources, partitions into clients, and their batches.

Classes are imported on first use: opening an image file needs no PyTorch, whose import takes seconds.
"""

from fedlit.core.system.imports import lazily

__getattr__, __dir__, __all__ = lazily(__name__, __file__)
