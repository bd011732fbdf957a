import numpy as np
import pandas as pd
import pytest
import torch
from drawn_texts import lies_inside, texts
from matplotlib import pyplot
from matplotlib.collections import PatchCollection, QuadMesh

from fedlit.metrics.auroc import auroc
from fedlit.tracking.figures import partition_figure, roc_figure

NAN = float("nan")


def table(clients, classes, seed=0):
    rng = np.random.default_rng(seed)
    names = [f"site {i}" for i in range(clients)]
    sizes = pd.Series(rng.integers(100, 5000, clients), index=names)
    positives = rng.binomial(sizes.to_numpy()[:, None], rng.random(classes) * 0.5, (clients, classes)).astype(float)
    positives[rng.random(positives.shape) < 0.2] = NAN
    return pd.DataFrame(positives, index=names, columns=[f"finding {i}" for i in range(classes)]), sizes


def scored(n, classes, seed=0):
    g = torch.Generator().manual_seed(seed)
    labels = (torch.rand(n, classes, generator=g) < 0.3).float()
    scores = torch.randn(n, classes, generator=g) + labels * torch.linspace(0, 2, classes)
    labels[torch.rand(n, classes, generator=g) < 0.1] = NAN
    return scores, labels, [f"finding {i}" for i in range(classes)]


def test_thousands_of_clients_are_one_picture_of_thin_rows():
    positives, sizes = table(2000, 3)
    figure = partition_figure(positives, sizes, title="Training images")
    shown = texts(figure)
    assert len(shown) < 60
    assert {"site 0", "site 1999", "Training images, 2,000 clients", "not labelled"} <= set(shown)
    assert f"images: {sizes.min():,} to {sizes.max():,}" in shown
    (image,) = (i for axes in figure.axes for i in axes.images)
    colours = image.get_array()
    assert colours.shape == (2000, 3, 4)
    assert (colours[positives.isna().to_numpy(), 0] == colours[positives.isna().to_numpy()][0, 0]).all()
    assert lies_inside(figure)


def test_partition_holds_its_numbers():
    positives = pd.DataFrame(
        {"Edema": [12, 0, NAN], "Nodule/Mass": [301.0, 45, 7]}, index=["north", "south", "St. Elsewhere"]
    )
    sizes = pd.Series({"south": 90, "St. Elsewhere": 12345, "north": 1002})
    figure = partition_figure(positives, sizes, title="by organisation")
    shown = texts(figure)
    for expected in ["12", "0", "301", "45", "7", "1,002", "90", "12,345", "Edema", "Nodule/Mass", *sizes.index]:
        assert shown.count(expected) == 1, expected
    assert {"by organisation", "not labelled", "labelled, no positive"} <= set(shown)
    grid, side = figure.axes[:2]
    (mesh,) = (c for c in grid.collections if isinstance(c, QuadMesh))
    shares = np.ma.filled(mesh.get_array().reshape(3, 2), NAN)
    np.testing.assert_allclose(shares, [[12 / 1002, 301 / 1002], [NAN, 0.5], [NAN, 7 / 12345]])
    unlabelled, blank = (c for c in grid.collections if isinstance(c, PatchCollection))
    assert [tuple(p.vertices[0]) for p in unlabelled.get_paths()] == [(0, 2)]
    assert unlabelled.get_hatch()
    assert [tuple(p.vertices[0]) for p in blank.get_paths()] == [(0, 1)]
    assert [bar.get_width() for bar in side.patches] == [1002, 90, 12345]
    assert [label.get_text() for label in grid.get_yticklabels()] == ["north", "south", "St. Elsewhere"]
    assert grid.get_ylim() == (3, 0)


@pytest.mark.parametrize(("clients", "classes"), [(1, 40), (40, 2)])
def test_partition_of_any_shape_fits_its_page(clients, classes):
    positives, sizes = table(clients, classes)
    figure = partition_figure(positives, sizes, title="a title that is rather long for one class only")
    assert lies_inside(figure)
    assert max(figure.get_size_inches()) < 14


def test_partition_without_any_label_or_image():
    positives, sizes = table(3, 4)
    figure = partition_figure(positives * NAN, sizes)
    assert "not labelled" in texts(figure)
    assert "labelled, no positive" not in texts(figure)
    assert not any("%" in text for text in texts(figure))
    assert lies_inside(figure)
    figure = partition_figure(positives.fillna(0) * 0, sizes * 0)
    assert texts(figure).count("0") == 3 * 4 + 3
    assert lies_inside(figure)


def test_dollar_signs_are_no_mathematics():
    positives, sizes = table(2, 1)
    positives.columns = [r"a$\frac$b"]
    figure = partition_figure(positives, sizes, title="$cost$")
    assert lies_inside(figure)  # mathematics that is wrong cannot be drawn
    assert r"a\$\frac\$b" in texts(figure)


def curves_of(figure):
    """Every drawn curve as (false positive rates, true positive rates), without the diagonals."""
    lines = [line.get_data() for axes in figure.axes for line in axes.get_lines()]
    return [line for line in lines if len(line[0]) and not np.array_equal(*line)]


@pytest.mark.parametrize("classes", [1, 9])
def test_roc_curves_enclose_the_auroc_they_state(classes):
    scores, labels, names = scored(300, classes)
    figure = roc_figure(scores, labels, names, title="validation")
    shown, exact = " ".join(texts(figure)), auroc(scores, labels)
    curves = curves_of(figure)
    assert len(curves) == classes
    for (false, true), value, column in zip(curves, exact.tolist(), range(classes), strict=True):
        assert np.sum(np.diff(false) * (true[1:] + true[:-1])) / 2 == pytest.approx(value, abs=1e-12)
        support = f"{int((labels[:, column] == 1).sum())}+ / {int((labels[:, column] == 0).sum())}−"
        assert f"{value:.3f}" in shown
        assert support in shown
    assert f"mean AUROC {exact.mean():.3f} over {classes} of {classes} classes" in shown
    assert lies_inside(figure)


@pytest.mark.parametrize("classes", [3, 16])
def test_undefined_classes_are_named(classes):
    scores, labels, names = scored(120, classes)
    labels[:, 1] = 0
    labels[:, 2] = NAN
    figure = roc_figure(scores, labels, names, title="test")
    shown = " ".join(texts(figure))
    assert shown.count("undefined") == 2
    assert "0+ / 120−" in shown
    assert "0+ / 0−" in shown
    assert f"over {classes - 2} of {classes} classes" in shown
    assert len(curves_of(figure)) == classes - 2
    assert all(any(name in text for text in texts(figure)) for name in names)
    assert lies_inside(figure)


@pytest.mark.parametrize("classes", [0, 2])
def test_roc_of_nothing_defined(classes):
    scores, labels, names = scored(20, classes)
    shown = " ".join(" ".join(texts(roc_figure(scores, labels * NAN, names, title="none"))).split())
    assert shown.count("undefined") == classes
    assert "no class has both positives and negatives" in shown


def test_long_curves_are_thinned_but_keep_their_area():
    scores, labels, names = scored(20_000, 1)
    ((false, true),) = curves_of(roc_figure(scores, labels, names))
    assert len(false) == 2000
    assert np.sum(np.diff(false) * (true[1:] + true[:-1])) / 2 == pytest.approx(auroc(scores, labels).item(), abs=1e-3)
    assert (false[0], true[0], false[-1], true[-1]) == (0, 0, 1, 1)


def test_pyplot_holds_no_figure(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("pyplot was used")

    for name in ("figure", "switch_backend", "gcf"):
        monkeypatch.setattr(pyplot, name, refuse)
    partition_figure(*table(2, 2))
    roc_figure(*scored(30, 2))
    assert pyplot.get_fignums() == []
