"""Partitions: rules that divide the records of a source among clients.

Every draw depends only on the seed and is made over sorted names, so the order of the source's rows does not matter.
"""

import heapq
from collections.abc import Sequence
from typing import Literal

import numpy as np
import pandas as pd

from fedlit.core.errors import DataError
from fedlit.core.ranges import Count, Positive, PositiveOrInf
from fedlit.core.seeds import numpy_generator
from fedlit.core.system.argument_types import Checked
from fedlit.data.records import SPLITS, Records, listed

_ATTEMPTS = 1000  # draws of Dirichlet before it gives up


class Partition(Checked):
    """A rule that gives each record to a client.

    The records already have their final splits ("train", "val", "test"), so a partition can give every client a part of
    each split.

    Attributes:
        shares_patients: True if a patient may be at several clients. If false, clients that share a patient are an
            error, because a federation whose clients share patients is easier than one of hospitals.
    """

    mistake = DataError

    shares_patients: bool = False

    def assign(self, records: Records, seed: int) -> np.ndarray:
        """Return the name of the client of each record, [N] str, as a pure function of the arguments.

        Raises:
            ValueError: The partition does not fit the records; the message gives the reason.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement assign()")


class ByOrganisation(Partition):
    """One client for each organisation or hospital, with its name.

    A patient of several organisations is at each of them, but never in two splits.
    """

    shares_patients = True

    def assign(self, records: Records, seed: int) -> np.ndarray:
        """Return the organisation of each record as its client, [N] str."""
        return np.asarray(records.sites).astype(str)


class ByPatient(Partition):
    """A division of patients into clients that have nearly the same number of images in every split.

    Patients are dealt in descending order of their number of images, each to the client with the fewest images so far.
    All images of a patient are at one client.

    Args:
        clients: Number of clients, at least 1.
    """

    def __init__(self, clients: Count):
        self.clients = clients

    def assign(self, records: Records, seed: int) -> np.ndarray:
        """Return the client of each record, [N] str: ``client-01``, ``client-02`` and so on."""
        owners = _deal_patients(records.patients, records.splits, self.clients, numpy_generator(seed, "ByPatient"))
        return _named(owners, self.clients, f"{len(np.unique(records.patients))} patients")


class WithinOrganisations(Partition):
    """Several clients for each organisation, each with patients of only that organisation.

    Clients are named ``<organisation>-<number>``. The number of clients per organisation is proportional to its images
    (largest remainders, at least one). Its patients are divided among them as by ``ByPatient``. A patient of two
    organisations is at one client of each. With 16 clients this is ChestXray-IH of Yuan et al. (ICML 2021,
    arXiv:2102.04635), section 6.1.

    Args:
        clients: Total number of clients, at least one for each organisation.
    """

    shares_patients = True

    def __init__(self, clients: Count):
        self.clients = clients

    def assign(self, records: Records, seed: int) -> np.ndarray:
        """Return the client of each record, [N] str."""
        sites, images = np.unique(np.asarray(records.sites).astype(str), return_counts=True)
        if self.clients < len(sites):
            raise DataError(
                f"WithinOrganisations(clients={self.clients}): expected at least one client per organisation, found "
                f"{len(sites)} organisations: {listed(sites)}. Choose at least {len(sites)} clients."
            )
        owners = np.empty(len(records.names), dtype=object)
        for site, clients in zip(sites, _in_proportion(images, self.clients), strict=True):
            here = records.sites == site
            splits = None if records.splits is None else records.splits[here]
            rng = numpy_generator(seed, f"WithinOrganisations {site}")
            dealt = _deal_patients(records.patients[here], splits, int(clients), rng)
            units = f"{len(np.unique(records.patients[here]))} patients of {str(site)!r}"
            owners[here] = _named(dealt, int(clients), units, f"{site}-")
        return owners.astype(str)


class ByCategory(Partition):
    """Label skew of categories: each client has positive and negative categories that no other client has.

    The positive categories are shuffled and dealt to the clients in turn, and so are the negative ones. A client has
    all images of its categories, in every split. This is the heterogeneity of the IH sets of Yuan et al. (ICML 2021,
    arXiv:2102.04635), section 6. The source must have one class and one category for each image, such as CIFAR10. A
    patient with images of several categories may be at several clients.

    Args:
        clients: Number of clients, at most the number of positive and of negative categories.
    """

    shares_patients = True

    def __init__(self, clients: Count):
        self.clients = clients

    def assign(self, records: Records, seed: int) -> np.ndarray:
        """Return the client of each record, [N] str."""
        if "category" not in records.table.columns or len(records.classes) != 1:
            raise DataError(
                "ByCategory: expected a source of one class with a column 'category', such as CIFAR10, found "
                f"{len(records.classes)} classes and columns {listed(records.table.columns)}. Choose another "
                "partition."
            )
        categories, of_record = np.unique(records.table["category"].to_numpy(dtype=str), return_inverse=True)
        labels = pd.Series(records.labels[:, 0]).groupby(of_record).agg(["min", "max"]).to_numpy()
        mixed = categories[labels[:, 0] < labels[:, 1]]
        if len(mixed) or np.isnan(records.labels).any():
            raise DataError(
                "ByCategory: expected categories whose images are all positive or all negative, found "
                + (f"both in {listed(mixed)}" if len(mixed) else f"{np.isnan(records.labels).sum()} unknown labels")
                + ". Choose another partition."
            )
        positive, negative = np.flatnonzero(labels[:, 0] == 1), np.flatnonzero(labels[:, 0] == 0)
        fewest = min(len(positive), len(negative))
        if fewest < self.clients:
            raise DataError(
                f"ByCategory(clients={self.clients}): each client needs a positive and a negative category of its "
                f"own, found {len(positive)} positive and {len(negative)} negative categories. "
                + (f"Choose at most {fewest} clients." if fewest else "Choose other positives.")
            )
        rng = numpy_generator(seed, "ByCategory")
        owner = np.empty(len(categories), dtype=np.int64)
        for group in (positive, negative):
            owner[rng.permutation(group)] = np.arange(len(group)) % self.clients
        return _named(owner[of_record], self.clients, f"{len(categories)} categories")


class IID(Partition):
    """Patients or images, shuffled and dealt to the clients in turn, so that sizes differ by at most one in a split.

    Args:
        clients: Number of clients, at least 1.
        unit: Unit that is dealt. ``patient`` keeps all images of a patient at one client. ``image`` deals single
            images, so that a patient may be at several clients, but never in several splits.
        sizes: Relative sizes of the clients in every split (quantity skew), one number above 0 for each client. With
            ``[16, 8, 4, 2, 1]``, the first of five clients has sixteen times as many patients or images as the last. By
            default all clients have the same size.
    """

    def __init__(
        self, clients: Count, unit: Literal["patient", "image"] = "patient", sizes: Sequence[Positive] | None = None
    ):
        if sizes is not None and len(sizes) != clients:
            raise DataError(f"IID.sizes: expected {clients} numbers, one per client, found {list(sizes)}")
        self.clients, self.unit, self.sizes = clients, unit, sizes
        self.shares_patients = unit == "image"

    def assign(self, records: Records, seed: int) -> np.ndarray:
        """Return the client of each record, [N] str.

        Raises:
            ValueError: There are too few patients or images for this number of clients, or for these sizes.
        """
        rng = numpy_generator(seed, "IID")
        units, of_record = np.unique(records.patients if self.unit == "patient" else records.names, return_inverse=True)
        owner = np.empty(len(units), dtype=np.int64)
        turn, dealt = rng.permutation(self.clients), 0
        for group in _by_split(records.splits, of_record, len(units)):
            if self.sizes is None:
                owner[rng.permutation(group)] = turn[(dealt + np.arange(len(group))) % self.clients]
                dealt += len(group)
            else:
                owner[rng.permutation(group)] = _in_shares(np.array(self.sizes) / sum(self.sizes), len(group), rng)
        advice = "Choose fewer clients" + (", or sizes that differ less" if self.sizes is not None else "")
        return _named(owner[of_record], self.clients, f"{len(units)} {self.unit}s", advice=advice)


class Dirichlet(Partition):
    """Label skew: patients of each class are spread over clients in proportions drawn from Dirichlet(alpha).

    This follows Yurochkin et al. (ICML 2019, arXiv:1905.12022), section 4, for images with several labels. Each patient
    has one primary class: the rarest class (with the fewest positive images) that is positive in any of the patient's
    images, or none. Proportions are drawn once for each primary class, and once for the patients without one. They hold
    for all splits, so a client is tested on its own mixture. All images of a patient are at one client. Proportions are
    drawn again until every client has ``min_images``.

    Args:
        clients: Number of clients, at least 1.
        alpha: Concentration of the Dirichlet distribution, above 0: with 0.1 a client has few classes, 100 is nearly
            IID.
        min_images: Smallest number of training images that a client may have.
        by: Groups of patients that have proportions of their own: those of a primary ``class``, as above; those of a
            ``site``, so that clients are mixtures of hospitals; or those of a ``site and class``.
    """

    def __init__(
        self,
        clients: Count,
        alpha: PositiveOrInf,
        min_images: int = 10,
        by: Literal["class", "site", "site and class"] = "class",
    ):
        self.clients, self.alpha, self.min_images, self.by = clients, alpha, min_images, by

    def assign(self, records: Records, seed: int) -> np.ndarray:
        """Return the client of each record, [N] str.

        Raises:
            DataError: None of 1000 draws gave every client ``min_images`` training images.
        """
        rng = numpy_generator(seed, "Dirichlet")
        patients, of_record = np.unique(records.patients, return_inverse=True)
        primary = _primary_classes(records.labels, of_record, len(patients))
        if self.by != "class":
            site = np.unique(records.sites, return_inverse=True)[1][np.unique(of_record, return_index=True)[1]]
            primary = site * len(records.classes) + site + (primary if self.by == "site and class" else 0)
        groups = [
            (int(group), rng.permutation(part[primary[part] == group]))
            for part in _by_split(records.splits, of_record, len(patients))
            for group in np.unique(primary[part])
        ]
        classes = np.unique(primary)
        training = np.ones(len(of_record), bool) if records.splits is None else records.splits == "train"
        owner = np.empty(len(patients), dtype=np.int64)
        best = -1
        for _ in range(_ATTEMPTS):
            proportions = rng.dirichlet(np.full(self.clients, self.alpha), len(classes))
            shares = dict(zip(classes.tolist(), proportions, strict=True))
            for group, members in groups:
                owner[members] = _in_shares(shares[group], len(members), rng)
            smallest = int(np.bincount(owner[of_record[training]], minlength=self.clients).min())
            if smallest >= self.min_images:
                return _named(owner[of_record], self.clients, f"{len(patients)} patients")
            best = max(best, smallest)
        raise DataError(
            f"Dirichlet(clients={self.clients}, alpha={self.alpha:g}): expected at least {self.min_images} training "
            f"images at every client, found at most {best} at the smallest client in {_ATTEMPTS} draws over "
            f"{int(training.sum())} images. Choose fewer clients, a larger alpha or a smaller min_images."
        )


class ByColumn(Partition):
    """One client for each value of a column of the source's table, such as the view position or the scanner.

    A patient with several values is at several clients, but never in two splits.

    Args:
        column: Name of the column, spelled as in the source.
        bins: Number of quantile bins of a numeric column, with one client for each bin. By default there is one client
            for each value.
    """

    shares_patients = True

    def __init__(self, column: str, bins: Count | None = None):
        self.column, self.bins = column, bins

    def assign(self, records: Records, seed: int) -> np.ndarray:
        """Return the client of each record, [N] str: the value of its column, or its bin."""
        if self.column not in records.table.columns:
            columns = ", ".join(repr(str(column)) for column in records.table.columns)
            raise DataError(f"ByColumn: there is no column {self.column!r}; columns are {columns}")
        values = records.table[self.column]
        missing = int(values.isna().sum())
        if missing:
            raise DataError(
                f"ByColumn: column {self.column!r} is empty for {missing} of {len(values)} images, the first is "
                f"{str(np.asarray(records.names)[values.isna().to_numpy()][0])!r}. Fill in the cells, or remove these "
                "rows."
            )
        if self.bins is not None:
            return self._quantile_bins(values, self.bins)
        if pd.api.types.is_float_dtype(values):
            return np.array([f"{value:g}" for value in values])
        return values.astype(str).to_numpy(dtype=str)

    def _quantile_bins(self, values: pd.Series, bins: int) -> np.ndarray:
        if not pd.api.types.is_numeric_dtype(values) or pd.api.types.is_bool_dtype(values):
            raise DataError(
                f"ByColumn.bins: expected a numeric column, found {self.column!r} of {values.dtype}. Leave bins out."
            )
        numbers = values.to_numpy(dtype=np.float64)
        edges = np.quantile(numbers, np.linspace(0, 1, bins + 1))
        bin_of = np.searchsorted(edges[1:-1], numbers, side="left")
        filled = len(np.unique(bin_of))
        if filled < bins:
            raise DataError(
                f"ByColumn.bins: column {self.column!r} has too many equal values for {bins} quantile bins, found "
                f"{filled} bins that are not empty. Choose fewer bins."
            )
        width, parts = len(str(bins)), [numbers[bin_of == index] for index in range(bins)]
        names = [f"q{k:0{width}d} {inside.min():g} to {inside.max():g}" for k, inside in enumerate(parts, start=1)]
        return np.array(names)[bin_of]


def _primary_classes(labels: np.ndarray, patient_of_record: np.ndarray, patients: int) -> np.ndarray:
    """Return the rarest class that is positive in any image of each patient, [patients]; C if the patient has none."""
    positive = np.asarray(labels) == 1
    by_rarity = np.argsort(positive.sum(axis=0), kind="stable")
    rank = np.where(positive[:, by_rarity].any(axis=1), positive[:, by_rarity].argmax(axis=1), len(by_rarity))
    best = np.full(patients, len(by_rarity))
    np.minimum.at(best, patient_of_record, rank)
    return np.append(by_rarity, len(by_rarity))[best]


def _deal_patients(
    patients: np.ndarray, splits: np.ndarray | None, clients: int, rng: np.random.Generator
) -> np.ndarray:
    """Return the client 0 to ``clients`` - 1 of each record, [N]: largest patients first, balanced in every split."""
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
    """Return the seats of each organisation by largest remainders of their images, at least one each."""
    shares = np.ones(len(images), dtype=np.int64)
    large = np.arange(len(images))
    while True:
        # An organisation with a share of less than one seat gets one; the others divide the rest in proportion.
        whole, rest = np.divmod(images[large] * (seats - len(images) + len(large)), images[large].sum())
        if whole.all():
            break
        large = large[whole > 0]
    shares[large] = whole
    shares[large[np.argsort(-rest, kind="stable")[: seats - shares.sum()]]] += 1
    return shares


def _in_shares(shares: np.ndarray, units: int, rng: np.random.Generator) -> np.ndarray:
    """Return the owner of each unit, [units], given the shares of the owners, which sum to 1.

    Points are evenly spaced with one random shift, so that expected shares are exact and rounding favours no owner.
    """
    points = (np.arange(units) + rng.random()) / units
    return np.searchsorted(np.cumsum(shares)[:-1], points, side="right")


def _by_split(splits: np.ndarray | None, unit_of_record: np.ndarray, units: int) -> list[np.ndarray]:
    """Return the units (patients or images) of each split; one group of all units if the records have no splits."""
    if splits is None:
        return [np.arange(units)]
    return [np.unique(unit_of_record[splits == split]) for split in SPLITS]


def _named(
    owner: np.ndarray, clients: int, units: str, prefix: str = "client-", advice: str = "Choose fewer clients"
) -> np.ndarray:
    empty = clients - len(np.unique(owner))
    if empty:
        raise DataError(f"partition: {empty} of {clients} clients would have no image, found {units}. {advice}.")
    width = max(2, len(str(clients)))
    return np.array([f"{prefix}{index + 1:0{width}d}" for index in range(clients)])[owner]
