"""Intervals and paired tests against their definitions, published values, scikit-learn and simulations."""

import math
from statistics import NormalDist

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import roc_auc_score

from fedlit.metrics import intervals
from fedlit.metrics.auroc import auroc
from fedlit.metrics.claim import holm
from fedlit.metrics.intervals import Interval, bootstrap, logit_intervals

NAN = float("nan")


def random_set(n=60, c=4, seed=0, levels=None, missing=0.2):
    rng = np.random.default_rng(seed)
    labels = (rng.random((n, c)) < 0.35).astype(np.float64)
    scores = rng.standard_normal((n, c)) + labels
    if levels:
        scores = np.round(scores * levels) / levels
    labels[rng.random((n, c)) < missing] = NAN
    return scores, labels


def placement_values(score, label):
    """DeLong's V10 and V01 as they are defined: every positive against every negative."""
    above = score[label == 1][:, None] - score[label == 0][None]
    wins = (above > 0) + 0.5 * (above == 0)
    return wins.mean(1), wins.mean(0)


def independent(first, second, labels):
    """Return the standard error of each class's AUROC difference for independent images (DeLong et al. 1988)."""
    variances = []
    for a, b, label in zip(first.T, second.T, labels.T, strict=True):
        pairs = zip(placement_values(a, label), placement_values(b, label), strict=True)
        variances.append(sum(np.var(one - other, ddof=1) / len(one) for one, other in pairs))
    return np.sqrt(variances)


def area(scores, labels):
    return auroc(*map(torch.as_tensor, (scores, labels))).numpy()


def column(*values):
    return np.array(values, dtype=np.float64)[:, None]


def hanley_ct():
    """CT ratings 1 to 5 of 58 normal and 51 abnormal patients (Hanley and McNeil 1982, table I)."""
    counts = {0: (33, 6, 6, 11, 2), 1: (3, 2, 2, 11, 33)}
    images = [(rating + 1.0, label) for label, row in counts.items() for rating, n in enumerate(row) for _ in range(n)]
    scores, labels = np.array(images).T
    return scores[:, None], labels[:, None]


class TestLogitIntervals:
    @pytest.mark.parametrize("auroc", [0.5, 0.76, 0.97])
    @pytest.mark.parametrize("level", [0.9, 0.95])
    def test_it_is_students_on_the_logit_scale_and_moved_towards_the_middle(self, auroc, level):
        patients, images, variance = 60, 150, 0.0004
        (found,) = logit_intervals(*(np.array([v]) for v in (auroc, variance, patients, images)), level)
        reach = stats.t.ppf((1 + level) / 2, 59) * math.sqrt(variance) / (auroc * (1 - auroc))
        nearer = 1 - 0.06 * (2 * auroc - 1) * 50 / 60
        odds = [math.log(auroc / (1 - auroc)) + part * reach for part in (-1, nearer)]
        low, high = (1 / (1 + math.exp(-each)) for each in odds)
        assert (found.low, found.high) == pytest.approx((low - 0.22 * (2 * auroc - 1) / 150, high))
        (mirrored,) = logit_intervals(*(np.array([v]) for v in (1 - auroc, variance, patients, images)), level)
        assert (1 - mirrored.high, 1 - mirrored.low) == pytest.approx((found.low, found.high))

    def test_there_is_none_where_none_holds(self):
        """Few patients, hardly one of them ranked wrongly, no variance, no AUROC."""
        auroc, patients = np.array([0.7, 0.996, 0.004, 1.0, 0.7, NAN, 0.7]), np.array([49, 60, 60, 60, 60, 60, 50])
        variance = np.array([0.01, 0.0001, 0.0001, 0.0, 0.0, 0.01, 0.01])
        found = logit_intervals(auroc, variance, patients, patients)
        assert [math.isnan(each.low) and math.isnan(each.high) for each in found] == [True] * 6 + [False]


@pytest.mark.parametrize("level", [0.0, 1.0, 95])
def test_a_level_is_a_probability(level):
    with pytest.raises(ValueError, match="between 0 and 1"):
        Interval(0.0, 1.0, level)


class TestBootstrap:
    @pytest.mark.parametrize("levels", [None, 1])
    def test_is_the_plain_loop_over_the_same_draws(self, levels):
        scores, labels = random_set(60, c=3, seed=11, levels=levels)
        labels[:, 2] = 1 - labels[:, 2]  # positives outnumber negatives
        ids = np.array([f"patient {number}" for number in np.random.default_rng(12).integers(25, size=60)])
        names = np.unique(ids)
        found = bootstrap(scores, labels, ids, draws=10, seed=13)
        drawn = np.random.default_rng(13).integers(len(names), size=(10, len(names)))
        for b, patients in enumerate(drawn):
            rows = np.concatenate([np.flatnonzero(ids == names[patient]) for patient in patients])
            expected = auroc(torch.as_tensor(scores[rows]), torch.as_tensor(labels[rows])).numpy()
            np.testing.assert_array_equal(found.draws[b], expected)
            for c in range(3):
                known = rows[~np.isnan(labels[rows, c])]
                assert roc_auc_score(labels[known, c], scores[known, c]) == pytest.approx(expected[c], abs=1e-12)
        np.testing.assert_array_equal(found.estimate, area(scores, labels))

    def test_memory_bounds_and_the_order_of_images_do_not_change_it(self, monkeypatch):
        scores, labels = random_set(50, seed=14)
        ids = np.arange(50) // 2
        whole = bootstrap(scores, labels, ids, draws=37, seed=1)
        shuffled = np.random.default_rng(0).permutation(50)
        monkeypatch.setattr(intervals, "CHUNK", 50 * 5)
        pieces = bootstrap(scores[shuffled], labels[shuffled], ids[shuffled], draws=37, seed=1)
        np.testing.assert_array_equal(whole.draws, pieces.draws)
        assert (bootstrap(scores, labels, ids, draws=37, seed=2).draws != whole.draws).any()

    def test_agrees_with_formulas_where_patients_have_one_image(self):
        scores, labels = random_set(600, seed=15)
        other = scores + 0.7 * np.random.default_rng(16).standard_normal(scores.shape)
        one, two = (bootstrap(values, labels, np.arange(600)) for values in (scores, other))
        same = np.zeros_like(scores)
        assert one.draws.std(0) == pytest.approx(independent(scores, same, labels), rel=0.08)
        assert one.minus(two).draws.std(0) == pytest.approx(independent(scores, other, labels), rel=0.08)

    def test_a_published_example(self):
        # Stata's manual, roctab: area 0.8932, standard error 0.0307
        found = bootstrap(*hanley_ct(), np.arange(109), draws=4000)
        assert found.estimate == pytest.approx(0.8932, abs=5e-5)
        assert found.draws.std(0) == pytest.approx(0.0307, rel=0.05)

    @pytest.mark.filterwarnings("error")
    def test_tensors_and_read_only_arrays_are_as_good(self):
        scores, labels = random_set(40, seed=4)
        expected = bootstrap(scores, labels, np.arange(40), draws=5).draws
        for values in (scores, labels):
            values.flags.writeable = False
        tensor = torch.tensor(scores, requires_grad=True)
        for given in ((scores, labels), (tensor, torch.tensor(labels))):
            np.testing.assert_array_equal(bootstrap(*given, np.arange(40), draws=5).draws, expected)

    def test_differences_are_paired(self):
        scores, labels = random_set(80, seed=17)
        other = scores + 0.3 * np.random.default_rng(18).standard_normal(scores.shape)
        ids = np.arange(80) // 2
        one, two = (bootstrap(values, labels, ids, draws=200) for values in (scores, other))
        difference = one.minus(two)
        np.testing.assert_array_equal(difference.draws, one.draws - two.draws)
        np.testing.assert_array_equal(difference.estimate, one.estimate - two.estimate)
        assert (difference.draws.std(0) < one.draws.std(0)).all()
        assert (one.minus(one).draws == 0).all()
        for unlike in (
            bootstrap(other, labels, ids, draws=200, seed=1),
            bootstrap(other, labels, np.arange(80), draws=200),
            bootstrap(other, 1 - labels, ids, draws=200),
            bootstrap(other, labels, ids, draws=100),
        ):
            with pytest.raises(ValueError, match="same labels, patients, seed"):
                one.minus(unlike)

    def test_draws_without_positives_are_undefined(self):
        rng = np.random.default_rng(19)
        labels = np.zeros((40, 3))
        labels[:20, 0], labels[:2, 1] = 1, 1  # half, two images, none
        found = bootstrap(rng.standard_normal((40, 3)), labels, np.arange(40), draws=2000)
        undefined = np.isnan(found.draws).sum(0)
        assert undefined[[0, 2]].tolist() == [0, 2000]
        # (1 - 2/40)^40 of the draws have neither of two images
        assert undefined[1] == pytest.approx(2000 * 0.95**40, abs=5 * math.sqrt(2000 * 0.128 * 0.872))

    @pytest.mark.parametrize(
        ("patients", "draws", "said"),
        [
            (np.arange(5), 9, r"each of 6 images, found shape \[5\]"),
            (np.array(["a", None, "b", None, "c", "d"], dtype=object), 9, "found none for 2 of 6"),
            (["a"] * 6, 9, "at least two patients, found 1"),
            (np.arange(6), 0, "at least 1 draw, found 0"),
        ],
    )
    def test_bad_input_is_refused(self, patients, draws, said):
        with pytest.raises(ValueError, match=said):
            bootstrap(*random_set(6), patients, draws=draws)

    def test_scores_and_labels_are_checked(self):
        scores, labels = random_set()
        for other, said in ((labels[:, :2], "the same shape"), (labels + 1, "labels 0, 1 or NaN")):
            with pytest.raises(ValueError, match=said):
                bootstrap(scores, other, np.arange(60))
        with pytest.raises(ValueError, match="finite scores"):
            bootstrap(np.where(scores > 1, np.inf, scores), labels, np.arange(60))


class TestCoverage:
    """A column is a simulated test set; two normal populations 1.2 apart have AUROC Phi(1.2 / sqrt 2)."""

    SIMULATIONS = 1000

    def covered(self, low, high, truth):
        return ((low <= truth) & (truth <= high)).mean()

    def simulate(self, n_pos, n_neg, shift, seed):
        rng = np.random.default_rng(seed)
        labels = np.repeat([1.0, 0.0], [n_pos, n_neg])[:, None] * np.ones(self.SIMULATIONS)
        return rng.standard_normal(labels.shape) + shift * labels, labels

    def test_of_the_bootstrap(self):
        scores, labels = self.simulate(40, 60, 1.2, seed=20)
        truth = NormalDist().cdf(1.2 / math.sqrt(2))
        boot = bootstrap(scores, labels, np.arange(100), draws=300)
        assert 0.93 <= self.covered(*np.nanquantile(boot.draws, [0.025, 0.975], axis=0), truth) <= 0.97

    @pytest.mark.slow
    def test_of_paired_differences(self):
        scores, labels = self.simulate(40, 60, 1.2, seed=22)
        noise = np.random.default_rng(23).standard_normal(scores.shape)
        one, other = scores + noise, scores - noise  # independent noise of the same size: equal AUROC
        for first, second, truth in (
            (scores, scores + noise, NormalDist().cdf(1.2 / math.sqrt(2)) - NormalDist().cdf(1.2 / 2)),
            (one, other, 0.0),
        ):
            found = [bootstrap(values, labels, np.arange(100), draws=200) for values in (first, second)]
            change = found[0].minus(found[1])
            reach = stats.norm.ppf(0.975) * change.draws.std(0)
            assert 0.93 <= self.covered(change.estimate - reach, change.estimate + reach, truth) <= 0.97

    @pytest.mark.slow
    def test_only_patients_cover_where_they_have_many_images(self):
        rng = np.random.default_rng(24)
        patients = np.repeat(np.arange(100), 4)
        labels = np.repeat([1.0, 0.0], 200)[:, None] * np.ones(self.SIMULATIONS)
        # Images of a patient share half of their variance.
        shared, own = (rng.standard_normal((n, self.SIMULATIONS)) / math.sqrt(2) for n in (100, 400))
        scores, truth = shared[patients] + own + 1.2 * labels, NormalDist().cdf(1.2 / math.sqrt(2))
        found = bootstrap(scores, labels, patients, draws=300)
        assert 0.93 <= self.covered(*np.nanquantile(found.draws, [0.025, 0.975], axis=0), truth) <= 0.97
        reach = stats.norm.ppf(0.975) * independent(scores, np.zeros_like(scores), labels)
        assert self.covered(found.estimate - reach, found.estimate + reach, truth) < 0.85
        naive = bootstrap(scores[:, :20], labels[:, :20], np.arange(400), draws=300)
        assert (found.draws[:, :20].std(0) > 1.3 * naive.draws.std(0)).all()


class TestPairedOverClasses:
    def test_holm_by_hand(self):
        # In order 0.005, 0.01, 0.03, 0.04, times 4, 3, 2, 1: 0.02, 0.03, 0.06, 0.04, and the last not below its
        # predecessor. The NaN does not count as a test.
        assert holm([0.01, 0.04, NAN, 0.03, 0.005]) == pytest.approx([0.03, 0.06, NAN, 0.06, 0.02], nan_ok=True)
        assert holm([0.6, 0.9]).tolist() == [1.0, 1.0]
        # Shares of 1/4 and 3/4: 0.01 times 4, then 0.09 with the whole error.
        assert holm([0.09, NAN, 0.01], [3, 9, 1]) == pytest.approx([0.09, NAN, 0.04], nan_ok=True)
        assert holm([]).tolist() == []
        p = np.array([0.2, 0.1])
        holm(p)
        assert p.tolist() == [0.2, 0.1]
