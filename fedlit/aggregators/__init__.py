"""Algorithms: one file each, with its client side and its server side."""

from fedlit.aggregators.adaptive import FedAdagrad, FedAdam, FedYogi
from fedlit.aggregators.batchnorm import FedBN, FedBNPlus
from fedlit.aggregators.coda import CODA, NPA, CODAPlus
from fedlit.aggregators.codasca import CODASCA
from fedlit.aggregators.compositional import LocalSCGDAM
from fedlit.aggregators.dissimilarity import GradientDissimilarity
from fedlit.aggregators.ditto import Ditto
from fedlit.aggregators.dpsgd import DPSGD
from fedlit.aggregators.fedavg import FedAvg
from fedlit.aggregators.feddyn import FedDyn
from fedlit.aggregators.fednova import FedNova
from fedlit.aggregators.fedprox import FedProx
from fedlit.aggregators.momentum import LocalSGDAM, LocalSGDM
from fedlit.aggregators.moon import MOON
from fedlit.aggregators.moving_average import MovingAverage
from fedlit.aggregators.personal import FedPer, FedRep, LocalOnly, PersonalHeads
from fedlit.aggregators.robust import CoordinateMedian, NormBound, TrimmedMean
from fedlit.aggregators.scaffold import Scaffold
from fedlit.aggregators.server_optimizer import FedAvgM, ServerOptimizer
from fedlit.aggregators.surgical import SurgicalHeads
from fedlit.core.aggregator import Aggregator, ClientContext
from fedlit.core.flat import Layout
from fedlit.core.messages import Client, Mask, Measured, Payload, Round, ServerState, State

__all__ = [
    "CODA", "CODASCA", "DPSGD", "MOON", "NPA", "Aggregator", "CODAPlus", "Client", "ClientContext", "CoordinateMedian",
    "Ditto", "FedAdagrad", "FedAdam", "FedAvg", "FedAvgM", "FedBN", "FedBNPlus", "FedDyn", "FedNova", "FedPer",
    "FedProx", "FedRep", "FedYogi", "GradientDissimilarity", "Layout", "LocalOnly", "LocalSCGDAM", "LocalSGDAM",
    "LocalSGDM", "Mask", "Measured", "MovingAverage", "NormBound", "Payload", "PersonalHeads", "Round", "Scaffold",
    "ServerOptimizer", "ServerState", "State", "SurgicalHeads", "TrimmedMean",
]  # fmt: skip
