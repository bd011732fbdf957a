"""PhantomCXR: its pictures, findings, patients and hospitals, and the scanners that a benchmark plants."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from refusals import refused, table
from runs import execute
from two_scanners import TwoScanners

from fedlit.core.errors import DataError
from fedlit.data.phantom import FINDINGS, PREVALENCE, Hospital, PhantomCXR, default_hospitals, render, sample_cohort
from fedlit.data.phantom.drawing import draw_images

CLEAN = Hospital("clean", images=24, noise=0.0, blur=0.0)
SIZE = 64


@pytest.fixture(scope="module")
def cohort():
    return sample_cohort(CLEAN, 0)


@pytest.fixture(scope="module")
def difference(cohort):
    """A function that returns pictures with a finding minus the same pictures without any, [N, H, W]."""
    well = render(CLEAN, with_findings(cohort), SIZE, 0)

    @cache
    def difference(finding, severity=0.8):
        sick = render(CLEAN, with_findings(cohort, finding, severity=severity), SIZE, 0)
        return (sick.astype(np.float32) - well)[:, 0]

    return difference


@pytest.fixture(scope="module")
def plain(cohort):
    """Pictures of the clean hospital, [N, H, W]."""
    return render(CLEAN, cohort, SIZE, 0)[:, 0].astype(np.float32)


def with_findings(cohort, *findings, severity=0.8):
    wanted = np.zeros_like(cohort.severity)
    wanted[:, [FINDINGS.index(finding) for finding in findings]] = severity
    return replace(cohort, severity=wanted)


def region(top, bottom, left, right):
    return slice(None), slice(int(top * SIZE), int(bottom * SIZE)), slice(int(left * SIZE), int(right * SIZE))


@pytest.mark.slow
def test_bytes_depend_neither_on_chunk_nor_on_process_nor_on_global_generators(tmp_path):
    hospital = Hospital("a", images=37, blur=0.5, exposure=0.3, collimation=0.05, marker="L")
    whole = render(hospital, sample_cohort(hospital, 3), 33, 3, chunk=37)
    torch.manual_seed(1)
    np.random.seed(1)
    pieces = render(hospital, sample_cohort(hospital, 3), 33, 3, chunk=5)
    np.testing.assert_array_equal(whole, pieces)
    script = (
        "import sys, torch\n"
        "from fedlit.data.phantom import *\n"
        "torch.set_num_threads(3)\n"
        f"h = {hospital!r}\n"
        "render(h, sample_cohort(h, 3), 33, 3, chunk=8).tofile(sys.argv[1])"
    )
    assert execute(script, tmp_path, tmp_path / "other").wait() == 0
    assert (tmp_path / "other").read_bytes() == whole.tobytes()


def test_seed_and_name_give_other_patients(cohort, plain):
    for hospital, seed in ((CLEAN, 1), (replace(CLEAN, name="other"), 0)):
        others = sample_cohort(hospital, seed)
        assert not np.array_equal(render(hospital, others, SIZE, seed)[:, 0], plain)
        assert not np.array_equal(others.labels, cohort.labels)


def test_pictures_have_shape_and_use_the_range(cohort):
    for size in (32, 50):
        pictures = render(CLEAN, with_findings(cohort), size, 0)
        assert pictures.shape == (24, 1, size, size)
        assert pictures.dtype == np.uint8
        # Lungs are dark, the heart and the spine are bright, in every healthy picture.
        lung = pictures[:, 0, int(0.4 * size) : int(0.6 * size), int(0.22 * size) : int(0.3 * size)].mean((1, 2))
        middle = pictures[:, 0, int(0.5 * size) : int(0.7 * size), int(0.48 * size) : int(0.54 * size)].mean((1, 2))
        assert (lung + 30 < middle).all()


def test_size_changes_resolution_only(cohort):
    small = render(CLEAN, cohort, 32, 0).astype(np.float32)
    large = render(CLEAN, cohort, 128, 0).astype(np.float32)
    pooled = large.reshape(24, 32, 4, 32, 4).mean((2, 4))
    assert np.abs(pooled - small[:, 0]).mean() < 5


@pytest.mark.parametrize("finding", FINDINGS)
def test_each_finding_shows_in_every_picture_and_grows(difference, finding):
    mild, severe = (np.abs(difference(finding, severity)).sum((1, 2)) for severity in (0.3, 0.8))
    assert (mild > 100).all()
    assert (severe > 1.2 * mild).mean() > 0.9


@pytest.mark.parametrize(
    ("finding", "where", "sign"),
    [
        ("Cardiomegaly", region(0.55, 0.75, 0.62, 0.78), 1),
        ("Edema", region(0.35, 0.55, 0.25, 0.4), 1),
        ("Emphysema", region(0.3, 0.6, 0.2, 0.35), -1),
        ("Support Devices", region(0.15, 0.7, 0.2, 0.8), 1),
        *((finding, region(0.1, 0.9, 0.15, 0.85), 1) for finding in ("Consolidation", "Mass", "Nodule")),
    ],
)
def test_finding_changes_the_picture_where_it_should(difference, finding, where, sign):
    change = sign * difference(finding)
    inside = change[where]
    assert (inside.mean((1, 2)) > 0.15).all()
    share = np.abs(inside).sum((1, 2)) / np.abs(change).sum((1, 2))
    assert np.median(share) > np.prod(inside.shape[1:]) / SIZE**2


def test_findings_have_the_shapes_of_their_textbook(cohort, difference):
    """Effusion fills lower zones, atelectasis pulls to one side, pneumothorax is a dark rim, nodules are small."""
    change = difference("Effusion")
    assert (change[:, SIZE // 2 :].sum((1, 2)) > 10 * np.abs(change[:, : SIZE // 2]).sum((1, 2))).all()
    change = difference("Atelectasis")
    on_left = cohort.anatomy.spot[:, FINDINGS.index("Atelectasis"), 0] < 0.5
    for (top, bottom), sides in (((0.5, 0.8), ((0.15, 0.35), (0.65, 0.85))), ((0.2, 0.4), ((0.35, 0.5), (0.5, 0.65)))):
        left, right = (change[region(top, bottom, *x)].mean((1, 2)) for x in sides)
        assert (np.where(on_left, left - right, right - left) > 3).all()
    dark = np.maximum(-difference("Pneumothorax"), 0)
    left, right = dark[:, :, : SIZE // 2].sum((1, 2)), dark[:, :, SIZE // 2 :].sum((1, 2))
    assert (np.minimum(left, right) == 0).all()
    assert (np.maximum(left, right) > 300).all()
    nodule, mass = (np.median((difference(finding) > 8).sum((1, 2))) for finding in ("Nodule", "Mass"))
    assert mass > 2.5 * nodule > 10


def test_prevalence_is_as_asked():
    hospital = Hospital("big", images=20_000, prevalence={"Mass": 0.02, "Edema": 0.0, "Nodule": 1.0, "Effusion": 0.5})
    found = sample_cohort(hospital, 0).labels.mean(0)
    for finding, share in zip(FINDINGS, found, strict=True):
        wanted = hospital.prevalence.get(finding, PREVALENCE[finding])
        # Images of one patient (at most three) are alike: at worst they count as one.
        assert abs(share - wanted) <= 4.5 * np.sqrt(3 * wanted * (1 - wanted) / 20_000)


def test_findings_co_occur():
    labels = sample_cohort(Hospital("big", images=10_000), 0).labels
    correlation = np.corrcoef(labels.T)
    of = FINDINGS.index
    assert correlation[of("Cardiomegaly"), of("Edema")] > 0.12
    assert correlation[of("Nodule"), of("Emphysema")] > 0.08
    assert abs(correlation[of("Cardiomegaly"), of("Emphysema")]) < 0.05


def test_patients_share_anatomy_and_tend_to_share_findings():
    cohort = sample_cohort(Hospital("big", images=6000), 0)
    counts = np.bincount(cohort.patient)
    assert (counts.min(), counts.max()) == (1, 3)
    assert (np.diff(cohort.patient) >= 0).all()
    same = np.flatnonzero(np.diff(cohort.patient) == 0)
    other = np.flatnonzero(np.diff(cohort.patient) == 1)
    np.testing.assert_array_equal(cohort.anatomy.spot[same], cohort.anatomy.spot[same + 1])
    near, far = (np.abs(cohort.anatomy.heart[rows] - cohort.anatomy.heart[rows + 1]).mean() for rows in (same, other))
    assert near < 0.5 * far
    agreement = [(cohort.labels[rows] == cohort.labels[rows + 1]).mean() for rows in (same, other)]
    assert agreement[0] > agreement[1] + 0.05


CORNERS = {"L": region(0.03, 0.16, 0.84, 1.0), "R": region(0.03, 0.16, 0.0, 0.16)}


def sharpness(pictures):
    return np.abs(np.diff(pictures, axis=2)).mean()


SHIFTS = [
    ({"contrast": 0.6}, lambda before, after: after.std() < 0.75 * before.std()),
    ({"exposure": 0.5}, lambda before, after: before.mean() - after.mean() > 10),
    ({"exposure": -0.5}, lambda before, after: after.mean() - before.mean() > 10),
    ({"noise": 0.1}, lambda before, after: sharpness(after) > 2 * sharpness(before)),
    ({"blur": 1.0}, lambda before, after: sharpness(after) < 0.85 * sharpness(before)),
    ({"collimation": 0.1}, lambda before, after: after[:, -2:].mean() < 0.3 * before[:, -2:].mean()),
    *(
        ({"marker": side}, lambda before, after, at=at: (after - before)[at].sum() == (after - before).sum() > 0)
        for side, at in CORNERS.items()
    ),
]


@pytest.mark.parametrize(("change", "shows"), SHIFTS, ids=lambda value: str(value) if isinstance(value, dict) else "")
def test_each_shift_shows_and_leaves_the_truth_alone(cohort, plain, change, shows):
    shifted = replace(CLEAN, **change)
    np.testing.assert_array_equal(sample_cohort(shifted, 0).severity, cohort.severity)
    assert shows(plain, render(shifted, cohort, SIZE, 0)[:, 0].astype(np.float32))


def test_default_hospitals_differ_in_look_and_prevalence_as_much_as_asked():
    apart, mild, alike = (default_hospitals(4, 4000, heterogeneity) for heterogeneity in (1.0, 0.3, 0.0))
    assert [hospital.images for hospital in alike] == [1000] * 4
    assert len({replace(hospital, name="x").__repr__() for hospital in alike}) == 1
    assert sum(hospital.images for hospital in apart) == 4000
    assert len({hospital.images for hospital in apart}) == 4

    def spread(hospitals, key):
        return np.ptp([getattr(hospital, key) for hospital in hospitals])

    for key in ("contrast", "exposure", "noise", "blur"):
        assert spread(apart, key) > spread(mild, key) > spread(alike, key) == 0
    means = [render(h, sample_cohort(replace(h, images=60), 0), 32, 0).mean() for h in apart]
    assert np.ptp(means) > 5
    assert np.ptp([h.prevalence["Edema"] for h in apart]) > 0.05


def test_one_prevalence_for_all_leaves_size_and_look():
    for one, other in zip(default_hospitals(3, 300, 2.0), default_hospitals(3, 300, 2.0, prevalence=0.02), strict=True):
        assert set(other.prevalence.values()) == {0.02}
        assert replace(one, prevalence=other.prevalence) == other
    data = PhantomCXR(hospitals=3, images=300, prevalence=0.5)
    assert all(abs(sample_cohort(h, 0).labels.mean() - 0.5) < 0.1 for h in data.hospitals)


def test_default_hospitals_are_the_same_in_every_family():
    few, many = default_hospitals(2, 200), default_hospitals(20, 2000)
    for one, other in zip(few, many, strict=False):
        assert replace(one, images=1) == replace(other, images=1)
    assert len({hospital.name for hospital in many}) == 20


@pytest.mark.parametrize("count", [1, 3, 16])
def test_split_scheme_shares_some_classes_and_covers_all(count):
    hospitals = default_hospitals(count, 64, label_scheme="split", shared_classes=3)
    schemes = [set(hospital.classes) for hospital in hospitals]
    assert set.union(*schemes) == set(FINDINGS)
    if count > 1:
        assert len(set.intersection(*schemes)) == 3
        assert all(3 < len(scheme) < len(FINDINGS) for scheme in schemes)


def of(kind, *args, **options):
    return lambda: kind(*args, **options)


@table([
    ("a prevalence of no finding", of(Hospital, "a", prevalence={"Flu": 0.1}), DataError, "'Flu'"),
    ("a prevalence above 1", of(Hospital, "a", prevalence={"Mass": 1.5}), DataError, "found 1.5"),
    ("a hospital's unknown class", of(Hospital, "a", classes=("Mass", "Flu")), DataError, "'Flu'"),
    ("a hospital without a class", of(Hospital, "a", classes=()), DataError, "no class"),
    ("a hospital without images", of(Hospital, "a", images=0), DataError, "images: expected at least 1"),
    ("an exposure of 3", of(Hospital, "a", exposure=3.0), DataError, "found 3.0"),
    ("an unknown marker", of(Hospital, "a", marker="X"), DataError, "'X'"),
    ("too few images", of(PhantomCXR, hospitals=3, images=5), DataError, "found 3", "and 5"),
    ("no hospital", of(PhantomCXR, hospitals=[]), DataError),
    ("a hospital twice", of(PhantomCXR, hospitals=[Hospital("a"), Hospital("a")]), DataError),
    ("too many shared classes", of(PhantomCXR, shared_classes=11), DataError, "found 11"),
    ("an unknown class", of(PhantomCXR, classes=["Effusionn"]), DataError, "'Effusionn'"),
    ("no class", of(PhantomCXR, classes=[]), DataError),
    ("a hospital that labels nothing", of(PhantomCXR, classes=["Nodule"], label_scheme="split", shared_classes=0),
        DataError, "hospital-01", "Nodule"),
])  # fmt: skip
def test_it_is_refused(provoke, kind, names):
    with refused(kind, *names):
        provoke()


def test_data_module_gives_each_hospital_its_classes_and_the_test_set_the_truth(tmp_path):
    data = PhantomCXR(hospitals=3, images=240, label_scheme="split", image_size=32, cache_dir=str(tmp_path))
    assert data.classes == FINDINGS
    data.setup()
    assert sorted(data.clients) == ["hospital-01", "hospital-02", "hospital-03"]
    for client in data.clients.values():
        hidden = [label not in client.classes for label in FINDINGS]
        assert client.train.labels[:, hidden].isnan().all()
        assert not client.train.labels[:, ~np.array(hidden)].isnan().any()
        assert not client.test.labels.isnan().any()
        image, labels = client.train[0]
        assert (image.shape, labels.shape) == ((1, 32, 32), (len(FINDINGS),))
    assert (data.assignment.groupby("patient")["split"].nunique() == 1).all()


def test_some_findings_are_the_columns_of_the_same_pictures(tmp_path):
    arguments = {"hospitals": 2, "images": 40, "image_size": 32, "label_scheme": "split", "cache_dir": str(tmp_path)}
    whole, some = PhantomCXR(**arguments), PhantomCXR(**arguments, classes=list(FINDINGS[:2:-1]))
    assert some.classes == FINDINGS[:2:-1]
    columns = [FINDINGS.index(name) for name in some.classes]
    np.testing.assert_array_equal(some.records().labels, whole.records().labels[:, columns])
    assert some.records().store.path == whole.records().store.path
    for name, labelled in some.records().site_classes.items():
        assert set(labelled) == set(whole.records().site_classes[name]) & set(some.classes)


def test_cache_is_keyed_by_what_changes_pixels(tmp_path):
    def store(**changes):
        arguments = {"hospitals": 2, "images": 40, "image_size": 16, "cache_dir": str(tmp_path)} | changes
        return PhantomCXR(**arguments).records().store

    first = store()
    np.testing.assert_array_equal(first[np.arange(40)], store()[np.arange(40)])
    assert store(label_scheme="split").path == first.path
    others = [store(seed=1), store(heterogeneity=0.5), store(image_size=24), store(hospitals=3), store(images=41)]
    assert len({str(other.path) for other in [first, *others]}) == 6


def test_a_second_scanner_shows_the_stated_fraction_of_a_finding(cohort, tmp_path):
    """Of the images of scanner B with the finding, and of nothing else."""
    arguments = {"hospitals": 2, "images": 120, "image_size": 32, "cache_dir": str(tmp_path)}
    plain = PhantomCXR(**arguments).records()
    planted = TwoScanners(finding="Mass", contrast=0.2, share=0.4, **arguments).records()
    np.testing.assert_array_equal(planted.labels, plain.labels)
    scanner = planted.groups["scanner"]
    assert 0.25 < (scanner == "B").mean() < 0.55
    assert all(len(set(scanner[planted.patients == patient])) == 1 for patient in planted.patients)
    changed = (plain.store[np.arange(120)] != planted.store[np.arange(120)]).flatten(1).any(1).numpy()
    mass = plain.labels[:, plain.classes.index("Mass")] == 1
    np.testing.assert_array_equal(changed, mass & (scanner == "B"))
    present = with_findings(cohort, "Mass")
    without = draw_images(present.anatomy, with_findings(cohort).severity, 32)
    full = draw_images(present.anatomy, present.severity, 32)
    for contrast in (0, 0.25, 1):
        data = TwoScanners("Mass", contrast, hospitals=[CLEAN], image_size=32)
        at_b, faded = data.scanners(CLEAN, present) == "B", data.draw(CLEAN, present, slice(None))
        assert 0 < at_b.sum() < len(at_b)
        np.testing.assert_array_equal(faded[~at_b], full[~at_b])
        np.testing.assert_allclose((faded - without)[at_b], contrast * (full - without)[at_b], atol=1e-6)
