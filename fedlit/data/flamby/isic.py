"""Fed-ISIC2019: skin lesions of six centres, with FLamby's split file."""

from pathlib import Path

import numpy as np

from fedlit.core.errors import DataError, MissingFileError
from fedlit.data.federated import FederatedDataModule
from fedlit.data.partition import ByOrganisation, Partition
from fedlit.data.pictures.images import decode_images
from fedlit.data.records import Records, contents
from fedlit.data.tables import LabelTable, numbers, read_table, refuse_repeats

CLASSES = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
CENTRES = ("BCN", "HAM_vidir_molemax", "HAM_vidir_modern", "HAM_rosendahl", "MSK", "HAM_vienna_dias")
SPLIT_FILE = "train_test_split"
FOLDERS = ("ISIC_2019_Training_Input_preprocessed", "ISIC_2019_Training_Input", ".")
IMAGENET = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])


class FedISIC2019(FederatedDataModule):
    """ISIC 2019's training images of known origin: 23,247 dermoscopic images of six centres and eight classes.

    Tschandl et al., Scientific Data 2018; Codella et al., arXiv:1710.05006; Combalia et al., arXiv:1908.02288;
    https://challenge.isic-archive.com. Centres, labels and split are those of FLamby's file
    ``fed_isic2019/dataset_creation_scripts/train_test_split`` (https://github.com/owkin/FLamby), which has no suffix:

    ::

        train_test_split                                           image,MEL,NV,...,UNK,target,center,fold,fold2
        ISIC_2019_Training_Input_preprocessed/ISIC_0065613.jpg     or ISIC_2019_Training_Input/, or next to the file
        ...

    FLamby's preprocessing resizes the shorter edge to 224 pixels and balances the colours (shades of grey); FLamby
    tests on the central 200 x 200 pixels. Deviation: here whole images are squeezed to squares of ``image_size``.

    The split is FLamby's, by image: it ignores patients, so images of one lesion may be in training and test. It has no
    validation set, so the last model is used; ``split: [0.9, 0.1, 0]`` takes one from the training images.

    Args:
        root: The folder of the split file and of the images. There is no default, and nothing is downloaded.
        split_file: The split file, if it is not in ``root``.
        partition: The rule that gives each record to a client; by default ``ByOrganisation``, the six centres.
        image_size: Height and width of the images in pixels, at least 8.
        in_chans: Number of channels of the images: 3 is RGB, 1 is grey.
        mean: Mean that is subtracted from the pixels in [0, 1]: one value, or one for each channel; by default
            ImageNet's of RGB, and 0.449 of grey.
        std: Standard deviation by which the pixels are divided after that; by default ImageNet's of RGB, 0.226 of grey.
        split: Fractions of training and validation among the official training images; by default all are for training.
            The third number is not used, because the test sets are official.
        **kwargs: Further arguments of FederatedDataModule.
    """

    classes = CLASSES
    photographs = True
    layout = (
        f"expected FLamby's {SPLIT_FILE}, and images such as ISIC_0065613.jpg in {FOLDERS[0]}/, {FOLDERS[1]}/ or next "
        "to it"
    )

    def __init__(
        self,
        root: Path | None = None,
        split_file: Path | None = None,
        partition: Partition | None = None,
        image_size: int = 200,
        in_chans: int = 3,
        mean: float | list[float] | None = None,
        std: float | list[float] | None = None,
        split: tuple[float, float, float] = (1.0, 0.0, 0.0),
        **kwargs,
    ):
        usual = IMAGENET if in_chans == 3 else (0.449, 0.226)
        mean, std = (default if value is None else value for value, default in zip((mean, std), usual, strict=True))
        partition = ByOrganisation() if partition is None else partition
        looks = {"image_size": image_size, "in_chans": in_chans, "mean": mean, "std": std}
        super().__init__(partition, split=split, **looks, **kwargs)
        if root is None:
            raise DataError(f"data.root is missing: {self.layout}")
        self.root = Path(root).expanduser()
        self.split_file = self.root / SPLIT_FILE if split_file is None else Path(split_file).expanduser()

    def records(self) -> Records:
        """Read the split file and decode the images into the cache as RGB.

        Raises:
            MissingFileError: The split file or an image is missing.
            ValueError: A cell is wrong, or two columns contradict each other.
        """
        if not self.split_file.is_file():
            found = contents(self.root)
            raise MissingFileError(f"{self.split_file}: no such file; {self.root} has {found}; {self.layout}")
        table = read_table(self.split_file, ("image", *CLASSES, "target", "center", "fold"), ("image", "fold"))
        refuse_repeats(table, "image")
        names, labels = table.rows["image"].to_numpy(dtype=str), _labels(table)
        centres, folds = _whole(table, "center", len(CENTRES)), _folds(table)
        folder = next((self.root / name for name in FOLDERS if (self.root / name).is_dir()), self.root)
        files = [folder / f"{name}.jpg" for name in names.tolist()]
        return Records(
            store=decode_images(files, self.image_size, 3, self.cache_dir),
            names=names,
            labels=labels,
            classes=CLASSES,
            patients=names,
            sites=np.array(CENTRES)[centres],
            splits=folds,
            table=table.rows,
        )


def _whole(table: LabelTable, column: str, below: int) -> np.ndarray:
    values = numbers(table, [column], range(below))[:, 0]
    if (blank := np.isnan(values)).any():
        raise DataError(f"{table.at(blank)}: column {column!r} is empty ({blank.sum()} lines)")
    return values.astype(int)


def _labels(table: LabelTable) -> np.ndarray:
    """Return labels [N, 8] with a single 1 from ``target``, after comparing them with the columns of the classes."""
    labels = np.eye(len(CLASSES), dtype=np.float32)[_whole(table, "target", len(CLASSES))]
    wrong = (numbers(table, CLASSES, (0, 1)) != labels).any(axis=1)
    if wrong.any():
        row = int(np.argmax(wrong))
        named = CLASSES[int(labels[row].argmax())]
        raise DataError(
            f"{table.at(wrong)}: column 'target' says {named}, the columns of the classes do not ({wrong.sum()} "
            "such lines)"
        )
    return labels


def _folds(table: LabelTable) -> np.ndarray:
    folds = table.rows["fold"].to_numpy(dtype=str)
    wrong = ~np.isin(folds, ("train", "test"))
    if wrong.any():
        raise DataError(
            f"{table.at(wrong)}: column 'fold': expected train or test, found {str(folds[wrong][0])!r} "
            f"({wrong.sum()} such lines)"
        )
    return np.where(folds == "train", "train_val", folds)
