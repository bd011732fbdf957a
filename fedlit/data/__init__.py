"""Data of a federation: sources, partitions into clients, and the batches that they see."""

from fedlit.data.federated import ClientData, FederatedDataModule
from fedlit.data.nih import NIHChestXray14
from fedlit.data.partition import IID, ByColumn, ByOrganisation, ByPatient, Dirichlet, Partition
from fedlit.data.phantom import PhantomCXR
from fedlit.data.records import Records

__all__ = [
    "IID",
    "ByColumn",
    "ByOrganisation",
    "ByPatient",
    "ClientData",
    "Dirichlet",
    "FederatedDataModule",
    "NIHChestXray14",
    "Partition",
    "PhantomCXR",
    "Records",
]
