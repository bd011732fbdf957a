"""Chest X-ray data sets, read in the layouts of their official downloads.

``base`` has what all readers share, and each other module reads one data set. ``check`` looks for mistakes in a folder.
"""

from fedlit.data.xrays.base import ChestXrays, Reading
from fedlit.data.xrays.chexpert import CheXpert
from fedlit.data.xrays.mimic import MIMICCXR, MIMICCXRLT
from fedlit.data.xrays.nih import NIHChestXray14
from fedlit.data.xrays.padchest import PadChest
from fedlit.data.xrays.vindr import VinDrCXR

__all__ = [
    "MIMICCXR", "MIMICCXRLT", "CheXpert", "ChestXrays", "NIHChestXray14", "PadChest", "Reading", "VinDrCXR",
]  # fmt: skip
