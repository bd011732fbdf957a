"""Readers of your own images, described by a few lines of YAML.

``image_table`` reads a table and a folder of images, and ``cells`` interprets the table's cells. ``proposal`` inspects
a table and proposes the YAML. ``class_folders`` reads one folder per class, and ``medmnist`` the files of MedMNIST.
"""

from fedlit.core.system.imports import lazily

__getattr__, __dir__, __all__ = lazily(__name__, __file__)
