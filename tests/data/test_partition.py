"""Partitions, and the split of patients, as properties over random sources."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_records import FRACTIONS, NoPixels, divided, random_records, seeds, values_per
from refusals import refused

from fedlit.core.errors import DataError
from fedlit.data.partition import IID, ByCategory, ByColumn, ByOrganisation, ByPatient, Dirichlet, WithinOrganisations
from fedlit.data.records import Records
from fedlit.data.splits import split_by_patient

PARTITIONS = {
    "ByOrganisation": ByOrganisation(),
    "ByPatient": ByPatient(4),
    "IID patient": IID(4),
    "IID image": IID(4, unit="image"),
    "IID sizes": IID(4, sizes=[8, 4, 2, 1]),
    "Dirichlet": Dirichlet(4, alpha=1.0, min_images=2),
    "ByColumn": ByColumn("View"),
    "ByColumn bins": ByColumn("Age", bins=3),
    "WithinOrganisations": WithinOrganisations(5),
}


@pytest.mark.parametrize("name", PARTITIONS)
@settings(max_examples=6, deadline=None, derandomize=True)
@given(data_seed=seeds, seed=seeds)
def test_every_record_has_one_client_whatever_the_order_of_rows_and_a_patient_one_unless_shared(name, data_seed, seed):
    partition, records = PARTITIONS[name], random_records(data_seed, patients=60)
    sites = np.resize(["north", "south"], len(records.names))
    records = divided(replace(records, sites=sites), seed)
    clients = partition.assign(records, seed)
    assert clients.shape == records.names.shape
    assert clients.dtype.kind == "U"
    assert (np.char.str_len(clients) > 0).all()
    np.testing.assert_array_equal(clients, partition.assign(records, seed))
    order = np.random.default_rng(data_seed).permutation(len(records.names))
    np.testing.assert_array_equal(clients[order], partition.assign(records.take(order), seed))
    assert (values_per(records.patients, clients).max() > 1) == partition.shares_patients
    if not partition.shares_patients:
        assert sorted(set(clients)) == ["client-01", "client-02", "client-03", "client-04"]


def test_another_seed_is_another_partition():
    records, photographs = random_records(0, patients=100), make_categories(0, 20, 20)
    for partition in (ByPatient(5), IID(5), IID(5, "image"), Dirichlet(5, alpha=1.0), WithinOrganisations(5)):
        assert (partition.assign(records, 1) != partition.assign(records, 2)).any()
    assert (ByCategory(4).assign(photographs, 1) != ByCategory(4).assign(photographs, 2)).any()


@settings(max_examples=10, deadline=None, derandomize=True)
@given(data_seed=seeds, seed=seeds, clients=st.integers(1, 8))
def test_by_patient_is_balanced_in_images_within_each_split(data_seed, seed, clients):
    records = divided(random_records(data_seed, patients=100, largest=9), seed)
    owners = ByPatient(clients).assign(records, seed)
    names = [f"client-{index + 1:02d}" for index in range(clients)]
    for split in ("train", "val", "test"):
        sizes = [int(((owners == name) & (records.splits == split)).sum()) for name in names]
        # The largest are dealt first, so the gap is at most the size of one patient.
        assert max(sizes) - min(sizes) <= 9


@settings(max_examples=10, deadline=None, derandomize=True)
@given(data_seed=seeds, seed=seeds, clients=st.integers(1, 8), unit=st.sampled_from(["patient", "image"]))
def test_iid_deals_evenly(data_seed, seed, clients, unit):
    records = divided(random_records(data_seed, patients=100), seed)
    owners = IID(clients, unit).assign(records, seed)
    units = records.patients if unit == "patient" else records.names
    for rows in (slice(None), *(records.splits == split for split in ("train", "val", "test"))):
        sizes = values_per(owners[rows], units[rows]).reindex(np.unique(owners), fill_value=0)
        assert sizes.max() - sizes.min() <= 1


@settings(max_examples=10, deadline=None, derandomize=True)
@given(data_seed=seeds, seed=seeds, unit=st.sampled_from(["patient", "image"]))
def test_iid_deals_by_sizes_in_every_split(data_seed, seed, unit):
    records = divided(random_records(data_seed, patients=200), seed)
    sizes = np.array([16, 8, 4, 2, 1])
    owners = IID(5, unit, sizes.tolist()).assign(records, seed)
    units = records.patients if unit == "patient" else records.names
    for rows in (records.splits == split for split in ("train", "val", "test")):
        found = values_per(owners[rows], units[rows]).reindex([f"client-0{k + 1}" for k in range(5)], fill_value=0)
        assert np.abs(found.to_numpy() - sizes / sizes.sum() * found.sum()).max() <= 1


def test_the_patients_with_most_images_are_dealt_first():
    patients = np.repeat([f"p{number}" for number in range(7)], [6, 1, 1, 1, 1, 1, 1])
    for seed in range(3):
        owners = ByPatient(2).assign(replace(random_records(0, patients=12, largest=1), patients=patients), seed)
        assert np.unique(owners, return_counts=True)[1].tolist() == [6, 6]


def test_dirichlet_goes_from_skewed_to_iid_with_alpha():
    """By the standard deviation over clients of the share of "Effusion"."""
    records = random_records(3, patients=3000, largest=1)
    spread = {}
    for alpha in (0.2, 1e5):
        divisions = [Dirichlet(4, alpha).assign(records, seed) for seed in range(5)]
        shares = [[records.labels[owners == name, 0].mean() for name in np.unique(owners)] for owners in divisions]
        spread[alpha] = np.std(shares, axis=1).mean()
    assert spread[0.2] > 0.15
    assert spread[1e5] < 0.01


def test_dirichlet_counts_a_patient_under_its_rarest_class():
    # Class b is rarer than a, so the patients of both fall apart from those of a alone when skew is extreme.
    labels = np.zeros((90, 2), dtype=np.float32)
    labels[:60, 0] = 1
    labels[40:60, 1] = 1
    records = replace(
        random_records(0, patients=90, largest=1),
        labels=labels,
        classes=("a", "b"),
        patients=np.array([f"p{index}" for index in range(90)]),
    )
    owners = Dirichlet(3, alpha=1e-3, min_images=1).assign(records, 0)
    groups = [set(owners[:40]), set(owners[40:60]), set(owners[60:])]
    assert [len(group) for group in groups] == [1, 1, 1]
    assert len(set.union(*groups)) == 3


@pytest.mark.parametrize(("by", "groups"), [("class", 2), ("site", 3), ("site and class", 6)])
def test_dirichlet_has_proportions_for_each_class_site_or_both(by, groups):
    # When skew is extreme, all patients of a group go to one client: the groups can be told apart by their clients.
    positive, site = np.arange(300) % 2, np.array(["a", "b", "c"])[np.arange(300) // 100]
    records = replace(
        random_records(0, patients=300, largest=1),
        labels=positive[:, None].astype(np.float32),
        classes=("a",),
        patients=np.array([f"p{index:03d}" for index in range(300)]),
        sites=site,
    )
    together = set()
    for seed in range(12):
        owners = Dirichlet(2, alpha=1e-3, min_images=1, by=by).assign(records, seed)
        parts = [frozenset(owners[(site == name) & (positive == kind)]) for name in "abc" for kind in (0, 1)]
        assert all(len(part) == 1 for part in parts)
        together.add(tuple(part == parts[0] for part in parts))
    assert len(set(zip(*together, strict=True))) == groups


@settings(max_examples=10, deadline=None, derandomize=True)
@given(data_seed=seeds, seed=seeds)
def test_dirichlet_gives_each_client_its_minimum(data_seed, seed):
    records = divided(random_records(data_seed, patients=200), seed)
    owners = Dirichlet(4, alpha=0.3, min_images=25).assign(records, seed)
    assert np.unique(owners[records.splits == "train"], return_counts=True)[1].min() >= 25


# Organisations


@settings(max_examples=10, deadline=None, derandomize=True)
@given(data_seed=seeds, seed=seeds, sites=st.integers(1, 5), more=st.integers(0, 12))
def test_within_organisations_clients_are_of_one_organisation_in_proportion_to_its_images(data_seed, seed, sites, more):
    records = random_records(data_seed, patients=200, sites=sites)
    # A square makes organisations of very different sizes, as real ones are.
    rng = np.random.default_rng(data_seed)
    home = np.array([f"hospital {int(sites * draw**2)}" for draw in rng.random(200)])
    _, person = np.unique(records.patients, return_inverse=True)
    records = divided(replace(records, sites=home[person]), seed)
    organisations, images = np.unique(records.sites, return_counts=True)
    clients = len(organisations) + more
    owners = WithinOrganisations(clients).assign(records, seed)
    assert values_per(owners, records.sites).max() == 1
    assert values_per(records.patients, owners).max() == 1
    of_site = pd.Series(owners).groupby(records.sites).unique()
    for site, names in of_site.items():
        width = max(2, len(str(len(names))))
        assert sorted(names) == [f"{site}-{index + 1:0{width}d}" for index in range(len(names))]
        for split in ("train", "val", "test"):
            sizes = [int(((owners == name) & (records.splits == split)).sum()) for name in names]
            assert max(sizes) - min(sizes) <= 6
    shares = of_site.map(len).to_numpy()
    assert shares.sum() == clients
    # Those that are due more than their guaranteed client share what is left, to less than one client.
    large = shares > 1
    due = images[large] / images[large].sum() * (clients - (~large).sum())
    assert (due < shares[large] + 1).all()
    assert (shares[large] - 1 < due).all()


def test_sixteen_clients_of_the_five_organisations_of_the_paper():
    # FDAM, Table 2, in hundreds of images: CheXpert, ChestXray14, MIMIC-CXR, PadChest, ChestXray-AD.
    images = {"CheXpert": 2240, "ChestXray14": 1120, "MIMIC-CXR": 3770, "PadChest": 1100, "ChestXray-AD": 150}
    sites = np.repeat(list(images), list(images.values()))
    records = replace(random_records(0, patients=len(sites), largest=1), sites=sites)
    splits = split_by_patient(records, (0.665, 0.285, 0.05), 0)
    owners = WithinOrganisations(16).assign(replace(records, splits=splits), 0)
    clients = {"CheXpert": 4, "ChestXray14": 2, "MIMIC-CXR": 7, "PadChest": 2, "ChestXray-AD": 1}
    assert pd.Series(owners).groupby(sites).nunique().to_dict() == clients
    for site, count in images.items():
        assert abs((splits[sites == site] == "test").sum() - 0.05 * count) <= 1


# Categories


def make_categories(seed: int, positive: int, negative: int) -> Records:
    """Random images with one category each, every category with 3 at least."""
    rng = np.random.default_rng(seed)
    categories = rng.permutation([f"c{index}" for index in range(positive + negative)])
    index = rng.permutation(np.repeat(np.arange(len(categories)), rng.integers(3, 9, len(categories))))
    names = np.array([f"{row:06d}" for row in range(len(index))])
    return Records(
        store=NoPixels(len(names)),
        names=names,
        labels=(index < positive).astype(np.float32)[:, None],
        classes=("positive",),
        patients=names,
        sites=np.full(len(names), "photographs"),
        splits=rng.choice(["train", "val", "test"], len(names)),
        table=pd.DataFrame({"category": categories[index]}),
    )


@settings(max_examples=12, deadline=None, derandomize=True)
@given(data_seed=seeds, seed=seeds, clients=st.integers(1, 7), extra=st.tuples(st.integers(0, 9), st.integers(0, 9)))
def test_by_category_gives_disjoint_groups_of_positives_and_negatives(data_seed, seed, clients, extra):
    records = make_categories(data_seed, clients + extra[0], clients + extra[1])
    category = records.table["category"].to_numpy(str)
    owners = ByCategory(clients).assign(records, seed)
    assert sorted(set(owners)) == [f"client-{index + 1:02d}" for index in range(clients)]
    # All images of a category, of whatever split, are at one client.
    assert values_per(category, owners).max() == 1
    for label in (0, 1):
        rows = records.labels[:, 0] == label
        groups = values_per(owners[rows], category[rows]).reindex(np.unique(owners), fill_value=0)
        assert groups.min() >= 1
        assert groups.max() - groups.min() <= 1
    order = np.random.default_rng(data_seed).permutation(len(owners))
    np.testing.assert_array_equal(owners[order], ByCategory(clients).assign(records.take(order), seed))


def test_by_column_takes_the_values():
    records = random_records(0, patients=40)
    np.testing.assert_array_equal(ByColumn("View").assign(records, 0), records.table["View"].to_numpy(str))
    records.table["Machine"] = np.where(records.table["View"] == "PA", 2.0, 7.5)
    assert set(ByColumn("Machine").assign(records, 0)) == {"2", "7.5"}


def test_by_column_cuts_at_quantiles():
    records = random_records(0, patients=300)
    owners = ByColumn("Age", bins=4).assign(records, 0)
    ages = records.table["Age"].to_numpy()
    ranges = sorted((ages[owners == name].min(), ages[owners == name].max(), name) for name in np.unique(owners))
    assert [name for _, _, name in ranges] == [f"q{i + 1} {low} to {high}" for i, (low, high, _) in enumerate(ranges)]
    assert all(left[1] < right[0] for left, right in pairwise(ranges))
    sizes = np.unique(owners, return_counts=True)[1] / len(owners)
    assert np.abs(sizes - 0.25).max() < 0.03


PATIENTS, SITES = random_records(0, patients=50), random_records(0, patients=40, sites=3)
COLUMNS = replace(SITES, table=SITES.table.assign(Scale=1, Dose=[*[np.nan] * 3, *[1.0] * (len(SITES.names) - 3)]))
ONE_POSITIVE = make_categories(0, 3, 3)
ONE_POSITIVE.labels[0] = 1 - ONE_POSITIVE.labels[0]
UNKNOWN = make_categories(0, 3, 3)
UNKNOWN.labels[0] = np.nan


@pytest.mark.parametrize(
    ("partition", "records", "words"),
    [
        (IID(2, sizes=[1e9, 1]), PATIENTS, ("1 of 2", "50 patients")),
        (IID(80), PATIENTS, ("of 80", "50 patients")),
        (Dirichlet(4, alpha=0.5, min_images=500), PATIENTS, ("least 500",)),
        (WithinOrganisations(2), SITES, ("found 3", "'hospital 0'", "least 3")),
        (WithinOrganisations(90), SITES, ("hospital 0",)),
        (ByCategory(1), make_categories(0, 3, 0), ("found 3", "and 0", "Choose other positives")),
        (ByCategory(2), SITES, ("found 3", "'View', 'Age'")),
        (ByCategory(2), ONE_POSITIVE, ("both in", ONE_POSITIVE.table["category"][0])),
        (ByCategory(2), UNKNOWN, ("unknown labels",)),
        (ByColumn("Scanner"), SITES, ("'Scanner'", "'View', 'Age'")),
        (ByColumn("View", bins=2), SITES, ("'View'",)),
        (ByColumn("Scale", bins=3), COLUMNS, ("for 3", "found 1")),
        (ByColumn("Dose"), COLUMNS, ("'Dose'", "for 3", "'000000.png'")),
    ],
)
def test_records_that_cannot_be_divided_are_refused(partition, records, words):
    with refused(DataError, *words):
        partition.assign(records, 0)


# Training, validation and test


@settings(max_examples=10, deadline=None, derandomize=True)
@given(data_seed=seeds, seed=seeds, sites=st.integers(1, 4))
def test_patients_are_split_in_the_fractions_at_every_site(data_seed, seed, sites):
    records = random_records(data_seed, patients=200, sites=sites)
    splits = split_by_patient(records, FRACTIONS, seed)
    assert values_per(records.patients, splits).max() == 1
    np.testing.assert_array_equal(splits, split_by_patient(records, FRACTIONS, seed))
    order = np.random.default_rng(data_seed).permutation(len(splits))
    np.testing.assert_array_equal(splits[order], split_by_patient(records.take(order), FRACTIONS, seed))
    for site in np.unique(records.sites):
        here = splits[records.sites == site]
        for split, fraction in zip(("train", "val", "test"), FRACTIONS, strict=True):
            assert abs((here == split).sum() - fraction * len(here)) <= 6


def test_a_patient_of_two_hospitals_is_in_one_split_and_a_fraction_of_zero_is_empty():
    records = random_records(0, patients=60)
    records.sites[:] = np.where(np.arange(len(records.sites)) % 2, "A", "B")
    assert values_per(records.patients, split_by_patient(records, FRACTIONS, 0)).max() == 1
    assert set(split_by_patient(records, (0.8, 0.0, 0.2), 0)) == {"train", "test"}


def test_the_official_test_set_stays_and_train_val_is_divided():
    records = random_records(0, patients=400)
    official = np.where(np.char.endswith(records.patients, "3"), "test", "train_val")
    splits = split_by_patient(replace(records, splits=official), (0.7, 0.1, 0.2), 5)
    np.testing.assert_array_equal(splits == "test", official == "test")
    assert values_per(records.patients, splits).max() == 1
    divided = splits[official == "train_val"]
    assert (divided == "val").mean() == pytest.approx(1 / 8, abs=0.01)
    assert set(divided) == {"train", "val"}
    given_splits = np.where(official == "test", "test", "train")
    np.testing.assert_array_equal(split_by_patient(replace(records, splits=given_splits), FRACTIONS, 0), given_splits)
