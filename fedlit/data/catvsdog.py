"""Dogs vs. Cats in the layout of its downloads."""

import re
from pathlib import Path
from typing import Literal

import numpy as np

from fedlit.data.categories import CategorisedImages, CategoryImages
from fedlit.data.images import decode_images
from fedlit.data.records import listed

ANIMALS = ("cat", "dog")
TEST_EVERY = 5
_LAYOUTS = {"train": re.compile(r"(cat|dog)\.(\d+)\.jpg"), "PetImages": re.compile(r"(Cat|Dog)/(\d+)\.jpg")}


class CATvsDOG(CategoryImages):
    """Dogs vs. Cats: 25,000 photographs of many sizes, half of them of cats, which are the positive class by default.

    Elson, Douceur, Howell, Saul, "Asirra", CCS 2007, https://www.kaggle.com/c/dogs-vs-cats. The folder has Kaggle's
    layout, or else that of Microsoft's download:

    ::

        train/cat.0.jpg  ...  train/cat.12499.jpg        PetImages/Cat/0.jpg  ...  PetImages/Cat/12499.jpg
        train/dog.0.jpg  ...  train/dog.12499.jpg        PetImages/Dog/0.jpg  ...  PetImages/Dog/12499.jpg

    Two images of Microsoft's are damaged and have to be removed: `Cat/666.jpg` and `Dog/11702.jpg`. Kaggle's `test1/`
    has no labels and is not used. Instead every fifth image of each animal by its number (4, 9, 14, ...) is for the
    test: 2,500 cats and 2,500 dogs, whatever the seed. Images are squeezed to squares.

    Args:
        positives: Names of the positive categories, or `first_half`: `cat`.
        image_size: Height and width of the images in pixels.
        **kwargs: Further arguments of CategoryImages.
    """

    layout = "expected Kaggle's train/cat.0.jpg, train/dog.0.jpg, ..., or PetImages/Cat/0.jpg, PetImages/Dog/0.jpg, ..."

    def __init__(
        self,
        root: Path | None = None,
        positives: list[str] | Literal["first_half"] | None = "first_half",
        image_size: int = 32,
        **kwargs,
    ):
        super().__init__(root, positives=positives, image_size=image_size, **kwargs)

    def read(self) -> CategorisedImages:
        """Lists the folder and decodes the images into the cache, as RGB."""
        folder = next((name for name in _LAYOUTS if (self.root / name).is_dir()), None)
        if folder is None:
            raise self.missing(
                f"found {listed(sorted(path.name for path in self.root.iterdir())) or 'an empty folder'}"
            )
        names = sorted(file.relative_to(self.root / folder).as_posix() for file in (self.root / folder).rglob("*.jpg"))
        parsed = [_LAYOUTS[folder].fullmatch(name) for name in names]
        strange = [name for name, match in zip(names, parsed, strict=True) if match is None]
        if strange:
            raise ValueError(
                f"{self.root / folder}: {len(strange)} images have another name than the data set's, the first are "
                f"{listed(strange, 3)}; {self.layout}. Move them away."
            )
        category = np.array([ANIMALS.index(match[1].lower()) for match in parsed], dtype=np.int64)
        for_test = np.array([int(match[2]) % TEST_EVERY == TEST_EVERY - 1 for match in parsed], dtype=bool)
        for number, animal in enumerate(ANIMALS):
            for part, rule, here in (("test", "that", for_test), ("training", "another than that", ~for_test)):
                if not (here & (category == number)).any():
                    raise ValueError(
                        f"{self.root / folder}: found no {part} image of a {animal}, whose number is {rule} of every fifth "
                        f"(4, 9, 14, ...), among {(category == number).sum()} of its images; {self.layout}"
                    )
        return CategorisedImages(
            store=decode_images([self.root / folder / name for name in names], self.image_size, 3, self.cache_dir),
            names=np.array(names),
            categories=ANIMALS,
            category=category,
            splits=np.where(for_test, "test", "train_val"),
        )
