"""Data of a federation: sources, partitions into clients, and their batches.

Classes are imported on first use: opening an image file needs no PyTorch, whose import takes seconds.
"""

from fedlit.core.system.imports import lazily

__getattr__, __dir__, __all__ = lazily(
    __name__,
    {
        "fedlit.core.messages": ["ClientData"],
        "fedlit.data.binary": [
            "CIFAR10", "CIFAR100", "STL10", "CATvsDOG", "CategorisedImages", "CategoryImages", "FashionMNIST",
            "ImageNet", "Melanoma", "ParquetImages",
        ],
        "fedlit.data.federated": ["FederatedDataModule"],
        "fedlit.data.flamby": ["FedHeartDisease", "FedISIC2019"],
        "fedlit.data.held_at_sites": ["HeldAtSites"],
        "fedlit.data.organisations": ["Organisations"],
        "fedlit.data.own": ["ClassFolders", "ImageTable", "MedMNIST"],
        "fedlit.data.partition": [
            "IID", "ByCategory", "ByColumn", "ByOrganisation", "ByPatient", "Dirichlet", "Partition",
            "WithinOrganisations",
        ],
        "fedlit.data.phantom": ["PhantomCXR"],
        "fedlit.data.records": ["Records"],
        "fedlit.data.schemes": ["DeclaredClasses", "HideClasses", "LabelScheme"],
        "fedlit.data.xrays": ["MIMICCXR", "MIMICCXRLT", "CheXpert", "NIHChestXray14", "PadChest", "VinDrCXR"],
    },
)  # fmt: skip
