"""The table of what data refuse: records, their division among clients, label schemes and maps, and arguments."""

from dataclasses import replace

import numpy as np
from hospital_source import Source, changed, make_records, ready
from random_records import FRACTIONS, random_records
from refusals import refused, table

from fedlit.core.errors import ConfigError, DataError
from fedlit.data import HeldAtSites, Organisations
from fedlit.data.federated import FederatedDataModule
from fedlit.data.labels import checked_classes, checked_policy, origins
from fedlit.data.partition import (
    IID,
    ByCategory,
    ByColumn,
    ByOrganisation,
    ByPatient,
    Dirichlet,
    Partition,
    WithinOrganisations,
)
from fedlit.data.pictures.images import LabelledImages
from fedlit.data.pictures.store import ImageStore, StoreView
from fedlit.data.records import check_records
from fedlit.data.sampler import Sampler
from fedlit.data.schemes import DeclaredClasses, HideClasses
from fedlit.data.splits import split_by_patient

LABELS = ("Edema", "Effusion", "Mass")


class Fixed(Partition):
    """Gives the clients as they are."""

    def __init__(self, clients, shares_patients=True):
        self.clients, self.shares_patients = clients, shares_patients

    def assign(self, records, seed):
        return self.clients(records)


def source(change=None, partition=None, **options):
    """Divide a source of 240 images of 3 hospitals, whose records are changed."""
    return lambda folder: ready(Source(str(folder), partition or ByOrganisation(), change, **options))


def fields(**values):
    return source(lambda records: replace(records, **values))


def clients(of_records, shares_patients=True):
    return source(partition=Fixed(of_records, shares_patients))


def scheme(**declared):
    return source(lambda records: replace(records, site_classes={}), scheme=DeclaredClasses(declared))


def arguments(**options):
    return lambda _: FederatedDataModule(IID(2), **options)


def pixels(folder, size=4, channels=1):
    return ImageStore.from_array(np.zeros((2, channels, size, 4), np.uint8), folder)


def images(**looks):
    rows, labels, names = np.arange(2), np.zeros((2, 1)), np.array(["a", "b"])
    return lambda folder: LabelledImages(pixels(folder, channels=3), rows, labels, names, **looks)


def names(**rules):
    return lambda _: origins(rules, LABELS, "data.names")


def policy(blank):
    return lambda _: checked_policy(blank, LABELS, "data.blank")


def classes(*chosen):
    return lambda _: checked_classes(list(chosen), LABELS, "key")


def nobody(field, name):
    """Check records whose fourth image has an empty or unknown patient or site."""

    def check(folder):
        found = make_records(folder)
        setattr(found, field, getattr(found, field).astype(object))
        getattr(found, field)[3] = name
        check_records(found)

    return check


def official(row, split):
    """Divide records that have official splits, of which one row has another."""

    def divide(_):
        records = random_records(0, patients=50)
        splits = np.where(np.char.endswith(records.patients, "3"), "test", "train_val").astype("<U9")
        splits[np.flatnonzero(records.patients == "p4")[0] if row is None else row] = split
        split_by_patient(replace(records, splits=splits), FRACTIONS, 0)

    return divide


def one_patient_in_two_splits(records):
    splits = np.where(np.arange(240) % 60 < 20, "test", "train_val")
    splits[5] = "train_val"
    return replace(records, splits=splits)


RECORDS = [
    ("an image twice", source(changed("names", 3, "0007.png")), DataError, "1 image", "'0007.png'"),
    ("a label of 2", source(changed("labels", (3, 1), 2)), DataError, "found 2", "'0003.png'", "'Mass'"),
    ("a patient in two splits", source(one_patient_in_two_splits), DataError, "'p05'"),
    ("too few patients", source(lambda r: replace(r, patients=r.patients[1:])), DataError, "'patients': 239"),
    ("a class twice", fields(classes=("A", "B", "B")), DataError, "['A', 'B', 'B']"),
    ("a class twice, of NumPy", fields(classes=np.array(["A", "B", "B"])), DataError, "['A', 'B', 'B']"),
    ("a scheme of another class", fields(site_classes={"North": ("Hernia",)}), DataError, "'North'", "'Hernia'"),
    ("a scheme of NumPy", fields(site_classes=dict.fromkeys(np.array(["North"]), np.array(["Hernia"]))), DataError,
        "'North'", "'Hernia'"),
    ("a scheme of another site", fields(site_classes={"Nord": ("Mass",)}), DataError, "'Nord'"),
    ("a group of one", fields(groups={np.str_("sex"): ["f"]}), DataError, "'sex'"),
    *((f"the patient {name!r}", nobody("patients", name), DataError, "patient", "1 of 240")
        for name in (np.nan, None, "", " ", "unknown", "nan", "None", "N/A", "unbekannt")),
    *((f"the site {name!r}", nobody("sites", name), DataError, "site", "1 of 240")
        for name in ("unknown", "nan", "None", "N/A", "unbekannt")),
    ("a patient in train and test", official(None, "test"), DataError, "'p4' in test (1 images)", "train_val ("),
    ("an unknown split", official(2, "validate"), DataError, "'000002.png'", "'validate'"),
]  # fmt: skip

CLIENTS = [
    *((f"no clients of {kind.__name__}", lambda _, kind=kind: kind(0), DataError,
        "clients: expected at least 1, found 0") for kind in (ByPatient, IID, ByCategory, WithinOrganisations)),
    ("no clients of Dirichlet", lambda _: Dirichlet(0, alpha=1.0), DataError, "clients: expected at least 1, found 0"),
    ("too few sizes", lambda _: IID(3, sizes=[1, 2]), DataError, "expected 3 numbers"),
    *((f"a size of {size}", lambda _, size=size: IID(3, sizes=[1, 2, size]), DataError, "IID.sizes[2]: expected")
        for size in (0, np.nan, "a")),
    ("an alpha of 0", lambda _: Dirichlet(3, alpha=0), DataError, "found 0"),
    ("no bins", lambda _: ByColumn("Age", bins=0), DataError, "found 0"),
    ("a client without training", clients(lambda r: np.where(r.splits == "test", "B", "A")), DataError, "'B'",
        "found 0"),
    ("a client of one image", clients(lambda r: np.where(r.names == r.names[r.splits == "train"][0], "B", "A")),
        DataError, "'B'", "1 (1 of 2"),
    ("two spellings", clients(lambda r: np.where(r.sites == "North", "St. Mary", "st. mary ")), ConfigError,
        "'St. Mary' and 'st. mary '"),
    ("two names of one file", clients(lambda r: np.where(r.sites == "North", "A/B", "A B")), ConfigError,
        "'A B' and 'A/B'"),
    ("clients of too few images", clients(lambda _: np.array(["A"] * 7)), DataError, "of 240", "found [7]"),
    ("a client without a name", clients(lambda r: np.where(r.sites == "North", "", "A")), DataError, "80 images"),
    ("a patient at two clients", clients(lambda r: np.where(np.arange(240) % 7 < 3, "A", "B"), shares_patients=False),
        DataError, "Fixed", "of 60", "at 'A' and 'B'"),
    ("a scheme of another client", scheme(Nord=["Mass"]), DataError, "'Nord'", "'North', 'South', 'West'"),
    ("another class in a scheme", scheme(North=["mass"]), DataError, "client 'North'", "'mass'"),
    ("a class twice in a scheme", scheme(North=["Mass", "Mass"]), DataError, "client 'North'", "['Mass', 'Mass']"),
    ("no class in a scheme", scheme(North=[]), DataError, "client 'North'"),
    ("neither shared nor unique", lambda _: HideClasses(1, 1).classes_of(["a", "b"], LABELS, 0), DataError,
        "HideClasses(shared=1, unique=1): 1 of 3"),
    ("more classes than there are", lambda _: HideClasses(2, 2).classes_of(["a", "b"], LABELS, 0), DataError,
        "HideClasses(shared=2, unique=2", "most 3"),
    ("a negative number of shared classes", lambda _: HideClasses(-1), DataError, "shared", "found -1"),
    ("a negative number of unique classes", lambda _: HideClasses(2, -1), DataError, "unique", "found -1"),
]  # fmt: skip

ARGUMENTS = [
    ("a split above 1", arguments(split=(0.7, 0.2, 0.2)), DataError, "[0.7, 0.2, 0.2]", "sum 1.1"),
    ("a split without training", arguments(split=(0.0, 0.5, 0.5)), DataError, "data.split"),
    ("a negative split", arguments(split=(1.2, 0.0, -0.2)), DataError, "data.split"),
    ("two channels", images(in_chans=2), DataError, "1 or 3", "found 2"),
    ("a mean of three channels", images(mean=[0.1, 0.2, 0.3]), DataError, "mean", "or 1", "found 3"),
    ("a std of 0", images(std=0.0), DataError, "std"),
    ("pixels that are no bytes", lambda folder: ImageStore.from_array(np.zeros((2, 1, 4, 4)), folder), DataError,
        "float64 [2, 1, 4, 4]"),
    ("stores of two sizes", lambda folder: StoreView([pixels(folder, size) for size in (4, 5)]), DataError,
        "1, 4, 4), (1, 5, 4"),
    ("a batch_size of 0", arguments(batch_size=0), DataError, "batch_size", "found 0"),
    ("an eval_batch_size of -1", arguments(eval_batch_size=-1), DataError, "eval_batch_size", "found -1"),
    ("in_chans of 0", arguments(in_chans=0), DataError, "in_chans", "found 0"),
    ("an image_size of 2", arguments(image_size=2), DataError, "found 2"),
    *((f"the sampler {options}", lambda _, given=options: Sampler(**given), DataError, "ampler",
        "balance")
        for options in ({}, {"positives": 0.2, "balance": "classes"}, {"balance": "sites"})),
    ("a sampler of positives alone", lambda _: Sampler(1.0), DataError, "found 1"),
    ("no organisation", lambda _: Organisations({}), DataError, "data.sources"),
    ("data at sites without classes", lambda _: HeldAtSites([]), DataError, "one or more different classes, found"),
    ("data at sites with a class twice", lambda _: HeldAtSites(["Edema", "Edema"]), DataError,
        "one or more different classes, found"),
    ("an unset partition", lambda folder: Source(str(folder), IID(2)).save_partition(folder / "x.csv"), DataError,
        "has no records yet"),
    ("no class of names", names(), DataError, "data.names"),
    ("a list as a rule", names(Water=["Edema", "Effusion"]), DataError, "data.names", "'Water'"),
    ("an unknown rule", names(Water={"some": ["Edema"]}), DataError, "'Water'", "{'some'"),
    ("a rule of nothing", names(Water={"any": []}), DataError, "'Water'"),
    ("two rules", names(Water={"any": ["Edema"], "all": ["Mass"]}), DataError, "'Water'"),
    ("another spelling of a label", names(Water="edema "), DataError, "'Water'", "'edema '"),
    ("an unknown label", names(Water={"all": ["Edema", "Xyz"]}), DataError, "'Xyz'"),
    ("a label of two classes", names(A="Edema", B={"any": ["Edema", "Mass"]}), DataError, "'Edema'", "'A'", "'B'"),
    ("an unknown policy", policy("maybe"), DataError, "data.blank", "'maybe'"),
    ("an unknown policy of a label", policy({"Mass": "one", "default": "zeros"}), DataError, "'one'", "'Mass'"),
    ("a policy of no label", policy({"mass": "ones", "default": "zeros"}), DataError, "'mass'"),
    ("policies without a default", policy({"Mass": "ones"}), DataError, "data.blank", "Edema, Effusion"),
    ("no class", classes(), DataError, "expected one or more different classes, found"),
    ("a class twice, chosen", classes("Mass", "Mass"), DataError, "expected one or more different classes, found"),
    ("an unknown class", classes("Masses"), DataError, "key", "'Masses'"),
]  # fmt: skip


@table([*RECORDS, *CLIENTS, *ARGUMENTS])
def test_it_is_refused(provoke, kind, names, tmp_path):
    with refused(kind, *names):
        provoke(tmp_path)
