import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from fedlit.metrics.auroc import (
    ClassAUROC,
    auroc,
    class_auroc,
    client_mean_auroc,
    grouped_auroc,
    roc_counts,
    slug,
    slugs,
)

NAN = float("nan")


def random_set(n, c, seed, dtype=torch.float32, levels=None, missing=0.2):
    g = torch.Generator().manual_seed(seed)
    scores = torch.randn(n, c, generator=g, dtype=dtype)
    if levels:
        scores = (scores * levels).round() / levels
    labels = (torch.rand(n, c, generator=g) < 0.3).to(torch.float32)
    labels[torch.rand(n, c, generator=g) < missing] = NAN
    return scores, labels


def sklearn_auroc(scores, labels):
    out = []
    for s, y in zip(scores.double().numpy().T, labels.double().numpy().T, strict=True):
        known = ~np.isnan(y)
        both = set(y[known]) == {0.0, 1.0}
        out.append(roc_auc_score(y[known], s[known]) if both else NAN)
    return torch.tensor(out, dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("levels", [None, 1, 4])
def test_equals_sklearn_with_ties_and_missing_labels(dtype, levels):
    for n, c in ((2, 1), (300, 3)):
        scores, labels = random_set(n, c, seed=n + c, dtype=torch.float64, levels=levels)
        scores = scores.to(dtype)
        result = auroc(scores, labels)
        assert result.dtype == torch.float64
        assert result.shape == (c,)
        torch.testing.assert_close(result, sklearn_auroc(scores, labels), rtol=0, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("levels", [None, 1, 4])
def test_many_sets_at_once_give_what_each_gives_alone(levels):
    classes = ["a", "b", "c"]
    sets = [random_set(n, 3, seed=n, levels=levels) for n in (0, 1, 2, 5, 40, 300)]
    sets.append((torch.zeros(4, 3), torch.full((4, 3), NAN)))
    together = grouped_auroc(sets, classes)
    assert len(together) == len(sets)
    for found, (scores, labels) in zip(together, sets, strict=True):
        alone = class_auroc(scores, labels, classes)
        assert found.classes == alone.classes
        for name in ("auroc", "n_pos", "n_neg"):
            torch.testing.assert_close(getattr(found, name), getattr(alone, name), rtol=0, atol=0, equal_nan=True)
    assert grouped_auroc([], classes) == []


def test_float64_scores_are_not_rounded():
    scores = torch.tensor([[1.0], [1.0 + 1e-12]], dtype=torch.float64)
    labels = torch.tensor([[0.0], [1.0]])
    assert auroc(scores, labels).item() == 1.0
    assert auroc(scores.float(), labels).item() == 0.5
    assert class_auroc(scores, labels, ["a"]).auroc.item() == 1.0


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.uint8, torch.float16, torch.float64])
def test_labels_of_any_type(dtype):
    scores, labels = random_set(50, 3, seed=1, missing=0.0)
    assert torch.equal(auroc(scores, labels.to(dtype)), auroc(scores, labels))


def test_undefined_classes_are_nan_and_leave_the_mean():
    scores = torch.tensor([[0.0, 1, 2, 3], [1, 1, 2, 3], [2, 1, 2, 3]])
    labels = torch.tensor([[0.0, 1, 0, NAN], [1, 1, 0, NAN], [NAN, 1, 0, NAN]])
    result = class_auroc(scores, labels, ["one", "all positive", "all negative", "unlabelled"])
    assert result.auroc[0] == 1.0
    assert result.auroc[1:].isnan().all()
    assert result.n_pos.tolist() == [1, 3, 0, 0]
    assert result.n_neg.tolist() == [1, 0, 3, 0]
    assert result.mean == 1.0


def test_nothing_scored_is_undefined():
    assert auroc(torch.empty(0, 2), torch.empty(0, 2)).isnan().all()
    result = class_auroc(torch.empty(0, 2), torch.empty(0, 2), ["a", "b"])
    assert result.auroc.isnan().all()
    assert result.n_pos.tolist() == result.n_neg.tolist() == [0, 0]
    assert math.isnan(result.mean)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(-6, 6), st.sampled_from([0.0, 1.0, NAN])), min_size=1, max_size=40))
def test_is_the_share_of_ordered_pairs(rows):
    pairs = [(p > n) + 0.5 * (p == n) for p, y in rows if y == 1 for n, z in rows if z == 0]
    expected = sum(pairs) / len(pairs) if pairs else NAN
    scores, labels = torch.tensor(rows, dtype=torch.float64).T[..., None]
    assert auroc(scores, labels).item() == pytest.approx(expected, abs=1e-15, nan_ok=True)


def test_pair_counts_of_many_images_do_not_overflow():
    """Nor does it compare every pair, which would take hours."""
    n = 200_000
    scores = torch.arange(2 * n, dtype=torch.float64)[:, None]
    labels = (torch.arange(2 * n) >= n).float()[:, None]
    assert auroc(scores, labels).item() == 1.0


def test_roc_counts_join_ties():
    scores = torch.tensor([0.1, 0.9, 0.5, 0.5])
    false, true = roc_counts(scores, torch.tensor([False, True, True, False]))
    assert false.tolist() == [0, 0, 1, 2]
    assert true.tolist() == [0, 1, 2, 2]


def test_non_finite_scores_name_class_and_count():
    scores, labels = random_set(10, 3, seed=0)
    scores[2:5, 1] = NAN
    scores[0, 2] = float("inf")
    for classes, said in ((None, r"3 for class number 1, 1 for class number 2 \(of 10"), ("aEc", "3 for class 'E'")):
        with pytest.raises(ValueError, match=said):
            class_auroc(scores, labels, classes) if classes else auroc(scores, labels)


@pytest.mark.parametrize("bad", [-1.0, 0.5, 2.0, float("inf")])
def test_unknown_labels_are_refused(bad):
    scores, labels = random_set(10, 3, seed=0)
    labels[4, 2] = bad
    with pytest.raises(ValueError, match=rf"found {bad:g} for class 'Fracture'"):
        class_auroc(scores, labels, ["a", "b", "Fracture"])


@pytest.mark.parametrize(
    ("scores", "labels", "said"),
    [
        (torch.zeros(5, 3), torch.zeros(5, 3), r"\[N, 2\], found \[5, 3\] and \[5, 3\]"),
        (torch.zeros(5, 2), torch.zeros(5), r"found \[5, 2\] and \[5\]"),
        (torch.zeros(5, 2, dtype=torch.int64), torch.zeros(5, 2), "floating-point scores"),
    ],
)
def test_wrong_shapes_and_types_are_refused(scores, labels, said):
    with pytest.raises(ValueError, match=said):
        class_auroc(scores, labels, "ab")


def test_metric_names():
    assert slug("Nodule/Mass") == "Nodule_Mass"
    assert slug("Pleural Thickening (mild)") == "Pleural Thickening _mild_"
    assert [slug(name) for name in ("", ".", "..", "a.b-c")] == ["_", "_", "__", "a.b-c"]
    for names in (["Nodule/Mass", "Nodule_Mass"], ["Edema", "Edema"]):
        with pytest.raises(ValueError, match=f"{names[0]!r} and {names[1]!r}"):
            slugs(["Mass", *names])


def test_as_metrics_holds_every_class():
    result = ClassAUROC(
        ("Nodule/Mass", "Hernia"),
        torch.tensor([0.75, NAN], dtype=torch.float64),
        torch.tensor([3, 0]),
        torch.tensor([9, 12]),
    )
    metrics = result.as_metrics("test/nih")
    assert math.isnan(metrics.pop("test/nih/auroc/Hernia"))
    assert metrics == {
        "test/nih/auroc/Nodule_Mass": 0.75,
        "test/nih/n_pos/Nodule_Mass": 3.0,
        "test/nih/n_pos/Hernia": 0.0,
        "test/nih/n_neg/Nodule_Mass": 9.0,
        "test/nih/n_neg/Hernia": 12.0,
        "test/nih/auroc_macro": 0.75,
    }


def test_metric_names_are_accepted_by_mlflow():
    validation = pytest.importorskip("mlflow.utils.validation")
    check = getattr(validation, "_validate_metric_name", None)
    if check is None:
        pytest.skip("this MLflow has no _validate_metric_name")
    names = ["Nodule/Mass", "", "..", "a:b?c", "Épanchement", "% left"]
    result = class_auroc(torch.empty(0, 6), torch.empty(0, 6), names)
    for name in result.as_metrics("val"):
        check(name)


def test_mean_over_clients_is_not_the_pooled_auroc():
    def result(classes, values):
        some = torch.ones(len(classes), dtype=torch.int64)
        return ClassAUROC(tuple(classes), torch.tensor(values, dtype=torch.float64), some, some)

    north, south = result(["Edema", "Mass"], [0.5, NAN]), result(["Hernia", "Edema"], [NAN, 1.0])
    assert client_mean_auroc([north, south, result(["Mass"], [0.625])]) == (0.75 + 0.625) / 2
    assert math.isnan(client_mean_auroc([]))
