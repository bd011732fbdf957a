"""Data of a federation: sources, partitions into clients, and the batches that they see."""

from fedlit.core.messages import ClientData
from fedlit.data.binary import (
    CIFAR10,
    CIFAR100,
    STL10,
    CategorisedImages,
    CategoryImages,
    CATvsDOG,
    FashionMNIST,
    ImageNet,
    Melanoma,
    ParquetImages,
)
from fedlit.data.federated import FederatedDataModule
from fedlit.data.flamby import FedHeartDisease, FedISIC2019
from fedlit.data.organisations import Organisations
from fedlit.data.own import ClassFolders, ImageTable, MedMNIST
from fedlit.data.partition import (
    IID,
    ByCategory,
    ByColumn,
    ByOrganisation,
    ByPatient,
    Dirichlet,
    Partition,
    WithinOrganisations,
)
from fedlit.data.phantom import PhantomCXR
from fedlit.data.records import Records
from fedlit.data.schemes import DeclaredClasses, HideClasses, LabelScheme
from fedlit.data.xrays import MIMICCXR, MIMICCXRLT, CheXpert, NIHChestXray14, PadChest, VinDrCXR

__all__ = [
    "CIFAR10", "CIFAR100", "IID", "MIMICCXR", "MIMICCXRLT", "STL10", "ByCategory", "ByColumn", "ByOrganisation",
    "ByPatient", "CATvsDOG", "CategorisedImages", "CategoryImages", "CheXpert", "ClassFolders", "ClientData", "DeclaredClasses",
    "Dirichlet", "FashionMNIST", "FedHeartDisease", "FedISIC2019", "FederatedDataModule", "HideClasses", "ImageNet", "ImageTable", "LabelScheme", "MedMNIST", "Melanoma",
    "NIHChestXray14", "Organisations", "PadChest", "ParquetImages", "Partition", "PhantomCXR", "Records", "VinDrCXR",
    "WithinOrganisations",
]  # fmt: skip
