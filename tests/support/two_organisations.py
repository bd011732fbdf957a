"""NIH and CheXpert as two organisations, in small copies."""

from fedlit.data import PhantomCXR
from fedlit.data.organisations import Organisations
from fedlit.data.xrays.chexpert import CheXpert
from fedlit.data.xrays.nih import NIHChestXray14


def nih(roots, **kwargs) -> NIHChestXray14:
    return NIHChestXray14(roots["NIH"], **{"names": "harmonised", "official_split": False} | kwargs)


def chexpert(roots, **kwargs) -> CheXpert:
    return CheXpert(roots["CheXpert"], **{"names": "harmonised", "parts": ["train"]} | kwargs)


def both(roots, sources: dict | None = None, **kwargs) -> Organisations:
    sources = sources or {"NIH": nih(roots), "CheXpert": chexpert(roots)}
    return Organisations(sources, **{"image_size": 16, "cache_dir": str(roots["cache"])} | kwargs)


def small_phantom(**kwargs) -> PhantomCXR:
    return PhantomCXR(**{"hospitals": 1, "images": 40} | kwargs)
