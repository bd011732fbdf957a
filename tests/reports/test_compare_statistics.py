"""The numbers of a comparison against loops written out by hand, scikit-learn and scipy."""

from dataclasses import astuple, replace

import numpy as np
import pytest
from past_runs import CLASSES, compared, predictions
from refusals import refused
from scipy import stats
from sklearn.metrics import roc_auc_score

from fedlit.core.errors import ConfigError
from fedlit.metrics.claim import holm
from fedlit.metrics.intervals import bootstrap, logit_intervals
from fedlit.predictions.table import Predictions


def aurocs(found: Predictions) -> list[float]:
    return [roc_auc_score(found.labels[:, i], found.scores[:, i]) for i in range(len(found.classes))]


def ordered_pairs(found: Predictions, rows: np.ndarray) -> list[float]:
    """AUROC of some images by its definition."""
    scores, labels = found.scores.numpy()[rows], found.labels.numpy()[rows]
    pairs = [(s[y == 1][:, None], s[y == 0]) for s, y in zip(scores.T, labels.T, strict=True)]
    return [float(((ours > theirs) + 0.5 * (ours == theirs)).mean()) for ours, theirs in pairs]


def test_means_and_deviations_over_seeds_are_those_of_sklearns_aurocs() -> None:
    found = {("FedAvg", seed): predictions(1.0, seed) for seed in (0, 1, 2)}
    (scored,) = compared(found, draws=100).scored
    by_seed = np.array([aurocs(each) for each in found.values()])
    np.testing.assert_allclose([e.value for e in scored.classes], by_seed.mean(0))
    np.testing.assert_allclose([e.sd for e in scored.classes], by_seed.std(0, ddof=1))
    np.testing.assert_allclose(scored.macro.value, by_seed.mean())
    np.testing.assert_allclose(scored.macro.sd, by_seed.mean(1).std(ddof=1))


def test_intervals_of_several_seeds_resample_the_same_patients_for_all_runs() -> None:
    strengths = (("FedAvg", 1.0), ("FedProx", 1.4))
    found = {(name, seed): predictions(s, seed, 400, per_patient=2) for name, s in strengths for seed in (0, 1)}
    numbers = compared(found, draws=100)
    patients, labels = np.arange(400) // 2, found["FedAvg", 0].labels.numpy()
    drawn = np.random.default_rng(0).integers(200, size=(100, 200))
    ours, theirs = [], []
    for draw in drawn:
        rows = np.concatenate([np.flatnonzero(patients == patient) for patient in draw])
        sampled = {key: ordered_pairs(each, rows) for key, each in found.items()}
        theirs.append(np.mean([sampled["FedAvg", 0], sampled["FedAvg", 1]], axis=0))
        ours.append(np.mean([sampled["FedProx", 0], sampled["FedProx", 1]], axis=0))
    change = np.array(ours) - np.array(theirs)
    change = np.column_stack([change, change.mean(1)])
    (against,) = numbers.against
    entries = (*against.classes, against.macro)
    z = np.array([e.value for e in entries]) / change.std(0, ddof=1)
    np.testing.assert_allclose([e.p_images for e in entries], 2 * stats.norm.sf(np.abs(z)))
    counts = np.array([[len(np.unique(patients[column == value])) for column in labels.T] for value in (1, 0)])
    fewest, scored = counts.min(0), numbers.scored[1]
    variance = np.var(ours, axis=0, ddof=1) * fewest / (fewest - 1)
    images, usual = (labels == 1).sum(0), np.median(fewest)
    variance = np.append(variance, np.mean(ours, axis=1).var(ddof=1) * usual / (usual - 1))
    values = np.array([e.value for e in (*scored.classes, scored.macro)])
    expected = logit_intervals(values, variance, np.append(fewest, usual), np.append(images, images.sum()))
    found = [astuple(e.interval) for e in (*scored.classes, scored.macro)]
    np.testing.assert_allclose(found, [astuple(i) for i in expected])
    assert not np.isnan(found).any()


def test_single_seeds_are_tested_by_paired_draws_of_patients() -> None:
    one, other = predictions(1.0, 0), predictions(1.6, 1)
    (against,) = compared({("FedAvg", 0): one, ("FedProx", 0): other}, draws=100).against
    found = [bootstrap(each.scores, each.labels, each.patients, draws=100) for each in (other, one)]
    error = found[0].minus(found[1]).draws.std(0, ddof=1)
    difference = np.subtract(aurocs(other), aurocs(one))
    np.testing.assert_allclose([d.p_images for d in against.classes], 2 * stats.norm.sf(np.abs(difference) / error))
    assert np.isnan([d.p for d in against.classes] + [d.p_holm for d in against.classes]).all()
    ends = np.array([(d.interval.low, d.interval.high) for d in against.classes])
    np.testing.assert_allclose(ends.T, difference + np.array([[-1], [1]]) * stats.norm.ppf(0.975) * error)
    assert np.isnan(against.macro.p_seeds)
    assert against.macro.p_images < 0.05
    assert "beyond test-set noise (p < 0.001)" in against.verdict(CLASSES)
    assert "but one seed says nothing about seed noise" in against.verdict(CLASSES)


def test_images_of_one_patient_are_no_independent_evidence() -> None:
    once = [predictions(1.0, 0, 60), predictions(1.3, 1, 60)]
    rows = np.tile(np.arange(60), 4)  # every image four times over
    names = np.array([f"i{n}" for n in range(len(rows))])
    copies = [replace(each.take(rows), images=names) for each in once]
    alone = compared(dict(zip([("FedAvg", 0), ("FedProx", 0)], once, strict=True))).against[0]
    repeated = compared(dict(zip([("FedAvg", 0), ("FedProx", 0)], copies, strict=True))).against[0]
    np.testing.assert_allclose(
        [d.interval.high - d.interval.low for d in repeated.classes],
        [d.interval.high - d.interval.low for d in alone.classes],
        rtol=0.15,
    )


def test_unknown_patients_are_images_with_a_note() -> None:
    found = predictions(1.0, images=300)
    known = replace(found, patients=found.images)
    found.patients[:] = ""
    ours, theirs = (compared({("FedAvg", 0): each}, draws=100) for each in (found, known))
    assert [e.interval for e in ours.scored[0].classes] == [e.interval for e in theirs.scored[0].classes]
    assert any("Patients are unknown" in note for note in ours.shared.notes)


@pytest.mark.parametrize("seeds", [(0, 1, 2), (4, 5, 6), (4, 5)])
def test_seed_noise_is_tested_between_runs(seeds: tuple[int, ...]) -> None:
    ours = {("FedProx", seed): predictions(1.3, seed) for seed in seeds}
    theirs = {("FedAvg", seed): predictions(1.0, seed + 10) for seed in (0, 1, 2)}
    (against,) = compared(theirs | ours, draws=100).against
    one, other = (np.array([np.mean(aurocs(p)) for p in each.values()]) for each in (ours, theirs))
    np.testing.assert_allclose(against.macro.p_seeds, stats.ttest_ind(one, other).pvalue)
    parts = [one.var(ddof=1) / len(one), other.var(ddof=1) / 3]
    images = (abs(against.macro.value) / stats.norm.isf(against.macro.p_images / 2)) ** 2
    freedom = (sum(parts) + images) ** 2 / (parts[0] ** 2 / (len(one) - 1) + parts[1] ** 2 / 2)
    both = stats.t(freedom, scale=np.sqrt(sum(parts) + images))
    np.testing.assert_allclose(against.macro.p, max(2 * both.sf(abs(against.macro.value)), against.macro.p_seeds))
    low, high = against.macro.interval.low, against.macro.interval.high
    np.testing.assert_allclose((low, high), against.macro.value + np.array(both.interval(0.95)))


def test_equal_runs_do_not_differ() -> None:
    found = predictions(1.0)
    (against,) = compared({("FedAvg", 0): found, ("FedProx", 0): found}, draws=100).against
    assert [d.value for d in against.classes] == [0, 0, 0]
    assert [d.p_images for d in (*against.classes, against.macro)] == [1, 1, 1, 1]
    assert {d.stars for d in against.classes} == {"-"}
    assert "could be test-set noise" in against.verdict(CLASSES)


def test_a_clear_difference_is_said_to_be_none_of_noise() -> None:
    found = {(name, s): predictions(k, s, 400) for name, k in (("FedAvg", 0.5), ("FedProx", 2.0)) for s in (0, 1, 2)}
    (against,) = compared(found, draws=200).against
    text = against.verdict(CLASSES)
    assert "FedProx is" in text
    assert "above FedAvg" in text
    assert "beyond noise" in text
    assert "better in Effusion, Mass, Nodule" in text
    assert {d.stars for d in against.classes} == {"***"}
    reach = against.macro.interval.high - against.macro.value
    assert f"The interval of the mean reaches {reach:.3f} to either side." in text


def test_holm_counts_methods_and_classes() -> None:
    strengths = (("FedAvg", 1.0), ("FedProx", 1.2), ("Scaffold", 1.5))
    numbers = compared({(n, s): predictions(k, 10 * i + s) for i, (n, k) in enumerate(strengths) for s in (0, 1, 2)})
    found = [(d.p, d.p_holm) for each in numbers.against for d in each.classes]
    macro = [each.macro for each in numbers.against]
    halves = [1 / len(macro)] * len(macro) + [1 / len(found)] * len(found)
    together = holm([*(each.p for each in macro), *(p for p, _ in found)], halves)
    np.testing.assert_allclose([p for _, p in found], together[len(macro) :])
    np.testing.assert_allclose([each.p_holm for each in macro], together[: len(macro)])
    assert len(found) == 6


def test_what_either_noise_explains_is_not_claimed() -> None:
    """Seeds that differ by far, on many images; and seeds that hardly differ, on few."""
    for strengths, more, images in (((0.2, 1.6), 0.3, 2000), ((1.0, 1.0), 0.03, 60)):
        found = {("FedAvg", s): predictions(strengths[s % 2], s, images) for s in range(4)}
        found |= {("FedProx", s): predictions(strengths[s % 2] + more, s + 9, images) for s in range(4)}
        (against,) = compared(found, draws=200).against
        assert not any(d.claimed for d in (*against.classes, against.macro))
        assert "could be noise" in against.verdict(CLASSES)
        assert "No single class differs" in against.verdict(CLASSES)
        assert "*" not in against.macro.stars


def test_seeds_that_do_not_differ_are_no_several_seeds() -> None:
    found = {("FedAvg", s): predictions(0.2, 0, 400) for s in (0, 1)}
    found |= {("FedProx", s): predictions(2.0, 0, 400) for s in (0, 1)}
    (against,) = compared(found, draws=100).against
    assert against.macro.p_images < 0.001
    assert np.isnan([against.macro.p_seeds, against.macro.p, against.macro.interval.low]).all()
    assert against.macro.stars == "-"


@pytest.mark.slow
def test_the_bootstraps_p_is_below_5_percent_in_5_percent_of_comparisons_of_equals() -> None:
    below = []
    for trial in range(150):
        rng = np.random.default_rng(trial)
        base = predictions(1.0, trial, 100, ("Mass",), per_patient=2)
        truth = rng.random((100, 1)) < 0.4
        base.labels[:] = base.labels.new_tensor(truth)
        noise = np.repeat(rng.normal(size=(50, 1)), 2, axis=0)
        pair = [base.take(np.arange(100)) for _ in range(2)]
        for each in pair:
            each.scores[:] = each.scores.new_tensor(truth + noise + np.repeat(rng.normal(size=(50, 1)), 2, axis=0))
        (against,) = compared({("FedAvg", 0): pair[0], ("FedProx", 0): pair[1]}, draws=200).against
        below.append(against.classes[0].p_images < 0.05)
    assert 0.01 < np.mean(below) < 0.11


@pytest.mark.parametrize("images", [60, 300])
def test_few_patients_and_a_perfect_auroc_have_no_interval(images: int) -> None:
    found = predictions(1.0, images=images)
    found.scores[:, 0] = found.labels[:, 0]
    (scored,) = compared({("FedAvg", 0): found}, draws=100).scored
    assert [np.isnan(e.interval.low) for e in (*scored.classes, scored.macro)] == [True] + [images == 60] * 3


def redrawn(strength: float, seed: int, images: int = 120) -> Predictions:
    """A test set of a draw: the same names as in other draws for images of other patients and labels."""
    found, order = predictions(strength, seed, images), np.random.default_rng(seed).permutation(images)
    return replace(found.take(order), images=found.images, patients=found.patients)


def test_seeds_with_draws_of_their_own_are_paired_within_a_seed() -> None:
    """Names that stand for other images in each draw: these comparisons were refused, or made of all runs together."""
    found = {(name, seed): redrawn(s, seed) for name, s in (("FedAvg", 1.0), ("FedProx", 1.4)) for seed in (0, 1, 2)}
    numbers = compared(found, drawn=True, draws=100)
    (against,) = numbers.against
    ours, theirs = ([np.mean(aurocs(found[name, seed])) for seed in (0, 1, 2)] for name in ("FedProx", "FedAvg"))
    test = stats.ttest_rel(ours, theirs)
    np.testing.assert_allclose(against.macro.value, np.mean(ours) - np.mean(theirs))
    np.testing.assert_allclose(against.macro.p_seeds, test.pvalue)
    assert against.macro.p == max(against.macro.p_seeds, against.macro.p_images)
    low, high = test.confidence_interval()
    assert against.macro.interval.low <= low + 1e-9
    assert against.macro.interval.high >= high - 1e-9
    assert len(numbers.shared.labels) == 3 * 120
    assert numbers.support.n_pos.sum() == sum(int((found["FedAvg", seed].labels == 1).sum()) for seed in (0, 1, 2))
    assert numbers.spread == "seeds, each with its own draw of the data"
    assert numbers.images == "360 images of 3 draws of the data, shared by the runs of each draw"
    alone = [compared({k: v for k, v in found.items() if k[1] == seed}, draws=2000).against[0] for seed in (0, 1, 2)]
    errors = [(a.macro.interval.high - a.macro.interval.low) / 2 / 1.96 for a in alone]
    expected = 2 * stats.norm.sf(against.macro.value / (np.sqrt(np.square(errors).sum()) / 3))
    assert against.macro.p_images == pytest.approx(expected, rel=0.5)


def test_test_images_that_draws_have_in_common_make_the_variance_larger() -> None:
    whole = {(n, s): predictions(a, s, 300) for n, a in (("FedAvg", 1.0), ("FedProx", 1.4)) for s in (0, 1, 2)}
    rows = {seed: np.r_[0:50, 50 + 50 * seed : 100 + 50 * seed] for seed in (0, 1, 2)}
    (against,) = compared({k: v.take(rows[k[1]]) for k, v in whole.items()}, drawn=True, draws=100).against
    by_method = {n: np.array([np.mean(aurocs(whole[n, s].take(rows[s]))) for s in rows]) for n, _ in whole}
    change = by_method["FedProx"] - by_method["FedAvg"]
    t = change.mean() / np.sqrt(change.var(ddof=1) * (1 / 3 + 0.5 / 0.5))
    np.testing.assert_allclose(against.macro.p_seeds, 2 * stats.t.sf(abs(t), 2))


def test_an_official_test_set_is_one_for_all_draws_and_its_noise_is_added() -> None:
    found = {(n, s): predictions(a, s) for n, a in (("FedAvg", 1.0), ("FedProx", 1.4)) for s in (0, 1, 2)}
    numbers = compared(found, drawn=True, draws=100)
    (against,) = numbers.against
    assert (len(numbers.shared.labels), numbers.shared.rows) == (120, ())
    ours, theirs = (np.array([np.mean(aurocs(found[n, s])) for s in (0, 1, 2)]) for n in ("FedProx", "FedAvg"))
    images = (abs(against.macro.value) / stats.norm.isf(against.macro.p_images / 2)) ** 2
    part = (ours - theirs).var(ddof=1) / 3
    both = stats.t(2 * ((part + images) / part) ** 2, scale=np.sqrt(part + images))
    expected = max(2 * both.sf(abs(against.macro.value)), stats.ttest_rel(ours, theirs).pvalue)
    np.testing.assert_allclose(against.macro.p, expected)


def test_the_mean_over_classes_is_undefined_where_a_class_is() -> None:
    found = predictions(1.0)
    found.labels[:, 1] = 0
    numbers = compared({("FedAvg", 0): found, ("FedProx", 0): found}, draws=100)
    table = numbers.auroc_table().query("method == 'FedAvg'").set_index("class")
    assert numbers.support.macro_name == "mean of 2 of 3 classes"
    assert "macro" not in table.index
    assert np.isnan(table.loc["Mass", "auroc"])
    assert table.loc["Mass", "n_pos"] == 0
    np.testing.assert_allclose(
        table.loc["mean of 2 of 3 classes", "auroc"], table.loc[["Effusion", "Nodule"], "auroc"].mean()
    )
    assert numbers.differences_table().set_index("class").loc["Mass", "stars"] == "-"


def test_one_patient_cannot_be_resampled() -> None:
    with refused(ConfigError, "the runs share test images of a single patient, expected at"):
        compared({("FedAvg", 0): predictions(1.0, images=20, per_patient=20)})
