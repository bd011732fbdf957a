"""Scores of the images in a folder, by a model that a run has left: in MLflow, in a folder, or in a file."""

import importlib.util
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd

from fedlit.core.errors import ConfigError
from fedlit.core.system.files import whole
from fedlit.data.pictures.dicom import SUFFIXES, has_mark
from fedlit.predictions.serving import BATCH, FILE, ImageScorer
from fedlit.tracking.addresses import absent, absolute, without_credentials
from fedlit.tracking.mlflow import ENVIRONMENT
from fedlit.tracking.store import cause, first_line, import_mlflow, refusal

IMAGES = (".png", ".jpg", ".jpeg", *SUFFIXES)
IN_MLFLOW = ("runs:/", "models:/")
QUIET = {"MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
"""What MLflow is told where the user has not: no bar for each file, and no long wait for a server that is away."""


def names_a_model(word: str) -> bool:
    """Tell whether a word is a model that was trained, and not a class or its YAML file."""
    return word.startswith(IN_MLFLOW) or word.endswith(".safetensors") or Path(word).is_dir()


def load(model: str, tracking_uri: str, accelerator: str = "auto", trust: bool = False) -> ImageScorer:
    """Load a model by its name.

    Args:
        model: ``runs:/ID`` (a run's best model), ``models:/NAME/VERSION``, the folder of an MLflow model, or a file of
            ``fedlit export``.
        tracking_uri: The store of MLflow, where the model is in it.
        accelerator: ``auto``, ``cpu``, ``cuda`` or ``mps``.
        trust: Whether to run code of one's own that the model names, see `ImageScorer`.

    Raises:
        ConfigError: There is no such model, MLflow gives no answer, fedlit did not write the model, or it names code that is
            not trusted.
    """
    if not model.startswith(IN_MLFLOW):
        path = Path(model)
        return ImageScorer(path / FILE if path.is_dir() else path, accelerator, trust)
    with TemporaryDirectory(prefix="fedlit-") as folder:
        file = _download(model, tracking_uri, folder) / FILE
        if not file.is_file():
            raise ConfigError(f"--model {model}: expected a model that fedlit logged, found one without {FILE}")
        return ImageScorer(file, accelerator, trust)


def image_files(folder: Path) -> list[Path]:
    """List PNG, JPEG and DICOM files in a folder and its subfolders, hidden ones left out, in order.

    DICOM files need no suffix.

    Raises:
        ConfigError: There is no such folder, or no image in it.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder}: expected a folder of images, found {'a file' if folder.exists() else 'nothing'}")
    files = [path for path in folder.rglob("*") if not path.name.startswith(".") and _is_image(path)]
    if not files:
        raise ConfigError(f"{folder}: expected images ({', '.join(IMAGES)}), found none, in subfolders neither")
    return sorted(files)


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in IMAGES or (path.is_file() and has_mark(path))


def score_files(
    scorer: ImageScorer, files: list[Path], progress: Callable[[int], None]
) -> tuple[np.ndarray, dict[Path, str]]:
    """Give probabilities float32 [N, C] of N files; NaN for those that cannot be read, with the reason for each.

    ``progress`` is called with the number of files of each batch that is done.

    Raises:
        ConfigError: Some files are DICOM, and pydicom is not installed.
    """
    scores = np.full((len(files), len(scorer.classes)), np.nan, dtype=np.float32)
    unreadable: dict[Path, str] = {}

    def read(file: Path) -> np.ndarray | None:
        try:
            return scorer.read(file)
        except ConfigError:  # no fault of this file
            raise
        except Exception as error:  # damage shows as OSError, SyntaxError, ValueError, zlib.error...
            unreadable[file] = first_line(error)
            return None

    with ThreadPoolExecutor() as pool:
        for start in range(0, len(files), BATCH):
            pictures = dict(enumerate(pool.map(read, files[start : start + BATCH]), start=start))
            readable = {row: picture for row, picture in pictures.items() if picture is not None}
            if readable:
                scores[list(readable)] = scorer.score(list(readable.values()))
            progress(len(pictures))
    return scores, unreadable


def write_scores(file: Path, folder: Path, files: list[Path], scores: np.ndarray, classes: tuple[str, ...]) -> None:
    """Write a CSV file, whole or not at all: ``image`` (its path within the folder), then a column a class."""
    table = pd.DataFrame(scores, columns=list(classes))
    table.insert(0, "image", [path.relative_to(folder).as_posix() for path in files], allow_duplicates=True)
    with whole(file) as draft:
        table.to_csv(draft, index=False)


def _download(model: str, uri: str, folder: str) -> Path:
    """Download the folder of a model in MLflow; of a run without more of a path, its artifact ``model``."""
    if importlib.util.find_spec("mlflow") is None:
        raise ConfigError(f"--model {model} needs MLflow: pip install mlflow, or name a file of `fedlit export`")
    for name, value in (ENVIRONMENT | QUIET).items():
        os.environ.setdefault(name, value)
    if missing := absent(uri):
        raise ConfigError(
            f"--tracking_uri {uri}: {missing}; go to the folder in which the run was started, or name another store"
        )
    path = f"{model.rstrip('/')}/model" if model.startswith("runs:/") and model.count("/") == 1 else model
    mlflow = import_mlflow()
    with _asking(model, uri), _store(uri):
        return Path(mlflow.artifacts.download_artifacts(artifact_uri=path, dst_path=folder))


@contextmanager
def _asking(model: str, uri: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        shown = without_credentials(uri)
        if refusal(error):
            raise ConfigError(
                f"--model {model}: MLflow at {shown} has no such model ({first_line(error, uri)}). `fedlit fit` logs one "
                "where the federation has a single model that scores image files"
            ) from error
        raise ConfigError(
            f"--model {model}: MLflow at {shown} gives no answer ({cause(error, uri)}); is it running, and is "
            "--tracking_uri right?"
        ) from error


@contextmanager
def _store(uri: str) -> Iterator[None]:
    """Have MLflow look for runs and registered models there: models:/ knows no other way in all of its versions."""
    mlflow = import_mlflow()
    tracking, registry = mlflow.get_tracking_uri(), mlflow.get_registry_uri()
    variables = {name: os.environ.get(name) for name in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI")}
    # In full: MLflow keeps a store for each address, and a relative one names another file in another folder.
    mlflow.set_tracking_uri(absolute(uri))
    mlflow.set_registry_uri(absolute(uri))
    try:
        yield
    finally:
        mlflow.set_tracking_uri(tracking)
        mlflow.set_registry_uri("" if registry == tracking else registry)  # "": none of its own, it follows the other
        for name, value in variables.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
