"""Algorithms: one file each, client half and server half together."""

from fedlit.aggregators.base import Aggregator, ClientContext
from fedlit.aggregators.batchnorm import FedBN
from fedlit.aggregators.coda import CODA, NPA, CODAPlus
from fedlit.aggregators.codasca import CODASCA
from fedlit.aggregators.fedavg import FedAvg
from fedlit.aggregators.fedprox import FedProx
from fedlit.aggregators.scaffold import Scaffold

__all__ = [
    "CODA",
    "CODASCA",
    "NPA",
    "Aggregator",
    "CODAPlus",
    "ClientContext",
    "FedAvg",
    "FedBN",
    "FedProx",
    "Scaffold",
]
