"""Data of a federation: sources, partitions into clients, and the batches that they see."""

from fedlit.data.categories import CategorisedImages, CategoryImages
from fedlit.data.catvsdog import CATvsDOG
from fedlit.data.chexpert import CheXpert
from fedlit.data.federated import ClientData, FederatedDataModule
from fedlit.data.melanoma import Melanoma
from fedlit.data.mimic import MIMICCXR, MIMICCXRLT
from fedlit.data.nih import NIHChestXray14
from fedlit.data.organisations import Organisations
from fedlit.data.padchest import PadChest
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
from fedlit.data.vindr import VinDrCXR
from fedlit.data.vision import CIFAR10, CIFAR100, STL10, FashionMNIST, ImageNet, ParquetImages

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "IID",
    "MIMICCXR",
    "MIMICCXRLT",
    "STL10",
    "ByCategory",
    "ByColumn",
    "ByOrganisation",
    "ByPatient",
    "CATvsDOG",
    "CategorisedImages",
    "CategoryImages",
    "CheXpert",
    "ClientData",
    "DeclaredClasses",
    "Dirichlet",
    "FashionMNIST",
    "FederatedDataModule",
    "HideClasses",
    "ImageNet",
    "LabelScheme",
    "Melanoma",
    "NIHChestXray14",
    "Organisations",
    "PadChest",
    "ParquetImages",
    "Partition",
    "PhantomCXR",
    "Records",
    "VinDrCXR",
    "WithinOrganisations",
]
