"""Federations of FLamby (Ogier du Terrail et al., NeurIPS 2022, arXiv:2210.04620): real hospitals, fixed splits."""

from fedlit.data.flamby.heart import FedHeartDisease
from fedlit.data.flamby.isic import FedISIC2019

__all__ = ["FedHeartDisease", "FedISIC2019"]
