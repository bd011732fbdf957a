"""The reports of surgical aggregation's Figure 4: the frequency of each label in each data set, and an embedding."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from fedlit import data
from fedlit.core.errors import ConfigError
from fedlit.core.system import documents
from fedlit.data.phantom.hospitals import Hospital
from fedlit.data.pictures.decoding import decode_images
from fedlit.data.xrays.base import ChestXrays
from fedlit.models import ImageClassifier
from fedlit.reports.compare.styles import styles
from fedlit.reports.reproductions.published import grid
from fedlit.reports.reproductions.report import Report, light_axes

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Statistics of ImageNet."""


@dataclass(frozen=True)
class Source:
    """A data set."""

    name: str  # Name in the federation.
    labels: np.ndarray  # Labels [N, C] in {0, 1, NaN}.
    classes: tuple[str, ...]  # Names of the C classes.
    pictures: Callable[[np.ndarray], Tensor]  # Decoded images of some rows, uint8 [n, 1, H, W].
    notes: tuple[str, ...] = ()  # Sentences about images that the reader left out.


def organisations(config: Path) -> dict[str, Any]:
    """Return the arguments of the data module in the configuration of a federation of organisations.

    Raises:
        ConfigError: Its data have no sources.
    """
    data_module = documents.load_mapping(config).get("data")
    arguments = data_module.get("init_args") if isinstance(data_module, dict) else None
    if not isinstance(arguments, dict) or not isinstance(arguments.get("sources"), dict):
        raise ConfigError(f"{config}: data: expected Organisations with sources, found others; name another config")
    return arguments


def sources_there(config: Path, folders: Mapping[str, Mapping[str, str]], root: Path | None) -> Iterator[Source]:
    """Yield the data sets of a configuration that lie below ``root``, or the built-in ones; external ones are last.

    ``folders`` has for each data set the arguments of its reader that are paths, relative to ``root``.

    Raises:
        ConfigError: None of them exists, or the configuration has no sources.
    """
    keys, any_there = organisations(config), root is None
    for name, written in (keys["sources"] | keys.get("external", {})).items():
        arguments = written.get("init_args", {})
        if root is None:
            settings = arguments | {"hospitals": [Hospital(**each) for each in arguments["hospitals"]]}
            records = data.PhantomCXR(**settings, image_size=keys["image_size"]).records()
            yield Source(name, records.labels, records.classes, records.store.__getitem__)
            continue
        paths = {key: root / path for key, path in folders.get(name, {}).items()}
        if paths and all(path.exists() for path in paths.values()):
            any_there = True
            yield _read(name, getattr(data, written["class_path"])(**arguments | paths), keys["image_size"])
    if not any_there:
        wanted = ", ".join(f"{name} in {' and '.join(paths.values())}" for name, paths in folders.items())
        raise ConfigError(f"--root {root}: expected one or more of {wanted}, found none")


def _read(name: str, reader: ChestXrays, image_size: int) -> Source:
    reading = reader.read_within()
    records = reader.described(reading, reading.files)

    def pictures(rows: np.ndarray) -> Tensor:
        files = [reading.files[row] for row in rows]
        return decode_images(files, image_size, depth=reader.depth)[range(len(files))]

    return Source(name, records.labels, records.classes, pictures, tuple(reading.notes))


def frequencies(
    runs: pd.DataFrame, config: Path, root: Path | None, sites: dict[str, list[str]], folders: dict[str, dict[str, str]]
) -> Report:
    """Make a table and a bar chart of classes by data sets; labels are read, and no image is opened.

    Args:
        runs: None, as nothing is trained.
        config: YAML file of the federation.
        root: Folder of the data, or None if they are built in.
        sites: Sites, and the classes that each of them labels.
        folders: Paths below ``--root`` by data set and argument of its reader.
    """
    sources = list(sources_there(config, folders, root))
    classes = sorted({name for labelled in sites.values() for name in labelled})
    shared = [name for name in classes if all(name in labelled for labelled in sites.values())]
    rows = [
        (source.name, len(source.labels), name, float(np.nanmean(source.labels[:, column])))
        for source in sources
        for column, name in enumerate(source.classes)
        if name in sites.get(source.name, classes)
    ]
    table = pd.DataFrame(rows, columns=["source", "images", "class", "share"])
    shares = table.pivot(index="class", columns="source", values="share").reindex(classes)
    names = [source.name for source in sources]
    cells = shares[names].apply(lambda column: ["" if np.isnan(share) else f"{share:.4f}" for share in column])
    shown = [[f"**{name}**" if name in shared else name, *cells.loc[name]] for name in classes]
    heads = [f"{source.name} ({len(source.labels):,} images)" for source in sources]
    said = (
        "Share of positives among the images with a label; empty if a site does not label the class. Classes "
        "that all sites label are bold."
    )
    notes = [f"- {source.name}: {note}" for source in sources for note in source.notes]
    text = "\n".join([*grid(["class", *heads], shown), "", said, *(["", *notes] if notes else []), ""])
    return Report(text, {"frequencies": table}, {"figure": _bars(shares[names], shared)})


def embedding(
    runs: pd.DataFrame,
    config: Path,
    root: Path | None,
    weights: Path | None,
    folders: dict[str, dict[str, str]],
    images: int,
    backbone: str = "",
) -> Report:
    """Make a figure of images of several data sets, by t-SNE of their features.

    Args:
        runs: None, as nothing is trained.
        config: YAML file of the federation.
        root: Folder of the data, or None if they are built in.
        weights: File of the network's weights; None for those of timm's hub.
        folders: Paths below ``--root`` by data set and argument of its reader.
        images: Images of each data set, drawn at random.
        backbone: Network of timm whose features are embedded; "" for the pixels themselves.
    """
    from sklearn.manifold import TSNE  # takes a second to import
    from sklearn.model_selection import cross_val_predict
    from sklearn.neighbors import KNeighborsClassifier

    sources, features, names = list(sources_there(config, folders, root)), [], []
    for number, source in enumerate(sources):
        count = min(images, len(source.labels))
        rows = np.sort(np.random.default_rng(number).choice(len(source.labels), count, replace=False))
        features.append(_features(source.pictures(rows), backbone, weights).numpy())
        names += [source.name] * len(features[-1])
    every = np.concatenate(features)
    places = TSNE(perplexity=min(30, (len(every) - 1) / 3), random_state=0).fit_transform(every)
    points = pd.DataFrame({"source": names, "x": places[:, 0], "y": places[:, 1]})
    of = f"features of {backbone} with ImageNet's weights" if backbone else "their pixels"
    lines = [f"{len(every)} images of {len(sources)} data sets, {images} of each at most; {of}."]
    if len(sources) > 1 and points["source"].value_counts().min() >= 5:
        guessed = cross_val_predict(KNeighborsClassifier(5), every, names, cv=5)
        right, most = np.mean(guessed == np.array(names)), points["source"].value_counts(normalize=True).max()
        lines.append(
            f"The five nearest other images predict an image's data set in {right:.0%} of cases (always "
            f"predicting the largest: {most:.0%}). Distances are those of the features, not those in the figure."
        )
    return Report("\n".join([*lines, ""]), {"embedding": points}, {"figure": _scatter(points)})


@torch.no_grad()
def _features(pictures: Tensor, backbone: str, weights: Path | None) -> Tensor:
    """Return features [n, F] of images, uint8 [n, 1, H, W]: those of a network, or the pixels themselves."""
    pictures = pictures.float() / 255
    if not backbone:
        return pictures.flatten(1)
    start = {"pretrained": weights is None, "weights": weights}
    body = ImageClassifier(("none",), backbone=backbone, in_chans=3, **start).body.eval()
    mean, std = (torch.tensor(each).view(1, 3, 1, 1) for each in (MEAN, STD))
    return torch.cat([body((batch.expand(-1, 3, -1, -1) - mean) / std) for batch in pictures.split(32)])


def _bars(shares: pd.DataFrame, shared: list[str]) -> Figure:
    """Draw shares of positives, [class, data set]."""
    figure = Figure(figsize=(7, 0.34 * len(shares) + 1.2), layout="constrained")
    ax = figure.subplots()
    height = 0.8 / shares.shape[1]
    for number, (name, style) in enumerate(styles(list(shares)).items()):
        rows = np.arange(len(shares)) + (number + 0.5) * height - 0.4
        ax.barh(rows, shares[name], height, color=style.colour, label=name)
    ax.set_yticks(range(len(shares)), list(shares.index))
    for label in ax.get_yticklabels():
        label.set_fontweight("bold" if label.get_text() in shared else "normal")
    ax.invert_yaxis()
    ax.set_xlabel("share of positives; classes that all sites label are bold")
    light_axes(ax, "x")
    figure.legend(loc="outside upper center", ncols=4, frameon=False, fontsize="small")
    return figure


def _scatter(points: pd.DataFrame) -> Figure:
    """Draw points: source, x, y."""
    figure = Figure(figsize=(6, 5.4), layout="constrained")
    ax = figure.subplots()
    for name, style in styles(list(dict.fromkeys(points["source"]))).items():
        of_source = points[points["source"] == name]
        look = {"color": style.colour, "marker": style.marker, "alpha": 0.7, "linewidths": 0}
        ax.scatter(of_source["x"], of_source["y"], s=14, label=name, **look)
    ax.set(xlabel="t-SNE 1", ylabel="t-SNE 2")
    ax.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=4, frameon=False, fontsize="small")
    return figure
