"""Dogs vs. Cats in the layouts of its two downloads."""

import re
from pathlib import Path
from typing import Literal

import numpy as np

from fedlit.core.errors import DataError
from fedlit.data.binary.categories import CategorisedImages, CategoryImages
from fedlit.data.pictures.images import decode_images
from fedlit.data.records import contents, listed

ANIMALS = ("cat", "dog")
TEST_EVERY = 5
_LAYOUTS = {"train": re.compile(r"(cat|dog)\.(\d+)\.jpg"), "PetImages": re.compile(r"(Cat|Dog)/(\d+)\.jpg")}


class CATvsDOG(CategoryImages):
    """Dogs vs. Cats: 25,000 photographs of many sizes, half of them of cats, which are the positive class by default.

    Elson, Douceur, Howell, Saul, "Asirra", CCS 2007, https://www.kaggle.com/c/dogs-vs-cats. The folder has the layout
    of Kaggle's or of Microsoft's download:

    ::

        train/cat.0.jpg  ...  train/cat.12499.jpg        PetImages/Cat/0.jpg  ...  PetImages/Cat/12499.jpg
        train/dog.0.jpg  ...  train/dog.12499.jpg        PetImages/Dog/0.jpg  ...  PetImages/Dog/12499.jpg

    Two images of Microsoft's download are damaged and have to be removed: ``Cat/666.jpg`` and ``Dog/11702.jpg``.
    Kaggle's ``test1/`` has no labels and is not used. The test set is every fifth image of each animal by its number
    (4, 9, 14, ...), which is 2,500 cats and 2,500 dogs, whatever the seed. Images are squeezed to squares.

    Args:
        root: The folder of the download. There is no default, and nothing is downloaded.
        positives: Names of the positive categories, ``cat`` or ``dog``; ``first_half`` is ``cat``.
        image_size: Height and width of the images in pixels, at least 8.
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
        """List the folder, and decode the images into the cache as RGB."""
        folder = next((name for name in _LAYOUTS if (self.root / name).is_dir()), None)
        if folder is None:
            raise self.missing(f"found {contents(self.root)}")
        names = sorted(file.relative_to(self.root / folder).as_posix() for file in (self.root / folder).rglob("*.jpg"))
        parsed = [_LAYOUTS[folder].fullmatch(name) for name in names]
        if strange := [name for name, match in zip(names, parsed, strict=True) if match is None]:
            raise DataError(
                f"{self.root / folder}: {len(strange)} images have another name than the data set's, the first are "
                f"{listed(strange, 3)}; {self.layout}. Move them away."
            )
        category = np.array([ANIMALS.index(match[1].lower()) for match in parsed], dtype=np.int64)
        for_test = np.array([int(match[2]) % TEST_EVERY == TEST_EVERY - 1 for match in parsed], dtype=bool)
        for number, animal in enumerate(ANIMALS):
            parts = (("test", "4, 9, 14, ...", for_test), ("training", "0, 1, 2, 3, 5, ...", ~for_test))
            for part, numbers, here in parts:
                if not (here & (category == number)).any():
                    raise DataError(
                        f"{self.root / folder}: found no {part} image of a {animal}, whose number is one of {numbers}, "
                        f"among {(category == number).sum()} of its images; {self.layout}"
                    )
        return CategorisedImages(
            store=decode_images([self.root / folder / name for name in names], self.image_size, 3, self.cache_dir),
            names=np.array(names),
            categories=ANIMALS,
            category=category,
            splits=np.where(for_test, "test", "train_val"),
        )
