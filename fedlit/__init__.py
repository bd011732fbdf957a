"""fedlit: federated learning experiments on imbalanced, heterogeneous medical images."""

__version__ = "0.1.0"
