"""Features of a body that is not trained, computed once for all images of a store and then read from the cache."""

import copy
import hashlib
import inspect
import os
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from lightning.pytorch import LightningModule
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn
from torch.utils.data import Dataset

from fedlit.core.examples import makes_batches
from fedlit.core.fabric import FederationFabric
from fedlit.core.messages import ClientData
from fedlit.core.parts import Parts
from fedlit.core.system.files import remove
from fedlit.data.federated import FederatedDataModule
from fedlit.data.pictures.cache import begin, build, checksum
from fedlit.data.pictures.images import LabelledImages, model_input

BATCH = 64
PLAIN = (bool, int, float, str, tuple, type(None))
ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class LabelledFeatures(Dataset):
    """Features [N, D] of a whole store, from the cache, with the rows, labels and names of its images."""

    def __init__(self, folder: Path, images: LabelledImages) -> None:
        self.folder, self.indices, self.labels, self.names = folder, images.indices, images.labels, images.names
        self.sites, self.patients, self.groups = images.sites, images.patients, images.groups
        self.sampler = images.sampler
        self._features = np.load(folder / "array.npy", mmap_mode="r")

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        features, labels = self.batch([i])
        return features[0], labels[0]

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return features [B, D] and labels float32 [B, C]."""
        positions = np.asarray(indices, dtype=np.int64)
        features = np.take(self._features, self.indices[positions], axis=0)
        return torch.from_numpy(features), self.labels[torch.from_numpy(positions)]

    def __getstate__(self) -> dict:
        return {k: v for k, v in vars(self).items() if k != "_features"}

    def __setstate__(self, state: dict) -> None:
        vars(self).update(state)
        self._features = np.load(self.folder / "array.npy", mmap_mode="r")


def with_fixed_features(
    module: LightningModule, data: FederatedDataModule, fabric: FederationFabric, most: int | None = None
) -> tuple[dict[str, ClientData], dict[str, Dataset]]:
    """Return clients and test sets with features instead of images if the module's body is not trained.

    A module declares such a body as ``fixed_features``, see :class:`fedlit.core.parts.Parts`. If images are augmented,
    their features change, so nothing is computed in advance.

    Args:
        module: The module.
        data: The data, which is set up.
        fabric: Fabric of this process.
        most: Features of bodies that stay in the cache folder, the last used ones; None keeps all.
    """
    body = Parts.of(module).fixed_features
    augmented = any(getattr(d.train, "augment", None) is not None for d in data.clients.values())
    if body is None or augmented:
        return data.clients, data.test_sets
    stores: dict[str, Path] = {}
    kind = np.float64 if fabric.double else np.float32

    def features(images: Dataset | None) -> Dataset | None:
        if not isinstance(images, LabelledImages) or not makes_batches(images):
            return images
        seen = repr((images.store.path, images.in_chans, images.mean, images.std))
        if seen not in stores:
            folder = stores[seen] = images.store.path.parent / f"features-{_key(body, images, kind, fabric.device)}"
            if fabric.local_rank == 0:
                _compute(body, images, folder, fabric, kind)
                if most is not None:
                    os.utime(folder)  # the time of its last use
            fabric.barrier()
        return LabelledFeatures(stores[seen], images)

    clients = {
        name: replace(d, train=features(d.train), val=features(d.val), test=features(d.test))
        for name, d in data.clients.items()
    }
    test_sets = {name: features(images) for name, images in data.test_sets.items()}
    for cache in {folder.parent for folder in stores.values()} if most is not None else ():
        keep_last_used(cache, max(most, len(stores)))
    return clients, test_sets


def keep_last_used(cache: Path, most: int) -> None:
    """Remove all but the last used features from a cache folder."""
    used = {}
    for folder in cache.glob("features-*"):
        with suppress(FileNotFoundError):  # another process has removed it
            used[folder] = folder.stat().st_mtime_ns
    finished = [folder for folder in used if not folder.suffix]
    for folder in sorted(finished, key=used.get, reverse=True)[most:]:
        with suppress(FileNotFoundError):
            remove(folder)


def _key(body: nn.Module, images: LabelledImages, kind: type, device: torch.device) -> str:
    # On the device, and on a processor on its instructions, depends how sums are rounded.
    rounding = device.type, torch.backends.cpu.get_cpu_capability(), os.environ.get("MKL_CBWR")
    about = images.store.path.name, images.in_chans, images.mean, images.std, kind.__name__, *rounding
    digest = hashlib.sha256(repr(about).encode())
    digest.update(_code(body).encode())
    for name, tensor in body.state_dict().items():
        digest.update(name.encode() + tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:24]


def _code(body: nn.Module) -> str:
    """Return text that identifies the computation of a body, apart from its weights: its code and its arguments."""
    # Installed packages are identified by their version, other code by the text of its whole file.
    lines = [f"torch {torch.__version__}", f"timm {version('timm')}"]
    files: dict[str, str] = {}
    for name, module in body.named_modules():
        kind = type(module)
        made = {key: value for key, value in vars(module).items() if isinstance(value, PLAIN) and key != "training"}
        lines.append(f"{name} {kind.__module__}.{kind.__qualname__} {sorted(made.items())} {module.extra_repr()}")
        if kind.__module__.partition(".")[0] not in ("torch", "timm") and kind.__module__ not in files:
            with suppress(OSError, TypeError):  # defined at a prompt
                files[kind.__module__] = Path(inspect.getsourcefile(kind)).read_text()
    return ADDRESS.sub("", "\n".join([*lines, *files.values()]))


def _compute(body: nn.Module, images: LabelledImages, folder: Path, fabric: FederationFabric, kind: type) -> None:
    """Write the features of all N images of the store, unless they exist."""
    precision = fabric.strategy.precision

    def write(draft: Path) -> None:
        frozen = precision.convert_module(copy.deepcopy(body).eval().to(fabric.device))
        rows, threads = np.arange(len(images.store)), torch.get_num_threads()

        @torch.no_grad()
        def features(batch: np.ndarray) -> np.ndarray:
            pictures = model_input(images.store[batch], images.in_chans, images.mean, images.std)
            return frozen(precision.convert_input(fabric.to_device(pictures))).cpu().numpy()

        batches = [rows[start : start + BATCH] for start in range(0, len(rows), BATCH)]
        # One batch per core, with one thread each, is faster than one batch on all cores, and the same on any machine.
        torch.set_num_threads(1)
        with ThreadPoolExecutor(threads if fabric.device.type == "cpu" else 1) as pool:
            bar = {"description": "Features of all images", "total": len(batches), "transient": True}
            parts = list(track(pool.map(features, batches), console=Console(stderr=True), **bar))
        torch.set_num_threads(threads)
        whole = np.concatenate(parts)
        array, known = begin(draft, whole.shape, kind)
        array[:] = whole
        known["sum"] = [checksum(row) for row in whole]

    # One process of a machine computes and the others wait, because runs of a sweep start at the same time.
    build(folder, (len(images.store), None), kind, write)
