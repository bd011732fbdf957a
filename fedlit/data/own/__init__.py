"""Images of one's own that a few lines of YAML describe, without any code.

``image_table`` reads a table and a folder of images, ``written`` the file of the table, ``cells`` what its cells mean.
``proposal`` looks at a table and writes the YAML.
"""

from fedlit.data.own.image_table import ImageTable

__all__ = ["ImageTable"]
