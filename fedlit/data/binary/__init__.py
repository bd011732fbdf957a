"""Benchmark images with one binary class: sets of categories, of which some are positive, and skin lesions.

``categories`` is the common base of the sets of categories; each other module reads one set, or several of one kind.
"""

from fedlit.data.binary.categories import CategorisedImages, CategoryImages
from fedlit.data.binary.catvsdog import CATvsDOG
from fedlit.data.binary.melanoma import Melanoma
from fedlit.data.binary.vision import CIFAR10, CIFAR100, STL10, FashionMNIST, ImageNet, ParquetImages

__all__ = [
    "CIFAR10", "CIFAR100", "STL10", "CATvsDOG", "CategorisedImages", "CategoryImages", "FashionMNIST", "ImageNet",
    "Melanoma", "ParquetImages",
]  # fmt: skip
