"""Pictures that are not square: squeezed, or padded with black, from the file to an exported model that scores one."""

from pathlib import Path

import numpy as np
import pytest
import yaml
from own_tables import opened, people, write_table
from PIL import Image
from refusals import refused

from fedlit.core.errors import DataError
from fedlit.data import ImageTable, Organisations, PhantomCXR
from fedlit.data.pictures.images import decode_images
from fedlit.data.pictures.pixels import read_image
from fedlit.models import ImageClassifier
from fedlit.predictions.export import described_images, save_model
from fedlit.predictions.serving import ImageScorer

SIZE = 16


@pytest.fixture(scope="module")
def wide(tmp_path_factory) -> Path:
    """Forty wide pictures without black, and a table of two hospitals, which no test changes."""
    place = tmp_path_factory.mktemp("wide")
    drawn = (np.random.default_rng(i).integers(60, 250, (24, 48), dtype=np.uint8) for i in range(40))
    columns = people(site=["north", "north", "south", "south"] * 10)
    write_table(place, columns, dict(enumerate(map(Image.fromarray, drawn))))
    return place


def table(place: Path, **options) -> ImageTable:
    return opened(place / "ours.csv", site="site", **options)


def test_a_padded_picture_keeps_its_shape_between_black_borders_of_equal_width(tmp_path):
    grey = np.full((20, 40), 200, dtype=np.uint8)
    Image.fromarray(grey).save(tmp_path / "wide.png")
    Image.fromarray(grey.T).save(tmp_path / "tall.png")
    padded = read_image(tmp_path / "wide.png", SIZE, resize="pad")[0]
    assert (padded[4:12] == 200).all()
    assert (padded[:4] == 0).all()
    assert (padded[12:] == 0).all()
    np.testing.assert_array_equal(read_image(tmp_path / "tall.png", SIZE, resize="pad")[0], padded.T)
    assert (read_image(tmp_path / "wide.png", SIZE)[0] == 200).all()


def test_a_square_picture_is_the_same_either_way_and_a_store_knows_which_it_has(tmp_path, wide):
    square = np.random.default_rng(0).integers(0, 256, (40, 40), dtype=np.uint8)
    Image.fromarray(square).save(tmp_path / "square.png")
    both = [read_image(tmp_path / "square.png", SIZE, resize=resize) for resize in ("squeeze", "pad")]
    np.testing.assert_array_equal(*both)
    made = []
    for resize in (None, "pad", "squeeze"):
        data = table(wide, resize=resize)
        data.setup("fit")
        made.append(data.clients["north"].train.store[0].numpy())
    assert (made[1][0, :4] == 0).all()
    assert (made[0] > 0).all()
    np.testing.assert_array_equal(made[0], made[2])
    np.testing.assert_array_equal(decode_images([wide / "1.png"], SIZE)[0].shape, made[0].shape)


def test_organisations_resize_all_alike_or_say_why_not(wide):
    alike = Organisations({"a": table(wide)}, resize="pad", image_size=SIZE)
    assert alike.sources["a"].resize == "pad"
    with refused(DataError, "'a'"):
        Organisations({"a": table(wide, resize="pad")}, image_size=SIZE)
    with refused(DataError, "'b' (PhantomCXR"):
        Organisations({"b": PhantomCXR(hospitals=2, images=40)}, resize="pad")


def test_an_exported_model_pads_pictures_as_in_training(wide, tmp_path):
    data = table(wide, resize="pad")
    data.setup("fit")
    model = {"class_path": "fedlit.models.ImageClassifier", "init_args": {"backbone": "small_cnn"}}
    config = yaml.safe_dump({"model": model, "fabric": {"precision": "32-true"}})
    described = {"round": 1, "classes": data.classes, "learned": [True], "exclusive": False} | described_images(data)
    save_model(ImageClassifier(data.classes, "small_cnn"), config, None, described, tmp_path / "model.safetensors")
    file = wide / "3.png"
    found = ImageScorer(tmp_path / "model.safetensors").read(file)
    np.testing.assert_array_equal(found, read_image(file, SIZE, resize="pad"))
