from fedlit.data.xrays.base import ChestXrays as ChestXrays
from fedlit.data.xrays.chexpert import CheXpert as CheXpert
from fedlit.data.xrays.mimic import MIMICCXR as MIMICCXR, MIMICCXRLT as MIMICCXRLT
from fedlit.data.xrays.nih import NIHChestXray14 as NIHChestXray14
from fedlit.data.xrays.padchest import PadChest as PadChest
from fedlit.data.xrays.reading import Reading as Reading
from fedlit.data.xrays.vindr import VinDrCXR as VinDrCXR
