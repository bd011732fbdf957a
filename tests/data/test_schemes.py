"""Label schemes: who labels what, what is hidden from whom, pooled data, and the vanilla labels."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hospital_source import Source, changed, make_records, ready
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from fedlit.core.errors import DataError
from fedlit.data import IID, ByOrganisation
from fedlit.data.federated import POOLED
from fedlit.data.schemes import DeclaredClasses, HideClasses, by_sharing

NAMES = ("Effusion", "Mass", "Edema")
OWN = {"North": ["Mass", "Effusion"], "South": ["Mass"]}


def everyone_labels(records):
    return replace(records, site_classes={})


def data_with(tmp_path, scheme=None, change=everyone_labels, **kwargs) -> Source:
    return Source(str(tmp_path), kwargs.pop("partition", ByOrganisation()), change, scheme=scheme, **kwargs)


def truth(tmp_path) -> dict[str, torch.Tensor]:
    """The labels of each image, by name."""
    records = make_records(str(tmp_path))
    return dict(zip(records.names.tolist(), torch.from_numpy(records.labels), strict=True))


def assert_same(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


# HideClasses

federations = st.tuples(st.integers(1, 8), st.integers(1, 14), st.integers(0, 2**31))


def clients_and_classes(clients: int, classes: int) -> tuple[list[str], list[str]]:
    return [f"site {i}" for i in range(clients)], [f"class {i}" for i in range(classes)]


@settings(max_examples=50, deadline=None, derandomize=True)
@given(federations, st.data())
def test_every_class_is_labelled_by_all_or_by_one(federation, drawn):
    clients, classes = clients_and_classes(*federation[:2])
    seed, shared = federation[2], drawn.draw(st.integers(0, len(classes)))
    if shared == 0 and len(classes) < len(clients):
        with refused(DataError, len(classes), len(clients)):
            HideClasses(shared).classes_of(clients, classes, seed)
        return
    found = HideClasses(shared).classes_of(clients, classes, seed)
    assert found == HideClasses(shared).classes_of(clients, classes, seed)
    assert list(found) == clients
    assert all(own for own in found.values())
    owners = {name: [client for client in clients if name in found[client]] for name in classes}
    everyone = [name for name in classes if len(owners[name]) == len(clients)]
    assert len(everyone) == (shared if len(clients) > 1 else len(classes))
    assert all(len(who) == 1 for name, who in owners.items() if name not in everyone)
    sizes = [len(own) for own in found.values()]
    assert max(sizes) - min(sizes) <= 1
    assert all(list(own) == [name for name in classes if name in own] for own in found.values())


@settings(max_examples=20, deadline=None, derandomize=True)
@given(federations)
def test_sharing_one_more_class_gives_it_to_everybody_and_leaves_the_others_as_they_were(federation):
    clients, classes = clients_and_classes(*federation[:2])
    first = 0 if len(classes) >= len(clients) else 1
    before = HideClasses(first).classes_of(clients, classes, federation[2])
    for shared in range(first + 1, len(classes) + 1):
        after = HideClasses(shared).classes_of(clients, classes, federation[2])
        new = {name for client in clients for name in set(after[client]) - set(before[client])}
        assert len(new) == (len(clients) > 1)
        assert all(set(before[client]) | new == set(after[client]) for client in clients)
        before = after


PARTLY = {2: (4, 10), 3: (6, 6), 4: (4, 5), 5: (2, 3), 6: (0, 4), 8: (0, 3), 10: (0, 2)}
"""Number of clients: numbers of shared and of unique classes, in the code of Figures 5a and 6."""


@pytest.mark.parametrize("number", PARTLY)
def test_classes_are_shared_by_all_by_some_or_by_one(number):
    clients, classes = clients_and_classes(number, 14)
    shared, unique = PARTLY[number]
    found, other = (HideClasses(shared, unique).classes_of(clients, classes, seed) for seed in (0, 1))
    assert found != other
    counts = [sum(name in own for own in found.values()) for name in classes]
    assert (counts.count(number), counts.count(1)) == (shared, unique)
    assert all(2 <= n <= number // 2 + 1 for n in counts if n not in (1, number))
    assert min(map(len, found.values())) >= 1
    assert found == HideClasses(shared, unique).classes_of(clients, classes, 0)
    kinds = by_sharing(found)
    assert [len(kinds[kind]) for kind in ("shared", "partly", "unique")] == [shared, 14 - shared - unique, unique]


def test_all_other_classes_are_unique_by_default_or_when_so_many_are_asked_for():
    clients, classes = clients_and_classes(4, 14)
    for unique in (14, 13, 12, 10, 6, 2, 0):  # Figures 5b and 7, in the code
        both, one = HideClasses(14 - unique, unique), HideClasses(14 - unique)
        assert both.classes_of(clients, classes, 3) == one.classes_of(clients, classes, 3)


def test_classes_are_too_few_for_the_clients(tmp_path):
    with refused(DataError, "3 classes", "for 4", "client-0"):
        ready(data_with(tmp_path, HideClasses(0), partition=IID(4)))
    assert len(by_sharing(ready(data_with(tmp_path, HideClasses(1), partition=IID(4))).schemes)) == 3


# What is hidden


@pytest.mark.parametrize(("missing", "in_train"), [("ignore", float("nan")), ("negative", 0.0)])
@pytest.mark.parametrize("scheme", [DeclaredClasses(OWN), HideClasses(1)], ids=["declared", "hidden"])
def test_what_a_client_does_not_label_is_hidden_in_train_and_val_and_true_in_test(tmp_path, scheme, missing, in_train):
    data = ready(data_with(tmp_path, scheme, missing_classes=missing))
    label_of = truth(tmp_path)
    told = scheme.classes_of(list(data.clients), NAMES, data.seed)
    assert any(len(own) < 3 for own in told.values())
    for name, client in data.clients.items():
        own = told.get(name, NAMES)
        assert client.classes == data.schemes[name] == tuple(label for label in NAMES if label in own)
        hidden = torch.tensor([label not in own for label in NAMES])
        for split, unknown in (("train", in_train), ("val", float("nan"))):
            part = getattr(client, split)
            expected = torch.stack([label_of[image] for image in part.names.tolist()])
            expected[:, hidden] = unknown
            assert_same(part.labels, expected)
        assert_same(client.test.labels, torch.stack([label_of[image] for image in client.test.names.tolist()]))


def test_unknown_labels_of_a_class_that_a_client_labels_stay_unknown(tmp_path):
    def gaps(records):
        return everyone_labels(changed("labels", np.s_[::4, 1], np.nan)(records))

    data = ready(data_with(tmp_path, DeclaredClasses(OWN), gaps, missing_classes="negative"))
    labels = data.clients["South"].train.labels
    gap = torch.tensor([int(name[:4]) % 4 == 0 for name in data.clients["South"].train.names.tolist()])
    assert 0 < gap.sum() < len(gap)
    assert torch.equal(labels[:, 1].isnan(), gap)
    assert (labels[:, [0, 2]] == 0).all()


def test_a_scheme_changes_no_partition_and_no_split(tmp_path):
    plain, hidden = ready(data_with(tmp_path)), ready(data_with(tmp_path, HideClasses(1)))
    assert plain.partition_hash == hidden.partition_hash
    assert hidden.assignment.equals(plain.assignment)
    assert plain.schemes == dict.fromkeys(("North", "South", "West"), NAMES)
    counts = hidden.counts()
    labelled = counts[counts["split"] == "train"].groupby("client")["labelled"].sum()
    assert labelled.to_dict() == {name: len(own) for name, own in hidden.schemes.items()}


def test_a_scheme_hides_what_the_source_labels_and_adds_nothing(tmp_path):
    data = ready(data_with(tmp_path, DeclaredClasses({"North": ["Mass"]}), None))
    assert data.schemes == {"North": ("Mass",), "South": ("Mass", "Edema"), "West": NAMES}
    with refused(DataError, "client 'North' declares 'Edema'"):
        ready(data_with(tmp_path, DeclaredClasses({"North": ["Mass", "Edema"]}), None))


# Pooled data


@pytest.mark.parametrize("missing", ["ignore", "negative"])
def test_pooled_data_is_one_client_with_the_images_and_labels_that_all_had(tmp_path, missing):
    apart = ready(data_with(tmp_path, DeclaredClasses(OWN), missing_classes=missing))
    pooled = ready(data_with(tmp_path, DeclaredClasses(OWN), missing_classes=missing, pooled=True))
    assert list(pooled.clients) == [POOLED]
    together = pooled.clients[POOLED]
    assert together.classes == NAMES
    assert pooled.schemes == apart.schemes  # who labels what is known still: classes are shared or not
    for split in ("train", "val", "test"):
        found = getattr(together, split)
        parts = [getattr(client, split) for client in apart.clients.values()]
        label_of = {n: row for part in parts for n, row in zip(part.names.tolist(), part.labels, strict=True)}
        assert sorted(found.names.tolist()) == sorted(label_of)
        assert_same(found.labels, torch.stack([label_of[name] for name in found.names.tolist()]))
        site_of = {n: site for part in parts for n, site in zip(part.names.tolist(), part.sites, strict=True)}
        assert found.sites.tolist() == [site_of[name] for name in found.names.tolist()]
    columns = ["image", "patient", "split"]
    assert pooled.assignment[columns].equals(apart.assignment[columns])
    assert set(pooled.assignment["client"]) == {POOLED}
    assert pooled.partition_hash != apart.partition_hash
    rows = pooled.counts().merge(apart.counts(), on=["split", "class"], suffixes=("", "_apart"))
    sums = rows.groupby(["split", "class"])[["positives_apart", "negatives_apart"]].sum()
    own = pooled.counts().set_index(["split", "class"]).sort_index()
    assert own["positives"].tolist() == sums["positives_apart"].tolist()
    assert own["negatives"].tolist() == sums["negatives_apart"].tolist()


# Refusals


def test_a_class_without_any_label_at_a_client_is_refused(tmp_path):
    def south_is_blank(records):
        return everyone_labels(changed("labels", (records.sites == "South", 2), np.nan)(records))

    with refused(DataError, "'South'", "'Edema'", "its 80"):
        ready(data_with(tmp_path, change=south_is_blank))
    data = ready(data_with(tmp_path, DeclaredClasses({"South": ["Mass", "Effusion"]}), south_is_blank))
    assert data.schemes["South"] == ("Effusion", "Mass")


# Kinds of classes


def test_classes_are_shared_partly_or_unique():
    schemes = {"a": ("x", "y", "z"), "b": ("x", "y"), "c": ("x", "w")}
    assert by_sharing(schemes) == {"shared": ("x",), "partly": ("y",), "unique": ("z", "w")}
    assert by_sharing({"a": NAMES, "b": NAMES}) == by_sharing({"a": NAMES}) == by_sharing({}) == {}
