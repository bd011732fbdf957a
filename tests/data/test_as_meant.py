"""Images are rotated as their EXIF says, have one page, and are noted if they show nothing."""

import numpy as np
import pytest
from own_tables import opened, people, picture, write_table
from PIL import Image
from refusals import refused

from fedlit.data.pictures.pixels import read_image
from fedlit.data.xrays.check import inspect_image


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", ["jpg", "png"])
def test_the_orientation_of_exif_is_applied(tmp_path, orientation, suffix):
    upright = Image.fromarray(np.outer(np.arange(0, 256, 4), np.linspace(0, 1, 64)).astype(np.uint8))
    back = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # what brings each orientation about, as Pillow counts
    stored = upright if orientation == 1 else upright.transpose(Image.Transpose(back[orientation]))
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = tmp_path / f"x.{suffix}"
    stored.save(file, exif=exif, **({"quality": 100} if suffix == "jpg" else {}))
    assert np.abs(read_image(file, 64)[0].astype(int) - np.asarray(upright)).max() <= 3


@pytest.mark.parametrize("suffix", ["tif", "gif", "png"])
def test_more_than_one_page_or_frame_is_refused(tmp_path, suffix):
    file = tmp_path / f"x.{suffix}"
    picture(0).save(file, save_all=True, append_images=[picture(1), picture(2)])
    with refused("image-of-several-pages", "found 3"):
        read_image(file, 16)
    assert "3 pages or frames" in inspect_image(str(file)).problem
    picture(0).save(file)
    assert read_image(file, 32).shape == (1, 32, 32)


def test_pictures_that_show_nothing_are_noted(tmp_path):
    black = {n: Image.fromarray(np.full((32, 32), 90 * (n % 2), np.uint8)) for n in (4, 5, 9)}
    table = write_table(tmp_path, people(), black)
    data = opened(table)
    data.setup()
    assert "3 of 40 images of ours show nothing, the first are '4.png', '5.png', '9.png'" in data.notes
