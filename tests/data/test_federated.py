"""The federated data module, on a source as a user would write it."""

import pickle
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from hospital_source import Source, changed, make_records, ready
from jsonargparse import ArgumentParser
from PIL import Image
from refusals import refused
from torch.utils.data import TensorDataset
from torchvision.transforms import v2

from fedlit.core.errors import ConfigError, DataError
from fedlit.data import ClientData, HeldAtSites
from fedlit.data.clients import validation_counts
from fedlit.data.federated import FederatedDataModule
from fedlit.data.partition import IID, ByOrganisation, ByPatient


@pytest.fixture(scope="module")
def by_hospital(tmp_path_factory) -> Source:
    """Three hospitals, which no test changes."""
    return ready(Source(str(tmp_path_factory.mktemp("hospitals")), ByOrganisation()))


def test_classes_are_known_before_setup(tmp_path):
    data = Source(str(tmp_path), ByOrganisation())
    assert data.classes == ("Effusion", "Mass", "Edema")
    ready(data)
    assert data.reads == 1


def test_clients_partition_the_records_and_patients_are_in_one_split(by_hospital):
    assert list(by_hospital.clients) == ["North", "South", "West"]
    seen: dict[str, set] = {"train": set(), "val": set(), "test": set()}
    patient_of = dict(zip(by_hospital.assignment["image"], by_hospital.assignment["patient"], strict=True))
    names = []
    for client in by_hospital.clients.values():
        for split in seen:
            part = getattr(client, split)
            names += part.names.tolist()
            seen[split] |= {patient_of[name] for name in part.names.tolist()}
    assert sorted(names) == [f"{index:04d}.png" for index in range(240)]
    assert len(seen["train"] | seen["val"] | seen["test"]) == sum(map(len, seen.values())) == 60
    assert [len(seen[split]) for split in seen] == [42, 6, 12]


def test_a_client_of_several_hospitals_labels_the_union_and_each_image_by_its_own_scheme(tmp_path):
    def without_west(records):
        return replace(records, sites=np.where(records.sites == "West", "South", records.sites))

    data = ready(Source(str(tmp_path), IID(2), without_west))
    records = data.change(make_records(tmp_path))
    site_of = dict(zip(records.names.tolist(), records.sites.tolist(), strict=True))
    for client in data.clients.values():
        assert client.classes == ("Effusion", "Mass", "Edema")
        north = torch.tensor([site_of[name] == "North" for name in client.train.names.tolist()])
        assert 0 < north.sum() < len(north)
        assert client.train.labels[north, 2].isnan().all()
        assert client.train.labels[~north, 0].isnan().all()
        assert not client.train.labels[:, 1].isnan().any()


def test_only_training_images_are_augmented(by_hospital):
    client = by_hospital.clients["North"]
    assert not torch.equal(client.train.batch([0, 0])[0][0], client.train.batch([0, 0])[0][1])
    for part in (client.val, client.test):
        images, _ = part.batch([0, 0])
        assert torch.equal(images[0], images[1])


def test_augmentation_is_an_argument(tmp_path):
    plain = ready(Source(str(tmp_path), IID(2), augment=False)).clients["client-01"].train
    assert torch.equal(plain.batch([0])[0], plain.batch([0])[0])
    inverted = ready(Source(str(tmp_path), IID(2), augment=[v2.RandomInvert(p=1.0)], mean=0.0, std=1.0))
    plain = ready(Source(str(tmp_path), IID(2), augment=False, mean=0.0, std=1.0))
    ones = inverted.clients["client-01"].train.batch([0])[0] + plain.clients["client-01"].train.batch([0])[0]
    torch.testing.assert_close(ones, torch.ones_like(ones))


def test_an_empty_part_is_none(tmp_path):
    data = ready(Source(str(tmp_path), ByOrganisation(), split=(0.8, 0.0, 0.2)))
    assert all(client.val is None for client in data.clients.values())
    assert all(len(client.test) > 0 for client in data.clients.values())
    assert set(data.counts()["split"]) == {"train", "test"}


def test_the_data_module_pickles_without_pixels(by_hospital):
    again = pickle.loads(pickle.dumps(by_hospital))
    assert again.partition_hash == by_hospital.partition_hash
    torch.testing.assert_close(
        again.clients["South"].test.batch([1, 0])[0], by_hospital.clients["South"].test.batch([1, 0])[0]
    )
    assert make_records(by_hospital.cache_dir).store[[0]].numpy().tobytes() not in pickle.dumps(by_hospital)


# What is saved and counted


@pytest.mark.parametrize(("suffix", "read"), [(".parquet", pd.read_parquet), (".csv", pd.read_csv)])
def test_the_partition_is_saved(by_hospital, tmp_path, suffix, read):
    path = tmp_path / f"partition{suffix}"
    by_hospital.save_partition(path)
    saved = read(path)
    assert list(saved.columns) == ["image", "patient", "client", "split"]
    for client in by_hospital.clients.values():
        for split in ("train", "val", "test"):
            rows = saved[(saved["client"] == client.name) & (saved["split"] == split)]
            assert rows["image"].tolist() == getattr(client, split).names.tolist()
    with refused(DataError, "x.xlsx"):
        by_hospital.save_partition(tmp_path / "x.xlsx")


def test_the_hash_is_of_names_clients_and_splits(tmp_path):
    def hash_of(partition=None, change=None, **kwargs) -> str:
        return ready(Source(str(tmp_path), partition or ByPatient(3), change, **kwargs)).partition_hash

    first = hash_of()
    assert len(bytes.fromhex(first)) == 6
    assert hash_of() == first
    assert hash_of(change=lambda records: records.take(np.arange(240)[::-1])) == first
    assert hash_of(batch_size=7, mean=0.3) == first
    others = [hash_of(seed=1), hash_of(ByPatient(4)), hash_of(IID(3)), hash_of(split=(0.6, 0.2, 0.2))]
    assert len({first, *others}) == 5


def test_counts_are_of_what_a_client_sees(by_hospital):
    counts = by_hospital.counts()
    assert len(counts) == 3 * 3 * 3
    for client in by_hospital.clients.values():
        for split in ("train", "val", "test"):
            labels = getattr(client, split).labels
            rows = counts[(counts["client"] == client.name) & (counts["split"] == split)]
            assert rows["class"].tolist() == ["Effusion", "Mass", "Edema"]
            assert rows["positives"].tolist() == (labels == 1).sum(0).tolist()
            assert rows["negatives"].tolist() == (labels == 0).sum(0).tolist()
            assert set(rows["images"]) == {len(labels)}
            assert rows["labelled"].tolist() == [label in client.classes for label in rows["class"]]
    north = counts[(counts["client"] == "North") & (counts["class"] == "Edema")].set_index("split")
    assert north.loc["train", ["positives", "negatives"]].tolist() == [0, 0]
    assert north.loc["test", "positives"] > 0


class Tensors(FederatedDataModule):
    """A source without records, with arbitrary data sets."""

    classes = ("cat",)

    def setup(self, stage=None):
        for name, size in (("a", 4), ("b", 6)):
            self.clients[name] = ClientData(name, ("cat",), TensorDataset(torch.zeros(size, 2)))


def test_setup_may_be_overridden_without_records():
    data = ready(Tensors(IID(2)))
    assert list(data.clients) == ["a", "b"]
    counts = data.counts()
    columns = ["client", "split", "class", "images"]
    assert counts[columns].values.tolist() == [["a", "train", "cat", 4], ["b", "train", "cat", 6]]
    assert counts["positives"].isna().all()
    assert len(data.partition_hash) == 12
    assert data.test_sets == {}


def test_a_source_with_neither_method_says_so():
    class Nothing(FederatedDataModule):
        pass

    with pytest.raises(NotImplementedError, match=r"Nothing: expected .* records\(\) or setup\(\)"):
        Nothing(IID(2)).setup()


# Other sources


@pytest.mark.parametrize("kind", [pd.DataFrame, np.ndarray.tolist])
def test_labels_may_be_a_table_or_a_list(tmp_path, kind):
    data = Source(str(tmp_path), ByOrganisation(), lambda records: replace(records, labels=kind(records.labels)))
    np.testing.assert_array_equal(data._read().labels, make_records(tmp_path).labels)


def test_a_partition_may_share_patients(tmp_path):
    data = ready(Source(str(tmp_path), IID(2, "image")))
    assert data.assignment.groupby("patient")["client"].nunique().max() == 2


@pytest.mark.parametrize("in_chans", [1, 3])
def test_a_source_decodes_files_at_its_own_size_and_channels_into_its_cache(tmp_path, in_chans):
    Image.fromarray(np.full((20, 20), 200, np.uint8)).save(tmp_path / "one.png")
    data = Source(str(tmp_path / "cache"), ByOrganisation(), in_chans=in_chans)
    store = data.decode([tmp_path / "one.png"])
    assert store.shape == (1, in_chans, 8, 8)
    assert store.path.parent == tmp_path / "cache"


def test_classes_without_positives_are_warned_of(tmp_path):
    with pytest.warns(UserWarning, match="without any positive image: 'Edema'; their AUROC"):
        ready(Source(str(tmp_path), ByOrganisation(), changed("labels", np.s_[:, 2], 0)))

    def nobody_labels_edema(records):
        return replace(records, site_classes={site: ("Effusion", "Mass") for site in ("North", "South", "West")})

    with pytest.warns(UserWarning, match=r"positive training image at any client: 'Edema \(\d+ elsewhere\)'"):
        ready(Source(str(tmp_path), ByOrganisation(), nobody_labels_edema))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ready(Source(str(tmp_path), ByOrganisation()))


# Configuration


def test_it_is_configured_by_jsonargparse_and_survives_a_round_trip(tmp_path):
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(FederatedDataModule, "data")
    partition = {"class_path": "fedlit.data.partition.Dirichlet", "init_args": {"clients": 3, "alpha": 0.5}}
    augment = [{"class_path": "torchvision.transforms.v2.RandomRotation", "init_args": {"degrees": 5}}]
    options = {"where": str(tmp_path), "partition": partition, "augment": augment, "split": [0.6, 0.2, 0.2]}
    config = {"data": {"class_path": f"{__name__}.Source", "init_args": options}}
    data = parser.instantiate(parser.parse_string(parser.dump(parser.parse_object(config)))).data
    assert (data.partition.clients, data.partition.alpha, data.partition.min_images) == (3, 0.5, 10)
    assert (data.split, data.augment[0].degrees) == ((0.6, 0.2, 0.2), [-5.0, 5.0])
    assert list(ready(data).clients) == ["client-01", "client-02", "client-03"]


def test_validation_counts_are_those_of_all_clients_and_count_a_patient_once(by_hospital):
    data = by_hospital
    counted = validation_counts(data.clients.values(), data.classes).set_index("class")
    images = data.counts().query("split == 'val'").groupby("class")[["positives", "negatives"]].sum()
    assert counted[["positives", "negatives"]].to_dict() == images.loc[counted.index].to_dict()
    labels = np.concatenate([np.asarray(client.val.labels) for client in data.clients.values()])
    patients = np.concatenate([client.val.patients for client in data.clients.values()])
    for column, name in enumerate(data.classes):
        people = [len(set(patients[labels[:, column] == value])) for value in (1, 0)]
        assert counted.loc[name, ["positive_patients", "negative_patients"]].tolist() == people


def test_validation_counts_are_empty_without_labels_and_without_patients_unknown():
    part = TensorDataset(torch.zeros(4, 2), torch.tensor([[1.0, 0], [1, 1], [0, 0], [0, 0]]))
    counted = validation_counts([ClientData("a", ("x", "y"), part, part)], ("x", "y"))
    assert counted["positives"].tolist() == [2, 1]
    assert counted["positive_patients"].isna().all()
    assert validation_counts([ClientData("a", ("x", "y"), part)], ("x", "y")).empty


def test_data_held_at_sites_have_classes_and_no_images():
    data = HeldAtSites(["Edema", "Mass"], batch_size=16)
    assert (data.classes, data.batch_size) == (("Edema", "Mass"), 16)
    data.prepare_data()
    with refused(ConfigError, "data"):
        data.setup("fit")
