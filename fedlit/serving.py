"""A run's model in use elsewhere: an exported file that scores image files, alone or as a model of MLflow."""

import base64
import io
import json
import platform
import shutil
from collections.abc import Callable, Sequence
from importlib import import_module, metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import torch
import yaml
from jsonargparse import ArgumentParser
from lightning.pytorch import LightningModule
from PIL import Image
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from fedlit.data.dicom import SUFFIXES
from fedlit.data.images import model_input, read_image
from fedlit.errors import ConfigError
from fedlit.fabric import make_fabric
from fedlit.foreign import overrides, step_of
from fedlit.models import ImageClassifier
from fedlit.tracking.mlflow_store import import_mlflow

FILE = "model.safetensors"
"""An exported model, in the folder of an MLflow model."""

BATCH = 32
COLUMN = "image"
REQUIREMENTS = ("fedlit", "mlflow", "torch", "torchvision", "timm")
"""What loading a model needs, in the versions that trained it; fedlit brings the rest."""

EXAMPLE = {
    "artifact_path": "input_example.json",
    "serving_input_path": "serving_input_example.json",
    "type": "dataframe",
    "pandas_orient": "split",
}
"""What an MLmodel file says of the example beside it."""

ELSEWHERE = {"pretrained": False, "weights": None}
"""Where an `ImageClassifier` would start from: its weights are in the file."""


class ImageScorer:
    """Gives image files the probabilities that ``fedlit predict`` gives them.

    Args:
        file: written by ``fedlit export``.
        accelerator: ``auto``, ``cpu``, ``cuda`` or ``mps``.

    Attributes:
        classes: names of the columns.
        told: the file's metadata, see `fedlit.export.export`.

    Raises:
        ConfigError: it is no exported model, or one that does not score images.
    """

    def __init__(self, file: Path, accelerator: str = "auto") -> None:
        self.told = described(file)
        self.classes = tuple(self.told["classes"])
        if not self.classes or "channels" not in self.told:
            raise ConfigError("expected a model with classes of images that fedlit decodes, found another kind")
        config = yaml.safe_load(self.told["config"])
        self._fabric = make_fabric(accelerator, precision=config["fabric"]["precision"])
        module = self._fabric.strategy.precision.convert_module(_instantiated(config["model"], self.classes))
        module.load_state_dict(load_file(file))
        if not overrides(module, "predict_step"):
            raise ConfigError(f"{type(module).__name__} has no predict_step, which returns probabilities [B, C]")
        self._step = step_of(self._fabric.to_device(module).eval(), "predict_step")
        self._unlearned = ~torch.tensor(self.told["learned"])

    @property
    def unlearned(self) -> list[str]:
        """Classes that no client who trained has labelled."""
        return [name for name, learned in zip(self.classes, self.told["learned"], strict=True) if not learned]

    def read(self, image: Path | bytes) -> np.ndarray:
        """The picture in a file, or in its bytes, as in training: uint8 [channels, image_size, image_size].

        Raises:
            OSError: it cannot be read.
            ValueError: damaged, or no image.
            ConfigError: DICOM, and pydicom is not installed.
        """
        return read_image(_opened(image), self.told["image_size"], self.told["channels"])

    @torch.inference_mode()
    def score(self, pictures: Sequence[np.ndarray]) -> np.ndarray:
        """Probabilities float32 [B, C] of pictures; NaN for classes that the model has not learned."""
        images = model_input(torch.from_numpy(np.stack(pictures)), *(self.told[k] for k in ("in_chans", "mean", "std")))
        batch = images, torch.full((len(images), len(self.classes)), torch.nan)
        with self._fabric.autocast():
            scores = self._step(self._fabric.to_device(self._fabric.strategy.precision.convert_input(batch)), 0)
        if not torch.is_tensor(scores) or scores.shape != (len(images), len(self.classes)):
            raise ConfigError("expected probabilities [B, C] from the model's predict_step, found something else")
        return scores.float().cpu().masked_fill(self._unlearned, torch.nan).numpy()

    def predict(self, table: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """What MLflow calls: a row an image, whose file is the bytes in the column ``image``; a column a class.

        Raises:
            ValueError: a row's bytes are no image.
        """
        found = [np.empty((0, len(self.classes)), dtype=np.float32)]
        for start in range(0, len(table), BATCH):
            rows = enumerate(table[COLUMN].iloc[start : start + BATCH], start=start)
            found.append(self.score([self._row(row, content) for row, content in rows]))
        return pd.DataFrame(np.concatenate(found), columns=list(self.classes))

    def _row(self, row: int, content: bytes) -> np.ndarray:
        try:
            return self.read(content)
        except ConfigError:
            raise
        except Exception as error:  # damage shows as OSError, SyntaxError, ValueError, zlib.error...
            raise ValueError(
                f"row {row}: expected the bytes of an image file (in JSON as base64), found {len(content)} bytes that "
                f"cannot be decoded: {error}"
            ) from error


def described(file: Path) -> dict[str, Any]:
    """What an exported file tells of its model, JSON decoded.

    Raises:
        ConfigError: ``fedlit export`` did not write it.
    """
    try:
        with safe_open(file, "pt") as opened:
            texts = opened.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{file}: expected a model written by `fedlit export`, found none: {error}") from error
    if not {"fedlit", "model", "config", "classes"} <= texts.keys():
        raise ConfigError(
            f"{file}: expected a model written by `fedlit export`, found a .safetensors file without its notes"
        )
    return {
        name: text if name in ("fedlit", "model", "config", "client") else json.loads(text)
        for name, text in texts.items()
    }


def save_mlflow_model(folder: Path, write: Callable[[Path], None]) -> None:
    """Write a folder that ``mlflow.pyfunc.load_model`` and ``mlflow models serve`` take, whole or not at all.

    It holds the exported file, the signature (bytes of an image in, a probability a class out), an example and pinned
    requirements. That it loads and scores its example is tried first.

    Args:
        write: exports the model to a file.

    Raises:
        Exception: whatever keeps the model from being exported or from scoring an image.
    """
    # Not by mlflow.pyfunc.save_model: it goes through all installed packages first, which takes seconds.
    mlflow = import_mlflow()
    column, schema = mlflow.types.ColSpec, mlflow.types.Schema
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as work:
        draft = Path(work) / folder.name
        draft.mkdir()
        write(draft / FILE)
        scorer, image = ImageScorer(draft / FILE, "cpu"), _ramp()
        scorer.predict(pd.DataFrame({COLUMN: [image]}))
        given, scores = column("binary", COLUMN), [column("float", name) for name in scorer.classes]
        model = mlflow.models.Model(
            signature=mlflow.models.ModelSignature(schema([given]), schema(scores)),
            saved_input_example_info=EXAMPLE,
            metadata={k: v for k, v in scorer.told.items() if k != "config"} | {"score": "probability"},
        )
        # Without data it gets the folder.
        mlflow.pyfunc.add_to_model(model, loader_module=__name__, python_env="python_env.yaml")
        model.save(str(draft / "MLmodel"))
        example = {"columns": [COLUMN], "data": [[base64.b64encode(image).decode()]]}
        (draft / EXAMPLE["artifact_path"]).write_text(json.dumps(example))
        (draft / EXAMPLE["serving_input_path"]).write_text(json.dumps({"dataframe_split": example}))
        needs = [f"{name}=={metadata.version(name).partition('+')[0]}" for name in REQUIREMENTS]
        (draft / "requirements.txt").write_text("\n".join(needs) + "\n")
        environment = {"python": platform.python_version(), "dependencies": ["-r requirements.txt"]}
        (draft / "python_env.yaml").write_text(yaml.safe_dump(environment))
        shutil.rmtree(folder, ignore_errors=True)
        draft.rename(folder)


def _load_pyfunc(path: str) -> ImageScorer:
    """What MLflow calls to load the model in a folder."""
    return ImageScorer(Path(path) / FILE)


def _instantiated(section: dict[str, Any], classes: Sequence[str]) -> LightningModule:
    """The module that the ``model`` of a run's configuration describes, as it was made for training."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--classes", type=list[str])
    parser.add_subclass_arguments(LightningModule, "model")
    parser.link_arguments("classes", "model.init_args.classes")
    home, _, name = section["class_path"].rpartition(".")
    options = dict(section.get("init_args") or {})
    if issubclass(getattr(import_module(home), name), ImageClassifier):
        options |= {key: value for key, value in ELSEWHERE.items() if key in options}
    with torch.random.fork_rng(devices=[]):
        given = {"classes": list(classes), "model": section | {"init_args": options}}
        return parser.instantiate(parser.parse_object(given)).model


def _opened(image: Path | bytes) -> Any:
    if isinstance(image, Path):
        return image
    file = io.BytesIO(image)
    if image[128:132] == b"DICM":
        file.suffix = SUFFIXES[0]
    return file


def _ramp() -> bytes:
    """A small PNG file, from black to white: an example that shows nobody."""
    file = io.BytesIO()
    Image.fromarray(np.tile(np.arange(0, 256, 4, dtype=np.uint8), (64, 1))).save(file, "PNG")
    return file.getvalue()
