"""NIH and CheXpert as one federation: names, splits, duplicates, test sets, and files of a run."""

import pickle
import warnings
from functools import partial

import numpy as np
import pandas as pd
import pytest
import small_chexpert
import small_nih
import torch
from hospital_source import Source, make_records, ready
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from two_organisations import both, chexpert, nih, small_phantom

from fedlit.core.errors import DataError
from fedlit.core.fabric import make_fabric
from fedlit.data import ByOrganisation, ByPatient, WithinOrganisations
from fedlit.data.clients import parts_of
from fedlit.data.labels import harmonised_names
from fedlit.data.organisations import Organisations, save_classes
from fedlit.data.pictures.features import with_fixed_features
from fedlit.data.pictures.store import ImageStore, StoreView
from fedlit.data.schemes import HideClasses, by_sharing
from fedlit.models import ImageClassifier

SHARED = set(harmonised_names("NIH")) & set(harmonised_names("CheXpert"))
UNION = tuple(sorted(set(harmonised_names("NIH")) | set(harmonised_names("CheXpert"))))
SPLITS = ("train", "val", "test")


@pytest.fixture(scope="module")
def roots(tmp_path_factory) -> dict:
    """Small downloads of both data sets, of NIH with its official lists."""
    folder = tmp_path_factory.mktemp("downloads")
    return {
        "NIH": small_nih.write_folder(folder / "nih", lists=True),
        "CheXpert": small_chexpert.write_folder(folder / "chexpert"),
        "cache": folder / "cache",
    }


@pytest.fixture(scope="module")
def plain(roots) -> Organisations:
    """Both data sets as they come, which no test changes."""
    return ready(both(roots))


@pytest.fixture(scope="module")
def mixed(roots) -> Organisations:
    """Two clients with images of both data sets, which no test changes."""
    return ready(both(roots, partition=ByPatient(2)))


def parts(data: Organisations) -> dict:
    """Every data set of every client, by client and split."""
    return {(name, split): part for name, client in data.clients.items() for split, part in parts_of(client)}


# Classes


def test_the_union_of_both_is_twenty_classes_of_which_seven_are_shared(plain):
    assert plain.classes == UNION
    assert len(UNION) == 20
    kinds = by_sharing(plain.schemes)
    assert set(kinds["shared"]) == SHARED
    assert (len(SHARED), len(kinds["partly"]), len(kinds["unique"])) == (7, 0, 13)
    for name, client in plain.clients.items():
        own = set(harmonised_names(name))
        assert set(client.classes) == own
        for split in SPLITS:
            absent = torch.tensor([label not in own for label in UNION])
            assert torch.equal(getattr(client, split).labels.isnan().all(0), absent)
            assert not getattr(client, split).labels[:, ~absent].isnan().any()


def test_labels_come_from_their_source_by_name(plain):
    heart, fluid = UNION.index("Cardiomegaly"), UNION.index("Pleural Effusion")
    found = {
        name: labels for part in parts(plain).values() for name, labels in zip(part.names, part.labels, strict=True)
    }
    assert found["NIH/00000001_001.png"][fluid] == 1  # called Effusion there
    assert found["NIH/00000002_002.png"][heart] == 1
    assert found["CheXpert/train/patient00001/study1/view1_frontal.jpg"][[heart, fluid]].tolist() == [1, 0]
    assert len(found) == 60 + 20


def test_classes_may_be_the_shared_ones_or_a_list(roots):
    shared = ready(both(roots, classes="shared"))
    assert shared.classes == tuple(sorted(SHARED))
    assert by_sharing(shared.schemes) == {}
    assert not any(part.labels.isnan().any() for part in parts(shared).values())
    some = ready(both(roots, classes=["Support Devices", "Edema", "Hernia"]))
    assert some.classes == ("Support Devices", "Edema", "Hernia")
    assert some.schemes == {"CheXpert": ("Support Devices", "Edema"), "NIH": ("Edema", "Hernia")}


def test_chosen_classes_are_checked(roots):
    for classes, names in (
        (["Masses"], ("data.classes", "'Masses'")),
        (["Mass", "Mass"], ("data.classes",)),
        (["Hernia", "Mass"], ("'CheXpert'", "'Hernia', 'Mass'")),
    ):
        with refused(DataError, *names):
            both(roots, classes=classes)
    sources = {"NIH": nih(roots, classes=["Hernia"]), "CheXpert": chexpert(roots, classes=["Fracture"])}
    with refused(DataError, "data.classes"):
        both(roots, sources, classes="shared")


def test_similar_names_are_different_classes_with_a_warning(roots):
    sources = {"NIH": nih(roots, names={"Pleural_Effusion": "Effusion"}), "CheXpert": chexpert(roots)}
    with pytest.warns(UserWarning, match="so 'Pleural Effusion' and 'Pleural_Effusion' are different classes"):
        data = both(roots, sources)
    assert len(data.classes) == 14
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        both(roots)


@pytest.mark.parametrize(("made", "options"), [("plain", {}), ("mixed", {"partition": ByPatient(2)})])
def test_the_order_of_sources_does_not_matter(roots, request, made, options):
    one = request.getfixturevalue(made)
    other = ready(both(roots, {"CheXpert": chexpert(roots), "NIH": nih(roots)}, **options))
    assert one.classes == other.classes
    assert one.schemes == other.schemes
    assert one.partition_hash == other.partition_hash
    for key, part in parts(one).items():  # row by row: a seed draws the same batches
        assert part.names.tolist() == parts(other)[key].names.tolist()
        assert torch.equal(part.labels.nan_to_num(-1), parts(other)[key].labels.nan_to_num(-1))
        assert torch.equal(part.store[part.indices], parts(other)[key].store[parts(other)[key].indices])


# Patients and splits


def test_images_and_patients_are_named_after_their_organisation_and_in_one_split(plain):
    table = plain.assignment
    for column in ("image", "patient"):
        assert (table[column].str.split("/").str[0] == table["client"]).all()
    assert table.groupby("patient")["split"].nunique().max() == 1
    assert table["image"].is_unique
    for client in ("NIH", "CheXpert"):
        assert set(table[table["client"] == client]["split"]) == set(SPLITS)
    assert plain.notes == ["CheXpert: 20 of 40 images of CheXpert are lateral and left out"]


def test_official_splits_where_they_are_asked_for(roots):
    data = ready(both(roots, {"NIH": nih(roots, official_split=True), "CheXpert": chexpert(roots)}))
    split = data.assignment.set_index("image")["split"]
    official = [f"NIH/{name}" for name in (roots["NIH"] / "test_list.txt").read_text().split()]
    here = split[split.index.str.startswith("NIH/")]
    assert sorted(here.index[here == "test"]) == sorted(official)
    told = split[~split.index.str.startswith("NIH/")]
    assert (told.index.str.split("/").str[1].str.replace("valid", "val") != told).any()


def test_a_third_organisation_changes_nothing_for_the_others(roots, plain):
    two = plain
    three = ready(both(roots, {"Phantom": small_phantom(), "NIH": nih(roots), "CheXpert": chexpert(roots)}))
    assert set(three.classes) > set(two.classes)
    columns = [three.classes.index(name) for name in two.classes]
    for (client, split), part in parts(two).items():
        same = parts(three)[client, split]
        assert part.names.tolist() == same.names.tolist()
        assert torch.equal(part.labels.nan_to_num(-1), same.labels[:, columns].nan_to_num(-1))
        assert torch.equal(part.store[part.indices], same.store[same.indices])
        assert three.schemes[client] == two.schemes[client]


def test_images_of_two_organisations_at_one_client_keep_their_own_labels(roots, plain, mixed):
    assert list(mixed.clients) == ["client-01", "client-02"]
    for client in mixed.clients.values():
        assert client.classes == UNION
        for part in (client.train, client.val, client.test):
            assert [name.split("/")[0] for name in part.names.tolist()] == part.sites.tolist()
            for site in ("NIH", "CheXpert"):
                rows = torch.from_numpy(part.sites == site)
                assert rows.any()
                unknown = [label not in harmonised_names(site) for label in UNION]
                assert torch.equal(part.labels[rows].isnan(), torch.tensor(unknown).expand(int(rows.sum()), -1))
    several = ready(both(roots, partition=WithinOrganisations(4)))
    assert {name.rsplit("-", 1)[0] for name in several.clients} == {"NIH", "CheXpert"}
    pooled = ready(both(roots, pooled=True))
    assert list(pooled.clients) == ["pooled"]
    assert by_sharing(pooled.schemes) == by_sharing(plain.schemes)


def test_shared_classes_can_be_hidden_too(roots):
    data = ready(both(roots, classes="shared", scheme=HideClasses(3)))
    kinds = by_sharing(data.schemes)
    assert [len(kinds[kind]) for kind in ("shared", "partly", "unique")] == [3, 0, 4]
    with refused(DataError, "declares"):
        ready(both(roots, scheme=HideClasses(3)))


# External test sets and duplicates


def test_external_test_sets_keep_all_their_images(roots):
    data = ready(both(roots, external={"Phantom": small_phantom()}))
    assert list(data.clients) == ["CheXpert", "NIH"]
    found = data.test_sets["Phantom"]
    assert len(found) == 40
    assert found.names[0].startswith("Phantom/")
    assert set(found.sites) == {"Phantom"}
    known = torch.tensor([name in small_phantom().classes for name in UNION])
    assert torch.equal(found.labels.isnan().all(0), ~known)
    assert found.batch([0, 1])[0].shape == (2, 1, 16, 16)
    assert torch.equal(found.batch([3])[0], found.batch([3])[0])  # not augmented
    data.setup()
    assert list(data.test_sets) == ["Phantom"]
    with refused(DataError, "'NIH'"):
        both(roots, external={"NIH": nih(roots)})


few_pictures = partial(small_phantom, images=10)


def test_pictures_of_two_organisations_are_refused_or_allowed_with_a_warning(roots):
    twice = {"A": few_pictures(), "B": few_pictures()}
    with refused(DataError, "10 images of 'A' are in 'B' too"):
        ready(both(roots, twice))
    said = r"10 images of 'A' are in 'B' too, the first are 'hospital-01-000000 and .*RSNA"
    with pytest.warns(UserWarning, match=said):
        data = ready(both(roots, twice, duplicates="allow"))
    assert len(data.assignment) == 20


def test_an_external_test_set_may_be_several_data_sets_and_shares_no_picture_with_an_organisation(roots):
    def outside() -> Organisations:
        return both(roots, {"one": few_pictures(), "two": few_pictures(seed=1)})

    sets = {"one": few_pictures(), "outside": outside()}  # nobody trains on either, so they may share pictures
    data = ready(both(roots, {"A": few_pictures(seed=2)}, external=sets, image_size=24))
    assert list(data.test_sets) == ["one", "outside"]
    assert data.test_sets["outside"].batch(range(20))[0].shape == (20, 1, 24, 24)
    for external in (outside(), few_pictures(seed=1)):
        with refused(DataError, "'A'", "'outside'", "NIH ChestX-ray14"):
            ready(both(roots, {"A": few_pictures(seed=1)}, external={"outside": external}))


# What a run saves


def saved_classes(data: Organisations, folder) -> pd.DataFrame:
    save_classes(data, folder / "classes.csv")
    return pd.read_csv(folder / "classes.csv")


def test_the_label_that_a_class_comes_from_is_saved(roots, plain, tmp_path):
    water = {"Water": {"any": ["Edema", "Effusion"]}, "Mass": "Mass"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = both(roots, {"NIH": nih(roots, names=water), "CheXpert": chexpert(roots, classes=["Fracture"])})
    assert saved_classes(ready(data), tmp_path).values.tolist() == [
        ["CheXpert", "Fracture", "Fracture"],
        ["NIH", "Mass", "Mass"],
        ["NIH", "Water", "Edema any Effusion"],
    ]
    table = saved_classes(plain, tmp_path).set_index(["client", "class"])["label"]
    assert len(table) == 14 + 13
    assert table["NIH", "Pleural Effusion"] == "Effusion"
    assert table["CheXpert", "Pleural Effusion"] == "Pleural Effusion"


def test_clients_that_are_no_organisation_say_what_each_organisation_calls_a_class(mixed, tmp_path):
    table = saved_classes(mixed, tmp_path).set_index(["client", "class"])["label"]
    assert len(table) == 2 * 20
    assert table["client-01", "Pleural Effusion"] == "CheXpert: Pleural Effusion; NIH: Effusion"
    assert table["client-02", "Pleural Thickening"] == "Pleural_Thickening"
    assert table["client-02", "Edema"] == "Edema"


def test_the_classes_of_one_source_are_saved_too(roots, tmp_path):
    data = nih(roots, partition=ByOrganisation(), image_size=16, cache_dir=str(roots["cache"]))
    table = saved_classes(ready(data), tmp_path).set_index("class")["label"]
    assert table["Pleural Thickening"] == "Pleural_Thickening"
    own = saved_classes(ready(Source(str(tmp_path), ByOrganisation())), tmp_path)
    assert own["label"].tolist() == own["class"].tolist()
    assert own["class"].tolist() == ["Effusion", "Mass", "Mass", "Edema", *make_records(str(tmp_path)).classes]


# Stores


@settings(max_examples=10, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_joined_stores_gather_as_one_store(tmp_path_factory, sizes, drawn):
    folder = tmp_path_factory.getbasetemp() / "stores"
    pictures = np.random.default_rng(sum(sizes)).integers(0, 256, (sum(sizes), 1, 3, 2), dtype=np.uint8)
    cuts = np.split(pictures, np.cumsum(sizes)[:-1])
    joined = StoreView([ImageStore.from_array(cut, folder) for cut in cuts])
    one = ImageStore.from_array(pictures, folder)
    assert (len(joined), joined.shape) == (len(one), one.shape)
    np.testing.assert_array_equal(joined.hashes(), one.hashes())
    rows = drawn.draw(st.lists(st.integers(0, len(one) - 1), max_size=12))
    again = pickle.loads(pickle.dumps(joined))
    for store in (joined, again):
        assert torch.equal(store[rows], one[np.array(rows, dtype=int)])
        assert torch.equal(store[torch.tensor(rows, dtype=torch.long)], one[np.array(rows, dtype=int)])
        assert all(torch.equal(store[row], one[row]) for row in rows)
    with pytest.raises(IndexError):
        joined[[len(one)]]
    some = StoreView([joined], rows)
    assert torch.equal(some[np.arange(len(rows))], joined[rows])
    np.testing.assert_array_equal(some.hashes(), one.hashes()[np.array(rows, dtype=int)])


def test_features_of_a_frozen_body_follow_the_joined_pictures(roots):
    data = ready(both(roots, external={"Phantom": small_phantom()}, augment=False))
    torch.manual_seed(0)
    sgd = lambda p: torch.optim.SGD(p, lr=0.1)  # noqa: E731
    module = ImageClassifier(data.classes, backbone="small_cnn", trainable="head", optimizer=sgd)
    clients, sets = with_fixed_features(module, data, make_fabric("cpu"))
    pairs = [(getattr(clients[name], split), part) for (name, split), part in parts(data).items()]
    for features, images in [*pairs, (sets["Phantom"], data.test_sets["Phantom"])]:
        assert features.names.tolist() == images.names.tolist()
        rows = torch.arange(min(3, len(images)))
        with torch.no_grad():
            expected = module.body.eval()(images.batch(rows)[0])
        torch.testing.assert_close(features.batch(rows)[0], expected, rtol=1e-4, atol=1e-5)
