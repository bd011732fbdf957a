"""Scores of image files by an exported model, directly or as an MLflow model."""

import base64
import io
import json
import os
import platform
from argparse import ArgumentError
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from importlib import import_module, metadata
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pandas as pd
import torch
import yaml
from jsonargparse import ArgumentParser
from lightning.pytorch import LightningModule
from PIL import Image
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from fedlit.core.errors import ConfigError, DataError
from fedlit.core.fabric import make_fabric
from fedlit.core.module import overrides, step_of
from fedlit.core.scoring import exclusive_scores, link_of, softmax
from fedlit.core.system.files import whole
from fedlit.data.pictures.dicom import SUFFIXES
from fedlit.data.pictures.images import model_input, read_image
from fedlit.predictions.notes import known_module, read_notes, recipe, without_start
from fedlit.tracking.store import first_line

FILE = "model.safetensors"
"""File name of the exported model in the folder of an MLflow model."""

TRUST = "FEDLIT_TRUST"
"""Environment variable; 1 lets MLflow load models with classes from outside of fedlit, torch.nn and torch.optim."""

BATCH = 32
COLUMN = "image"
LOADER = "fedlit.serving"
"""Public path of this module, which every logged model names, and which stays when the file moves."""

REQUIREMENTS = ("fedlit", "mlflow", "torch", "torchvision", "timm")
"""Packages that loading a model needs, in the versions that trained it; fedlit depends on the others."""

EXAMPLE = {
    "artifact_path": "input_example.json", "serving_input_path": "serving_input_example.json",
    "type": "dataframe", "pandas_orient": "split",
}  # fmt: skip
"""Entry of an MLmodel file about its example."""


class ImageScorer:
    """An exported model that gives image files the same probabilities as ``fedlit predict``.

    Args:
        file: File written by ``fedlit export``.
        accelerator: ``auto``, ``cpu``, ``cuda`` or ``mps``.
        trust: Whether to run code that the file names from outside of fedlit, torch.nn and torch.optim, such as your
            own module.

    Attributes:
        classes: Names of the C columns.
        metadata: Metadata of the file, see `fedlit.predictions.export.export`.

    Raises:
        ConfigError: The file is not an exported model, does not score images, or names code that is not trusted.
    """

    def __init__(self, file: Path, accelerator: str = "auto", trust: bool = False) -> None:
        self.metadata = file_notes(file)
        self.classes = tuple(self.metadata["classes"])
        if not self.classes or "channels" not in self.metadata:
            raise ConfigError("expected a model with classes of images that fedlit decodes, found another")
        model, precision = recipe(file, self.metadata)
        self._fabric = make_fabric(accelerator, precision=precision)
        make = _trusted if trust else known_module
        module = self._fabric.strategy.precision.convert_module(make(file, model, self.classes))
        _load(file, module)
        if not overrides(module, "predict_step"):
            raise ConfigError(
                f"{type(module).__name__}: expected a predict_step that returns [B, C], found none; add one"
            )
        self._step = step_of(self._fabric.to_device(module).eval(), "predict_step")
        self._link = (link_of(module, self._fabric, None) or softmax) if self.metadata.get("exclusive") else None
        self._unlearned = ~torch.tensor(self.metadata["learned"])

    @property
    def unlearned(self) -> list[str]:
        """The classes that no client that trained has labelled."""
        return [name for name, learned in zip(self.classes, self.metadata["learned"], strict=True) if not learned]

    def read(self, image: Path | bytes) -> np.ndarray:
        """Decode an image file, or its bytes, as in training: uint8 [channels, image_size, image_size].

        Raises:
            OSError: The file cannot be read.
            ValueError: The file is damaged, or not an image.
            ConfigError: The file is DICOM, and pydicom is not installed.
        """
        size, channels = self.metadata["image_size"], self.metadata["channels"]
        return read_image(_opened(image), size, channels, resize=self.metadata.get("resize", "squeeze"))

    @torch.inference_mode()
    def score(self, decoded: Sequence[np.ndarray]) -> np.ndarray:
        """Return probabilities [B, C] float32 of decoded images; NaN for classes that the model has not learned."""
        options = (self.metadata[name] for name in ("in_chans", "mean", "std"))
        images = model_input(torch.from_numpy(np.stack(decoded)), *options)
        batch = images, torch.full((len(images), len(self.classes)), torch.nan)
        with self._fabric.autocast():
            scores = self._step(self._fabric.to_device(self._fabric.strategy.precision.convert_input(batch)), 0)
        if not torch.is_tensor(scores) or scores.shape != (len(images), len(self.classes)):
            raise ConfigError(
                "predict_step: expected a tensor of probabilities [B, C], found another value; fix the model"
            )
        scores = scores.float().cpu()
        if self._link is not None:
            scores, _ = exclusive_scores(self._link, scores, "predict_step")
        return scores.masked_fill(self._unlearned, torch.nan).numpy()

    def predict(self, table: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """Score a table as MLflow does: one row per image, whose file's bytes are in the column ``image``.

        Returns:
            A table with one row per image and one column per class.

        Raises:
            ValueError: The bytes of a row are not an image.
        """
        parts = [np.empty((0, len(self.classes)), dtype=np.float32)]
        for start in range(0, len(table), BATCH):
            rows = enumerate(table[COLUMN].iloc[start : start + BATCH], start=start)
            parts.append(self.score([self._row(row, content) for row, content in rows]))
        return pd.DataFrame(np.concatenate(parts), columns=list(self.classes))

    def _row(self, row: int, content: bytes) -> np.ndarray:
        try:
            return self.read(content)
        except ConfigError:
            raise
        except Exception as error:  # damage raises OSError, SyntaxError, ValueError, zlib.error...
            raise DataError(
                f"row {row}: expected the bytes of an image file (in JSON as base64), found {len(content)} bytes that "
                f"cannot be decoded: {error}"
            ) from error


def file_notes(file: Path) -> dict[str, Any]:
    """Return the metadata of an exported file, with JSON decoded.

    Raises:
        ConfigError: ``fedlit export`` did not write the file.
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
    return read_notes(file, texts)


def _trusted(file: Path, model: dict[str, Any], classes: Sequence[str]) -> LightningModule:
    """Make the module of a file with any code that it names."""
    try:
        return _instantiated(model, classes)
    except (ImportError, AttributeError, ArgumentError) as error:
        raise ConfigError(
            f"{file}: cannot make its model {model['class_path']} here ({first_line(error)}). Your own module must be "
            "importable from the working directory, as in training"
        ) from error


def _load(file: Path, module: LightningModule) -> None:
    try:
        module.load_state_dict(load_file(file))
    except RuntimeError as error:
        reasons = "; ".join(line.strip() for line in str(error).splitlines()[1:4])
        raise ConfigError(
            f"{file}: expected the tensors of a {type(module).__name__}, as its notes say, found others: {reasons}"
        ) from error


def save_mlflow_model(folder: Path, write: Callable[[Path], None]) -> None:
    """Write an MLflow model atomically, once it has scored its own example.

    The folder contains the exported file, the signature (an image's bytes in, one probability per class out), an
    example and pinned requirements. ``mlflow.pyfunc.load_model`` and ``mlflow models serve`` load it. ``write`` exports
    the model to a file.

    Raises:
        Exception: The model cannot be exported, or cannot score an image.
    """
    # Not with mlflow.pyfunc.save_model, which inspects all installed packages, and imports MLflow: each takes seconds.
    with whole(folder) as draft:
        draft.mkdir()
        write(draft / FILE)
        scorer, image = ImageScorer(draft / FILE, "cpu", trust=True), _ramp()  # it names the code of this run
        scorer.predict(pd.DataFrame({COLUMN: [image]}))
        inputs, scores = [_column("binary", COLUMN)], [_column("float", name) for name in scorer.classes]
        # Without a data path, the loader gets the folder.
        loader = {"loader_module": LOADER, "python_version": platform.python_version()}
        model = {
            "flavors": {"python_function": loader | {"env": {"virtualenv": "python_env.yaml"}}},
            "metadata": {k: v for k, v in scorer.metadata.items() if k != "config"} | {"score": "probability"},
            "mlflow_version": metadata.version("mlflow"),
            "model_uuid": uuid4().hex,
            "saved_input_example_info": EXAMPLE,
            "signature": {"inputs": json.dumps(inputs), "outputs": json.dumps(scores)},
            "utc_time_created": str(datetime.now(timezone.utc).replace(tzinfo=None)),
        }
        (draft / "MLmodel").write_text(yaml.safe_dump(model))
        example = {"columns": [COLUMN], "data": [[base64.b64encode(image).decode()]]}
        (draft / EXAMPLE["artifact_path"]).write_text(json.dumps(example))
        (draft / EXAMPLE["serving_input_path"]).write_text(json.dumps({"dataframe_split": example}))
        needs = [f"{name}=={metadata.version(name).partition('+')[0]}" for name in REQUIREMENTS]
        (draft / "requirements.txt").write_text("\n".join(needs) + "\n")
        environment = {"python": platform.python_version(), "dependencies": ["-r requirements.txt"]}
        (draft / "python_env.yaml").write_text(yaml.safe_dump(environment))


def _column(kind: str, name: str) -> dict[str, Any]:
    return {"type": kind, "name": name, "required": True}


def _load_pyfunc(path: str) -> ImageScorer:
    """Load the model in a folder; MLflow calls this."""
    return ImageScorer(Path(path) / FILE, trust=os.environ.get(TRUST, "").lower() in ("1", "true", "yes"))


def _instantiated(section: dict[str, Any], classes: Sequence[str]) -> LightningModule:
    """Make the module that the ``model`` section of a run's configuration describes, as for training."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--classes", type=list[str])
    parser.add_subclass_arguments(LightningModule, "model")
    parser.link_arguments("classes", "model.init_args.classes")
    home, _, name = section["class_path"].rpartition(".")
    with torch.random.fork_rng(devices=[]):
        model = without_start(getattr(import_module(home), name), section)
        return parser.instantiate(parser.parse_object({"classes": list(classes), "model": model})).model


def _opened(image: Path | bytes) -> Any:
    if isinstance(image, Path):
        return image
    file = io.BytesIO(image)
    if image[128:132] == b"DICM":
        file.suffix = SUFFIXES[0]
    return file


def _ramp() -> bytes:
    """Draw a small PNG file, a ramp from black to white: an example without patient data."""
    file = io.BytesIO()
    Image.fromarray(np.tile(np.arange(0, 256, 4, dtype=np.uint8), (64, 1))).save(file, "PNG")
    return file.getvalue()
