"""Headers that other processes read while the command reads label files: the same report, also where one is killed."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedlit.data.xrays import ahead
from fedlit.data.xrays.ahead import Ahead, headers
from fedlit.data.xrays.pictures import inspect_image

MINI = Path(__file__).parents[4] / "shared" / "data" / "nih-cxr14-mini"


@pytest.fixture
def images(tmp_path: Path) -> list[str]:
    """Five images of two sizes in two folders, one of them damaged, and one that is not there."""
    files = [tmp_path / f"{number % 2}" / f"{number}.png" for number in range(6)]
    for number, file in enumerate(files[:5]):
        file.parent.mkdir(exist_ok=True)
        Image.fromarray(np.full((20, 20 + number % 2), number, np.uint8)).save(file)
    files[3].write_bytes(files[3].read_bytes()[:20])
    return list(map(str, files))


def test_what_was_seen_and_what_is_asked_for_later_are_what_a_look_finds(images, tmp_path):
    expected = {file: inspect_image(file) for file in images}
    assert [bool(picture.problem) for picture in expected.values()] == [False, False, False, True, False, True]
    with Ahead([str(tmp_path / "0")]) as looking:
        later = [picture for chunk in looking.inspect([images[3:5], images[5:]]) for picture in chunk]
        seen = looking.so_far()
    assert later == [expected[file] for file in images[3:]]
    assert seen == {file: expected[file] for file in images if Path(file).parent.name == "0"}


@pytest.mark.parametrize("shares", [1, 3])
def test_shares_are_all_of_the_images_once(images, tmp_path, monkeypatch, shares):
    class Never:
        def is_set(self) -> bool:
            return False

    monkeypatch.setattr(ahead, "CHUNK", 1)
    monkeypatch.setattr(ahead, "_enough", Never())
    parts = [ahead._below([str(tmp_path)], share, shares) for share in range(shares)]
    assert sorted(file for part in parts for file in part) == sorted(images[:5])


def test_equal_headers_are_one_object(images):
    one, other, third, _, fifth, _ = headers(images)
    assert one is third is fifth
    assert one != other


def test_where_a_process_is_killed_this_one_looks(images, tmp_path):
    with Ahead([str(tmp_path)]) as looking:
        for process in looking._pool._processes.values():
            process.kill()
        found = [picture for chunk in looking.inspect([images[:2], images[2:]]) for picture in chunk]
        assert looking.so_far() == {}
    assert found == list(map(inspect_image, images))


def test_a_command_that_is_interrupted_ends_its_processes(tmp_path):
    def interrupted():
        with Ahead([str(tmp_path)]) as looking:
            processes.extend(looking._pool._processes.values())
            raise KeyboardInterrupt

    processes = []
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert processes
    assert not any(process.is_alive() for process in processes)


@pytest.mark.parametrize(("images", "workers", "expected"), [(100, 2, True), (101, 2, False), (100, 1, False)])
def test_few_images_are_not_worth_a_process(tmp_path, monkeypatch, images, workers, expected):
    for number in range(100):
        (tmp_path / f"{number}.png").touch()
    monkeypatch.setattr(ahead, "WORTH", images)
    monkeypatch.setattr(ahead, "cores", lambda: workers)
    assert ahead.is_worth_it([str(tmp_path)]) is expected


@pytest.mark.skipif(not MINI.is_dir(), reason=f"the 1,000 NIH images are not in {MINI}")
def test_the_command_reports_the_same_with_other_processes(fedlit_cli, monkeypatch):
    asked = []

    class Watched(Ahead):
        def so_far(self) -> dict:
            asked.append(len(seen := super().so_far()))
            return seen

    expected = fedlit_cli(f"data check {MINI}")
    monkeypatch.setattr(ahead, "Ahead", Watched)
    monkeypatch.setattr(ahead, "WORTH", 1000)
    assert fedlit_cli(f"data check {MINI}") == expected
    assert len(asked) == 1


def test_a_process_that_looks_ahead_needs_no_pytorch():
    """It would take longer to import that than to read all headers."""
    asked = "import sys, fedlit.data.xrays.ahead; print('torch' in sys.modules, 'pandas' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False False\n"
