"""Checks of the clients of a data module, and the splits that each has."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedlit.core.errors import ConfigError, DataError
from fedlit.data.records import SPLITS

if TYPE_CHECKING:  # reading labels needs no PyTorch
    import pandas as pd

    from fedlit.core.examples import MapDataset
    from fedlit.core.messages import ClientData


def parts_of(client: ClientData) -> list[tuple[str, MapDataset]]:
    """Return the splits that a client has, as (split, data set)."""
    parts = zip(SPLITS, (client.train, client.val, client.test), strict=True)
    return [(split, data) for split, data in parts if data is not None]


def check_clients(owners: np.ndarray, splits: np.ndarray) -> None:
    """Check the names of the clients, and their training images, given client and split of each record, [N] str.

    Raises:
        DataError: The lengths differ, a name is empty, two names are equal as a file name or metric key, or a client
            has fewer than two training images.
    """
    if owners.shape != splits.shape:
        raise DataError(f"partition: expected clients of {len(splits)} images, found {list(owners.shape)}")
    names = sorted(set(owners.tolist()))
    if empty := sum(not name.strip() for name in owners.tolist()):
        raise DataError(f"client names: {empty} images have an empty client name")
    distinct_names(names)
    training = Counter(owners[splits == "train"].tolist())
    short = [name for name in names if training[name] < 2]
    if short:
        raise DataError(
            f"client {short[0]!r}: expected at least 2 training images, found {training[short[0]]} ({len(short)} of "
            f"{len(names)} clients have too few). Choose fewer clients or another partition, or remove this client."
        )


def check_patients(patients: np.ndarray, owners: np.ndarray, where: str) -> None:
    """Check that all images of a patient, [N] str, have the same client, [N] str.

    Raises:
        DataError: A patient is at several clients; the message begins with ``where``.
    """
    pairs = sorted(set(zip(patients.tolist(), owners.tolist(), strict=True)))
    several = [patient for patient, count in Counter(patient for patient, _ in pairs).items() if count > 1]
    if several:
        clients = " and ".join(repr(client) for patient, client in pairs if patient == several[0])
        raise DataError(
            f"{where}: expected all images of a patient at one client, found {len(several)} of "
            f"{len(set(patients.tolist()))} patients at several, such as {several[0]!r} at {clients}. Assign "
            "records.patients instead of single images; if the patients are meant to be shared, set shares_patients = "
            "True in the partition's class"
        )


def distinct_names(names: Iterable[str]) -> None:
    """Check that no client name is empty, and that no two are equal as a file name or metric key.

    Raises:
        ConfigError: A name is empty, or equal to another one.
    """
    seen: dict[str, str] = {}
    for name in names:
        key = re.sub(r"[^\w.\-]+", "_", name.strip()).lstrip(".").casefold() or "_"
        if not name.strip():
            raise ConfigError("client names: expected letters, found an empty name")
        if key in seen:
            raise ConfigError(
                f"client names {seen[key]!r} and {name!r} are the same in files and metrics: rename one in the source, "
                f"or merge them; for a table, set data.sites to {{{name}: {seen[key]}}}"
            )
        seen[key] = name


def groups_of(dataset: MapDataset) -> Mapping[str, np.ndarray]:
    """Return the groups of a data set's images, a map from names to [n] str; {} if it has none."""
    groups = getattr(dataset, "groups", None)
    return groups if isinstance(groups, Mapping) else {}


def patients_of(dataset: MapDataset, images: int) -> np.ndarray | None:
    """Return the patient of each of a data set's images, [images] str; None if one is not known."""
    patients = np.asarray(getattr(dataset, "patients", ())).astype(str)
    return patients if len(patients) == images and (patients != "").all() else None


def validation_counts(clients: Iterable[ClientData], classes: Sequence[str]) -> pd.DataFrame:
    """Return the positives and negatives of each class in all validation sets together.

    The columns are ``class``, ``positives`` and ``negatives`` (images), and ``positive_patients`` and
    ``negative_patients`` (NaN if they are not known). There are no rows if the labels are not known.
    """
    from pandas import DataFrame

    from fedlit.core.labels import all_labels
    from fedlit.metrics.support import independent

    parts = [client.val for client in clients if client.val is not None]
    labels = [each for part in parts if (each := all_labels(part, len(classes), fetching=False)) is not None]
    rows: list[tuple] = []
    if parts and len(labels) == len(parts):
        whole = np.concatenate([each.numpy() for each in labels])
        patients = [of for part in parts if (of := patients_of(part, len(part))) is not None]
        images = independent(whole, np.arange(len(whole)))
        known = len(patients) == len(parts)
        people = independent(whole, np.concatenate(patients)) if known else [[np.nan] * len(classes)] * 2
        rows = list(zip(classes, *images, *people, strict=True))
    names = ["class", "positives", "negatives", "positive_patients", "negative_patients"]
    return DataFrame(rows, columns=names)


def group_counts(clients: Iterable[ClientData], test_sets: Mapping[str, MapDataset]) -> pd.DataFrame:
    """Return the numbers of images and patients in each group of each client's parts and of the server's test sets.

    The columns are ``client`` ("" for the server), ``split``, ``group``, ``value`` ("" if unknown), ``images``, and
    ``patients`` (NaN if they are not known).
    """
    from pandas import DataFrame

    parts = [(client.name, split, part) for client in clients for split, part in parts_of(client)]
    parts += [("", name, part) for name, part in test_sets.items()]
    rows = []
    for client, split, part in parts:
        for name, values in groups_of(part).items():
            patients = patients_of(part, len(values))
            for value in np.unique(values).tolist():
                where = values == value
                people = np.nan if patients is None else len(np.unique(patients[where]))
                rows.append((client, split, name, value, int(where.sum()), people))
    return DataFrame(rows, columns=["client", "split", "group", "value", "images", "patients"])
