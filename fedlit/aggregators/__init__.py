"""Algorithms: one file each, client half and server half together."""

from fedlit.aggregators.base import Aggregator, ClientContext
from fedlit.aggregators.batchnorm import FedBN
from fedlit.aggregators.fedavg import FedAvg
from fedlit.aggregators.fedprox import FedProx
from fedlit.aggregators.scaffold import Scaffold

__all__ = ["Aggregator", "ClientContext", "FedAvg", "FedBN", "FedProx", "Scaffold"]
