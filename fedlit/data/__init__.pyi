from fedlit.core.messages import ClientData as ClientData
from fedlit.data.binary import (
    CIFAR10 as CIFAR10,
    CIFAR100 as CIFAR100,
    STL10 as STL10,
    CategorisedImages as CategorisedImages,
    CategoryImages as CategoryImages,
    CATvsDOG as CATvsDOG,
    FashionMNIST as FashionMNIST,
    ImageNet as ImageNet,
    Melanoma as Melanoma,
    ParquetImages as ParquetImages,
)
from fedlit.data.federated import FederatedDataModule as FederatedDataModule
from fedlit.data.flamby import FedHeartDisease as FedHeartDisease, FedISIC2019 as FedISIC2019
from fedlit.data.held_at_sites import HeldAtSites as HeldAtSites
from fedlit.data.organisations import Organisations as Organisations
from fedlit.data.own import ClassFolders as ClassFolders, ImageTable as ImageTable, MedMNIST as MedMNIST
from fedlit.data.partition import (
    IID as IID,
    ByCategory as ByCategory,
    ByColumn as ByColumn,
    ByOrganisation as ByOrganisation,
    ByPatient as ByPatient,
    Dirichlet as Dirichlet,
    Partition as Partition,
    WithinOrganisations as WithinOrganisations,
)
from fedlit.data.phantom import PhantomCXR as PhantomCXR
from fedlit.data.records import Records as Records
from fedlit.data.schemes import (
    DeclaredClasses as DeclaredClasses,
    HideClasses as HideClasses,
    LabelScheme as LabelScheme,
)
from fedlit.data.xrays import (
    MIMICCXR as MIMICCXR,
    MIMICCXRLT as MIMICCXRLT,
    CheXpert as CheXpert,
    NIHChestXray14 as NIHChestXray14,
    PadChest as PadChest,
    VinDrCXR as VinDrCXR,
)
