"""Images of one's own that a few lines of YAML describe, without any code.

``image_table`` reads a table and a folder of images, ``written`` the file of the table, ``cells`` what its cells mean.
``proposal`` looks at a table and writes the YAML. ``class_folders`` reads a folder a class, ``medmnist`` the files of MedMNIST.
"""

from fedlit.data.own.class_folders import ClassFolders
from fedlit.data.own.image_table import ImageTable
from fedlit.data.own.medmnist import MedMNIST

__all__ = ["ClassFolders", "ImageTable", "MedMNIST"]
