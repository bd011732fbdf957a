"""Images of one's own that a few lines of YAML describe, without any code.

``image_table`` reads a table and a folder of images, ``written`` the file of the table, ``cells`` what its cells mean.
``proposal`` looks at a table and writes the YAML. ``class_folders`` reads a folder a class, ``medmnist`` the files of MedMNIST.
"""

from fedlit.core.system.imports import lazily

__getattr__, __dir__, __all__ = lazily(
    __name__,
    {
        "fedlit.data.own.class_folders": ["ClassFolders"],
        "fedlit.data.own.image_table": ["ImageTable"],
        "fedlit.data.own.medmnist": ["MedMNIST"],
    },
)
