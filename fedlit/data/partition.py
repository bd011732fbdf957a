"""Which patient is in which split, and which record is at which client.

Every draw comes from a generator of the given seed and is made over sorted names, so the order of the
source's rows does not matter.
"""

import heapq
import zlib
from typing import Literal

import numpy as np
import pandas as pd

from fedlit.data.records import SPLITS, Records, listed


class Partition:
    """Gives each record to a client.

    The records that it sees have their final splits ("train", "val", "test"), so a partition can give every
    client a part of each.
    """

    def assign(self, records: Records, seed: int) -> np.ndarray:
        """The client's name for each record, [N] str; a pure function of its arguments."""
        raise NotImplementedError(f"{type(self).__name__} does not implement assign()")


class ByOrganisation(Partition):
    """One client an organisation or hospital, named after it."""

    def assign(self, records: Records, seed: int) -> np.ndarray:
        return np.asarray(records.sites).astype(str)


class ByPatient(Partition):
    """Patients dealt to clients, the largest first and each to the client with the fewest images so far.

    So clients have nearly the same number of images in every split, and a patient is at one client.

    Args:
        clients: Number of clients.
    """

    def __init__(self, clients: int):
        self.clients = _checked(clients)

    def assign(self, records: Records, seed: int) -> np.ndarray:
        owners = _deal_patients(records.patients, records.splits, self.clients, _generator(seed, "ByPatient"))
        return _named(owners, self.clients, f"{len(np.unique(records.patients))} patients")


class WithinOrganisations(Partition):
    """Several clients an organisation, each with patients of that organisation only (`<organisation>-<number>`).

    Each organisation has clients in proportion to its images, at least one, by largest remainders; its
    patients are dealt to them as `ByPatient` does. A patient of two organisations is at a client of each. This
    is ChestXray-IH of Yuan et al. (ICML 2021), section 6.1, with 16 clients.

    Args:
        clients: Number of clients of all organisations together.
    """

    def __init__(self, clients: int):
        self.clients = _checked(clients)

    def assign(self, records: Records, seed: int) -> np.ndarray:
        sites, images = np.unique(np.asarray(records.sites).astype(str), return_counts=True)
        if self.clients < len(sites):
            raise ValueError(
                f"WithinOrganisations(clients={self.clients}): expected at least one client an organisation, found "
                f"{len(sites)} organisations: {listed(sites)}. Choose at least {len(sites)} clients."
            )
        owners = np.empty(len(records.names), dtype=object)
        for site, clients in zip(sites, _in_proportion(images, self.clients), strict=True):
            here = records.sites == site
            splits = None if records.splits is None else records.splits[here]
            rng = _generator(seed, f"WithinOrganisations {site}")
            dealt = _deal_patients(records.patients[here], splits, int(clients), rng)
            found = f"{len(np.unique(records.patients[here]))} patients of {str(site)!r}"
            owners[here] = _named(dealt, int(clients), found, f"{site}-")
        return owners.astype(str)


class ByCategory(Partition):
    """Label skew of categories: each client has positive and negative categories that no other client has.

    The positive categories are shuffled and dealt in turn, the negative ones too; a client has all images of
    its categories, in every split. This is the heterogeneity of the IH sets of Yuan et al. (ICML 2021),
    section 6. It is for sources of one class whose images have one category each, such as CIFAR10.

    Args:
        clients: Number of clients, at most that of the positive and of the negative categories.
    """

    def __init__(self, clients: int):
        self.clients = _checked(clients)

    def assign(self, records: Records, seed: int) -> np.ndarray:
        if "category" not in records.table.columns or len(records.classes) != 1:
            raise ValueError(
                "ByCategory: expected a source of one class with a column 'category', such as CIFAR10, found "
                f"{len(records.classes)} classes and columns {listed(records.table.columns)}. "
                "Choose another partition."
            )
        categories, of_record = np.unique(records.table["category"].to_numpy(dtype=str), return_inverse=True)
        labels = pd.Series(records.labels[:, 0]).groupby(of_record).agg(["min", "max"]).to_numpy()
        mixed = categories[labels[:, 0] < labels[:, 1]]
        if len(mixed) or np.isnan(records.labels).any():
            raise ValueError(
                "ByCategory: expected categories whose images are all positive or all negative, found "
                + (f"both in {listed(mixed)}" if len(mixed) else f"{np.isnan(records.labels).sum()} unknown labels")
                + ". Choose another partition."
            )
        positive, negative = np.flatnonzero(labels[:, 0] == 1), np.flatnonzero(labels[:, 0] == 0)
        fewest = min(len(positive), len(negative))
        if fewest < self.clients:
            raise ValueError(
                f"ByCategory(clients={self.clients}): each client needs a positive and a negative category of its "
                f"own, found {len(positive)} positive and {len(negative)} negative categories. "
                + (f"Choose at most {fewest} clients." if fewest else "Choose other positives.")
            )
        rng = _generator(seed, "ByCategory")
        owner = np.empty(len(categories), dtype=np.int64)
        for group in (positive, negative):
            owner[rng.permutation(group)] = np.arange(len(group)) % self.clients
        return _named(owner[of_record], self.clients, f"{len(categories)} categories")


class IID(Partition):
    """Patients, or single images, shuffled and dealt in turn: clients differ by one at most in each split.

    Args:
        clients: Number of clients.
        unit: What is dealt. "patient" keeps a patient's images at one client; "image" lets them spread over
            clients (but never over splits), which is the textbook's IID and no federation of hospitals.
    """

    def __init__(self, clients: int, unit: Literal["patient", "image"] = "patient"):
        if unit not in ("patient", "image"):
            raise ValueError(f"IID.unit: expected 'patient' or 'image', found {unit!r}")
        self.clients = _checked(clients)
        self.unit = unit

    def assign(self, records: Records, seed: int) -> np.ndarray:
        rng = _generator(seed, "IID")
        units, of_record = np.unique(records.patients if self.unit == "patient" else records.names, return_inverse=True)
        owner = np.empty(len(units), dtype=np.int64)
        turn, dealt = rng.permutation(self.clients), 0
        for group in _by_split(records.splits, of_record, len(units)):
            owner[rng.permutation(group)] = turn[(dealt + np.arange(len(group))) % self.clients]
            dealt += len(group)
        return _named(owner[of_record], self.clients, f"{len(units)} {self.unit}s")


class Dirichlet(Partition):
    """Label skew: patients of each class are spread over clients in proportions drawn from Dirichlet(alpha).

    A patient is at one client. Images have several labels, so each patient counts under one primary class:
    the rarest class (fewest positive images of all) that is positive in any of its images, or none. For each
    primary class, and for the patients with none, proportions over clients are drawn once and hold for all
    splits: a client is tested on its own mixture. Proportions are drawn again, from the same generator, until
    every client has `min_images`.

    Args:
        clients: Number of clients.
        alpha: Concentration, above 0: 0.1 gives clients of a few classes each, 100 is close to IID.
        min_images: Training images that each client gets at least.
    """

    def __init__(self, clients: int, alpha: float, min_images: int = 10):
        if not alpha > 0:
            raise ValueError(f"Dirichlet.alpha: expected a number above 0, found {alpha}")
        self.clients = _checked(clients)
        self.alpha = alpha
        self.min_images = min_images

    def assign(self, records: Records, seed: int, attempts: int = 1000) -> np.ndarray:
        rng = _generator(seed, "Dirichlet")
        patients, of_record = np.unique(records.patients, return_inverse=True)
        primary = _primary_classes(records.labels, of_record, len(patients))
        groups = [
            (int(group), rng.permutation(part[primary[part] == group]))
            for part in _by_split(records.splits, of_record, len(patients))
            for group in np.unique(primary[part])
        ]
        classes = np.unique(primary)
        training = np.ones(len(of_record), bool) if records.splits is None else records.splits == "train"
        owner = np.empty(len(patients), dtype=np.int64)
        best = -1
        for _ in range(attempts):
            shares = dict(
                zip(
                    classes.tolist(),
                    rng.dirichlet(np.full(self.clients, self.alpha), len(classes)),
                    strict=True,
                )
            )
            for group, members in groups:
                # Evenly spaced points with one random shift: expected shares are exact, and no client always
                # gets the rest.
                points = (np.arange(len(members)) + rng.random()) / len(members)
                edges = np.cumsum(shares[group])[:-1]
                owner[members] = np.searchsorted(edges, points, side="right")
            smallest = int(np.bincount(owner[of_record[training]], minlength=self.clients).min())
            if smallest >= self.min_images:
                return _named(owner[of_record], self.clients, f"{len(patients)} patients")
            best = max(best, smallest)
        raise ValueError(
            f"Dirichlet(clients={self.clients}, alpha={self.alpha:g}): expected at least {self.min_images} "
            f"training images at every client, found at most {best} at the smallest one in {attempts} "
            f"draws over {int(training.sum())} images. "
            "Choose fewer clients, a larger alpha or a smaller min_images."
        )


class ByColumn(Partition):
    """One client for each value of a column of the source's table, such as the view position or the scanner.

    A patient with several values is at several clients, but never in two splits.

    Args:
        column: The column, spelled as in the source.
        bins: Cuts a numeric column into this many quantile bins of the images, one client each; by default
            each value is a client.
    """

    def __init__(self, column: str, bins: int | None = None):
        if bins is not None and bins < 1:
            raise ValueError(f"ByColumn.bins: expected at least 1, found {bins}")
        self.column = column
        self.bins = bins

    def assign(self, records: Records, seed: int) -> np.ndarray:
        if self.column not in records.table.columns:
            raise ValueError(
                f"ByColumn: the source has no column {self.column!r}; its columns are "
                + ", ".join(repr(str(column)) for column in records.table.columns)
            )
        values = records.table[self.column]
        missing = int(values.isna().sum())
        if missing:
            raise ValueError(
                f"ByColumn: column {self.column!r} is empty for {missing} of {len(values)} images, "
                f"the first is {str(np.asarray(records.names)[values.isna().to_numpy()][0])!r}. "
                "Fill them in, or remove these rows."
            )
        if self.bins is not None:
            return self._quantile_bins(values)
        if pd.api.types.is_float_dtype(values):
            return np.array([f"{value:g}" for value in values])
        return values.astype(str).to_numpy(dtype=str)

    def _quantile_bins(self, values: pd.Series) -> np.ndarray:
        if not pd.api.types.is_numeric_dtype(values) or pd.api.types.is_bool_dtype(values):
            raise ValueError(
                f"ByColumn.bins: expected a numeric column, found {self.column!r} of {values.dtype}. Leave bins out."
            )
        numbers = values.to_numpy(dtype=np.float64)
        edges = np.quantile(numbers, np.linspace(0, 1, self.bins + 1))
        bin_of = np.searchsorted(edges[1:-1], numbers, side="left")
        found = len(np.unique(bin_of))
        if found < self.bins:
            raise ValueError(
                f"ByColumn.bins: column {self.column!r} has too many equal values for {self.bins} quantile "
                f"bins, found {found} that are not empty. Choose fewer bins."
            )
        width = len(str(self.bins))
        names = []
        for index in range(self.bins):
            inside = numbers[bin_of == index]
            names.append(f"q{index + 1:0{width}d} {inside.min():g} to {inside.max():g}")
        return np.array(names)[bin_of]


def split_by_patient(records: Records, fractions: tuple[float, float, float], seed: int) -> np.ndarray:
    """The split of each record, [N] "train", "val" or "test"; no patient is in two of them.

    Official splits win. "train_val" is divided by patient in the ratio of the first two fractions, and
    records without official splits by all three. Each site is divided by itself, so that every hospital has
    its share of each split.

    Raises:
        ValueError: An official split has another name, or a patient is in two official splits.
    """
    if records.splits is None:
        return _divide(records, np.arange(len(records.names)), SPLITS, fractions, seed)
    splits = np.asarray(records.splits).astype(str)
    unknown = ~np.isin(splits, ("train", "val", "test", "train_val"))
    if unknown.any():
        row = int(np.flatnonzero(unknown)[0])
        raise ValueError(
            f"official split of image {str(records.names[row])!r}: expected train, val, test or train_val, "
            f"found {str(splits[row])!r} ({int(unknown.sum())} images are so)"
        )
    _refuse_shared_patients(np.asarray(records.patients), splits)
    both = np.flatnonzero(splits == "train_val")
    if len(both):
        if fractions[0] + fractions[1] <= 0:
            raise ValueError(f"split: expected a fraction of train or validation above 0, found {list(fractions)}")
        splits = splits.astype("<U9")
        splits[both] = _divide(records, both, ("train", "val"), fractions[:2], seed)
    return splits


def _divide(
    records: Records, rows: np.ndarray, names: tuple[str, ...], fractions: tuple[float, ...], seed: int
) -> np.ndarray:
    rng = _generator(seed, "split")
    patients, of_row, images = np.unique(np.asarray(records.patients)[rows], return_inverse=True, return_counts=True)
    sites, site_of_row = np.unique(np.asarray(records.sites)[rows], return_inverse=True)
    home = np.full(len(patients), len(sites))
    np.minimum.at(home, of_row, site_of_row)
    edges = np.cumsum(np.asarray(fractions) / np.sum(fractions))[:-1]
    part = np.empty(len(patients), dtype=np.int64)
    for site in range(len(sites)):
        members = rng.permutation(np.flatnonzero(home == site))
        ends = np.cumsum(images[members])
        if len(members):
            # A patient goes where the middle of its images falls: each edge is off by half a patient at most.
            middles = (ends - images[members] / 2) / ends[-1]
            part[members] = np.searchsorted(edges, middles, side="right")
    return np.array(names)[part[of_row]]


def _refuse_shared_patients(patients: np.ndarray, splits: np.ndarray) -> None:
    pairs = pd.DataFrame({"patient": patients, "split": splits}).value_counts().sort_index().reset_index(name="images")
    shared = pairs[pairs.duplicated("patient", keep=False)]
    if len(shared):
        found = [
            f"patient {patient!r} in " + " and ".join(f"{row.split} ({row.images} images)" for row in rows.itertuples())
            for patient, rows in shared.groupby("patient")
        ]
        raise ValueError(
            f"{len(found)} patients are in more than one official split: "
            + "; ".join(found[:3])
            + ("; ..." * (len(found) > 3))
            + ". Keep each patient in one split, or leave the official splits out."
        )


def _primary_classes(labels: np.ndarray, patient_of_record: np.ndarray, patients: int) -> np.ndarray:
    """The rarest class that is positive in any image of each patient, [patients]; C where there is none."""
    positive = np.asarray(labels) == 1
    by_rarity = np.argsort(positive.sum(axis=0), kind="stable")
    rank = np.where(positive[:, by_rarity].any(axis=1), positive[:, by_rarity].argmax(axis=1), len(by_rarity))
    best = np.full(patients, len(by_rarity))
    np.minimum.at(best, patient_of_record, rank)
    return np.append(by_rarity, len(by_rarity))[best]


def _deal_patients(
    patients: np.ndarray, splits: np.ndarray | None, clients: int, rng: np.random.Generator
) -> np.ndarray:
    """The client 0 to `clients` - 1 of each record, [N]: largest patients first, balanced in every split."""
    people, of_record, images = np.unique(patients, return_inverse=True, return_counts=True)
    owner = np.empty(len(people), dtype=np.int64)
    total = np.zeros(clients, dtype=np.int64)
    for group in _by_split(splits, of_record, len(people)):
        shuffled = rng.permutation(group)
        largest_first = shuffled[np.argsort(-images[shuffled], kind="stable")]
        heap = [(0, int(total[client]), tie, client) for tie, client in enumerate(rng.permutation(clients))]
        heapq.heapify(heap)
        for patient in largest_first:
            load, before, tie, client = heapq.heappop(heap)
            owner[patient] = client
            heapq.heappush(heap, (load + int(images[patient]), before, tie, client))
        np.add.at(total, owner[group], images[group])
    return owner[of_record]


def _in_proportion(images: np.ndarray, seats: int) -> np.ndarray:
    """Seats of each of several organisations by largest remainders of their images, at least one each."""
    shares = np.ones(len(images), dtype=np.int64)
    large = np.arange(len(images))
    while True:
        # Whoever has a right to less than one seat gets one; the others share the rest in proportion.
        whole, rest = np.divmod(images[large] * (seats - len(images) + len(large)), images[large].sum())
        if whole.all():
            break
        large = large[whole > 0]
    shares[large] = whole
    shares[large[np.argsort(-rest, kind="stable")[: seats - shares.sum()]]] += 1
    return shares


def _by_split(splits: np.ndarray | None, unit_of_record: np.ndarray, units: int) -> list[np.ndarray]:
    """The units (patients or images) of each split; all in one group where records have no splits."""
    if splits is None:
        return [np.arange(units)]
    return [np.unique(unit_of_record[splits == split]) for split in SPLITS]


def _generator(seed: int, purpose: str) -> np.random.Generator:
    return np.random.default_rng([seed, zlib.crc32(purpose.encode())])


def _checked(clients: int) -> int:
    if clients < 1:
        raise ValueError(f"partition: expected at least 1 client, found {clients}")
    return clients


def _named(owner: np.ndarray, clients: int, found: str, prefix: str = "client-") -> np.ndarray:
    empty = clients - len(np.unique(owner))
    if empty:
        raise ValueError(
            f"partition: {empty} of {clients} clients would have no image, found {found}. Choose fewer clients."
        )
    width = max(2, len(str(clients)))
    return np.array([f"{prefix}{index + 1:0{width}d}" for index in range(clients)])[owner]
