"""Runs of a federation with the model of each site alone, written by hand."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from past_runs import config, scored, write_run

from fedlit.predictions.table import Predictions, write

SITES = ("east", "north", "west")
CLASSES = ("Mass", "Nodule")


def site_predictions(strength: float, seed: int, draw: int = 7, sites: Sequence[str] = SITES) -> Predictions:
    """300 test images of each site; the labels and half of the noise of a draw are the same for all seeds."""
    rng, own = np.random.default_rng(draw), np.random.default_rng((draw, seed + 1, 1000))
    holders = np.repeat(sites, 300)
    labels = (rng.random((len(holders), len(CLASSES))) < 0.35).astype(np.float32)
    scores = strength * labels + rng.normal(size=labels.shape) + 0.3 * own.normal(size=labels.shape)
    names = np.array([f"{site}-{n:05d}" for n, site in enumerate(holders)])
    people = np.char.add("p", names)
    return scored(scores, labels, CLASSES, images=names, patients=people, sites=holders, clients=holders)


def write_federation(folder: Path, name: str, found: Predictions, seed: int, **settings: object) -> Path:
    """A run of all clients."""
    wanted = config((name,), seed) | {"tags": {"fedlit.method": name.lower()}} | settings
    return write_run(folder / f"{name},seed={seed}", found, wanted)


def write_individual(folder: Path, site: str, found: Predictions, seed: int) -> Path:
    """A run of one client, which is tested on its own images as the federation, and on those of every other client."""
    wanted = config((), seed) | {"tags": {"fedlit.method": f"individual-{site}"}}
    wanted["federation"]["clients"] = [site]
    directory = write_run(folder / f"individual-{site},seed={seed}", found.take(found.clients == site), wanted)
    for other in sorted(set(found.clients.tolist()) - {site}):
        part = replace(found.take(found.clients == other), name=other)
        write(part, directory / "predictions" / f"{other}.parquet")
    return directory


def write_joining(folder: Path, alone: float = 0.6, joined: float = 1.4) -> Path:
    """Runs of each site alone, of a federation, and of pooled data, with three seeds."""
    for seed in (0, 1, 2):
        for place, site in enumerate(SITES):
            write_individual(folder, site, site_predictions(alone, 10 * seed + place), seed)
        write_federation(folder, "FedAvg", site_predictions(joined, 10 * seed + 8), seed)
        pooled = site_predictions(joined, 10 * seed + 9)
        pooled = replace(pooled, clients=np.full(len(pooled), "pooled"))
        write_federation(folder, "FedProx", pooled, seed, tags={"fedlit.method": "pooled"})
    return folder
