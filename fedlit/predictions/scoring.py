"""Scores of the images in a folder by a trained model, which is in MLflow, a folder or a file."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd

from fedlit.core.errors import ConfigError
from fedlit.core.system.files import whole, write_csv
from fedlit.data.pictures.dicom import SUFFIXES, has_mark
from fedlit.predictions.serving import BATCH, FILE, ImageScorer
from fedlit.predictions.table import SCORE
from fedlit.tracking.addresses import absent, absolute, without_credentials
from fedlit.tracking.mlflow import prepare
from fedlit.tracking.store import cause, first_line, import_mlflow, is_refused

IMAGES = (".png", ".jpg", ".jpeg", *SUFFIXES)
IN_MLFLOW = ("runs:/", "models:/")
QUIET = {"MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
"""Defaults for MLflow's environment: no progress bar per file, and no long wait for a server that does not answer."""


def names_a_model(word: str) -> bool:
    """Return whether a word names a trained model rather than a class or its YAML file."""
    return word.startswith(IN_MLFLOW) or word.endswith(".safetensors") or Path(word).is_dir()


def load_scorer(model: str, tracking_uri: str, accelerator: str = "auto", trust: bool = False) -> ImageScorer:
    """Load a trained model for an accelerator; `ImageScorer` describes ``trust``.

    A model is ``runs:/ID`` (a run's best model), ``models:/NAME/VERSION``, both in the MLflow store at
    ``tracking_uri``, the folder of an MLflow model, or a file of ``fedlit export``.

    Raises:
        ConfigError: There is no such model, MLflow does not answer, fedlit did not write the model, or it names code
            that is not trusted.
    """
    if not model.startswith(IN_MLFLOW):
        path = Path(model)
        return ImageScorer(path / FILE if path.is_dir() else path, accelerator, trust)
    with TemporaryDirectory(prefix="fedlit-") as folder:
        file = _download(model, tracking_uri, folder) / FILE
        if not file.is_file():
            raise ConfigError(f"--model {model}: expected a model that fedlit logged, found no {FILE}")
        return ImageScorer(file, accelerator, trust)


def image_files(folder: Path) -> list[Path]:
    """Return the PNG, JPEG and DICOM files in a folder and its subfolders in order, except for hidden ones.

    DICOM files need no suffix.

    Raises:
        ConfigError: The folder does not exist, or contains no image.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder}: expected a folder, found {'a file' if folder.exists() else 'nothing'}")
    shown = [path for path in folder.rglob("*") if not path.name.startswith(".")]
    files = [path for path in shown if path.suffix.lower() in IMAGES or (path.is_file() and has_mark(path))]
    if not files:
        raise ConfigError(f"{folder}: expected images ({', '.join(IMAGES)}), found none, also in subfolders")
    return sorted(files)


def score_files(
    scorer: ImageScorer, files: list[Path], progress: Callable[[int], None]
) -> tuple[np.ndarray, dict[Path, str]]:
    """Score N image files; ``progress`` is called with the number of files of each completed batch.

    Returns:
        Probabilities [N, C] float32, NaN for unreadable files, and the reason for each of these.

    Raises:
        ConfigError: Some files are DICOM, and pydicom is not installed.
    """
    scores = np.full((len(files), len(scorer.classes)), np.nan, dtype=np.float32)
    unreadable: dict[Path, str] = {}

    def read(file: Path) -> np.ndarray | None:
        try:
            return scorer.read(file)
        except ConfigError:  # not the fault of this file
            raise
        except Exception as error:  # damage raises OSError, SyntaxError, ValueError, zlib.error...
            unreadable[file] = first_line(error)
            return None

    with ThreadPoolExecutor() as pool:
        for start in range(0, len(files), BATCH):
            images = dict(enumerate(pool.map(read, files[start : start + BATCH]), start=start))
            readable = {row: image for row, image in images.items() if image is not None}
            if readable:
                scores[list(readable)] = scorer.score(list(readable.values()))
            progress(len(images))
    return scores, unreadable


def write_scores(file: Path, folder: Path, files: list[Path], scores: np.ndarray, classes: tuple[str, ...]) -> None:
    """Write a CSV file atomically: ``image``, a path relative to the folder, and ``score/CLASS`` for each class."""
    table = pd.DataFrame(scores, columns=[f"{SCORE}{name}" for name in classes])
    table.insert(0, "image", [path.relative_to(folder).as_posix() for path in files])
    with whole(file) as draft:
        write_csv(table, draft)


def _download(model: str, uri: str, folder: str) -> Path:
    """Download the folder of a model in MLflow; for ``runs:/ID``, the artifact ``model`` of the run."""
    if not prepare(**QUIET):
        raise ConfigError(
            f"--model {model}: expected MLflow to be installed; pip install mlflow, or name a file of `fedlit export`"
        )
    if missing := absent(uri):
        raise ConfigError(
            f"--tracking_uri {uri}: {missing}; go to the folder where the run was started, or name another store"
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
        if is_refused(error):
            raise ConfigError(
                f"--model {model}: MLflow at {shown} has no such model ({first_line(error, uri)}). `fedlit fit` logs "
                "one if the federation has a single model that scores image files"
            ) from error
        raise ConfigError(
            f"--model {model}: MLflow at {shown} does not answer ({cause(error, uri)}); check that it is running, and "
            "--tracking_uri"
        ) from error


@contextmanager
def _store(uri: str) -> Iterator[None]:
    """Context manager in which MLflow reads runs and models from ``uri``; models:/ has no other way in all versions."""
    mlflow = import_mlflow()
    tracking, registry = mlflow.get_tracking_uri(), mlflow.get_registry_uri()
    variables = {name: os.environ.get(name) for name in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI")}
    # Absolute: MLflow caches a store per address, and a relative one names another file in another folder.
    mlflow.set_tracking_uri(absolute(uri))
    mlflow.set_registry_uri(absolute(uri))
    try:
        yield
    finally:
        mlflow.set_tracking_uri(tracking)
        mlflow.set_registry_uri("" if registry == tracking else registry)  # "" follows the tracking store
        for name, value in variables.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
