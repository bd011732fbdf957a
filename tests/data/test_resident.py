"""Pictures as a tensor on a device give the batches of the memory map, and so do batches made on a device."""

import numpy as np
import pytest
import torch
from torch import nn
from torchvision.transforms import v2

from fedlit.data.pictures import store as stores
from fedlit.data.pictures.augmentation import FlipCropAugmentation, PerImage, XrayAugmentation
from fedlit.data.pictures.images import ImageStore, LabelledImages, model_input
from fedlit.data.pictures.store import ResidentStore, StoreView

CPU = torch.device("cpu")
AUGMENTATIONS = [None, XrayAugmentation(), FlipCropAugmentation(), PerImage(v2.Compose([v2.RandomRotation(20)]))]


def pictures(count: int = 12, channels: int = 1, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, channels, 14, 10), dtype=np.uint8)


def data_set(folder, augment: nn.Module | None = None, channels: int = 1, in_chans: int = 1) -> LabelledImages:
    array = pictures(channels=channels)
    labels = np.arange(18, dtype=np.float32).reshape(9, 2)
    rows = np.array([3, 11, 0, 5, 7, 2, 1, 10, 8])
    looks = {"augment": augment, "mean": [0.4] * in_chans, "std": 0.3}
    return LabelledImages(ImageStore.from_array(array, folder), rows, labels, rows.astype(str), in_chans, **looks)


@pytest.mark.parametrize(
    ("augment", "channels", "in_chans"),
    [*((augment, 1, 3) for augment in AUGMENTATIONS), *((AUGMENTATIONS[1], c, n) for c, n in ((1, 1), (3, 1), (3, 3)))],
)
def test_batches_are_those_of_the_memory_map(tmp_path, augment, channels, in_chans):
    mapped = data_set(tmp_path, augment, channels, in_chans)
    placed = mapped.placed(ResidentStore(mapped.store, CPU), CPU)
    ahead = mapped.placed(mapped.store, CPU)
    for rows in ([4, 0, 8], np.array([1]), torch.tensor([5, 2, 3, 3])):
        batches = []
        for data in (mapped, placed, ahead):
            torch.manual_seed(3)
            batches.append((*data.batch(rows), torch.rand(())))  # as many draws, too
        for other in batches[1:]:
            assert all(torch.equal(one, two) for one, two in zip(batches[0], other, strict=True))


def test_the_data_set_itself_stays_on_disk(tmp_path):
    mapped = data_set(tmp_path)
    mapped.placed(ResidentStore(mapped.store, CPU), CPU)
    assert isinstance(mapped.store, ImageStore)


def test_pictures_are_copied_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(stores, "CHUNK", 5 * 140)
    store = StoreView([ImageStore.from_array(pictures(seed=seed), tmp_path) for seed in (1, 2)])
    copied = ResidentStore(store, CPU)
    assert (len(copied), copied.shape, copied.path) == (24, store.shape, store.path)
    everything = torch.arange(24)
    assert torch.equal(copied[everything], store[everything])
    copied[everything].zero_()
    assert torch.equal(copied[everything], store[everything])


def test_normalisation_is_torchvisions():
    images = torch.from_numpy(pictures(channels=3))
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    wanted = v2.functional.normalize(v2.functional.to_dtype(images, torch.float32, scale=True), mean, std)
    assert torch.equal(model_input(images, 3, mean, std), wanted)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("augment", AUGMENTATIONS[:3], ids=lambda a: type(a).__name__)
def test_batches_made_on_a_gpu_are_those_of_the_cpu_to_rounding(tmp_path, augment):
    device = torch.device("cuda", torch.cuda.current_device())
    mapped = data_set(tmp_path, augment)
    for store in (mapped.store, ResidentStore(mapped.store, device)):
        torch.manual_seed(3)
        images, labels = mapped.placed(store, device).batch([4, 0, 8])
        torch.manual_seed(3)
        wanted = mapped.batch([4, 0, 8])
        assert images.device == labels.device == device
        torch.testing.assert_close(images.cpu(), wanted[0], rtol=1e-4, atol=1e-3)
        assert torch.equal(labels.cpu(), wanted[1])
