import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from drawn_texts import lies_inside, texts
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex
from sklearn.metrics import roc_auc_score
from sklearn.metrics import roc_curve as sklearn_roc_curve

from fedlit.metrics.claim import Difference
from fedlit.metrics.intervals import Interval, bootstrap
from fedlit.reports.compare.alignment import Shared
from fedlit.reports.compare.curves import average, band_note, curves_figure, spread
from fedlit.reports.compare.forest import differences_figure, intervals_figure
from fedlit.reports.compare.methods import Method
from fedlit.reports.compare.roc import class_curves, comparison_roc_figure, patient_draws, roc_curve
from fedlit.reports.compare.statistics import AurocEstimate, MethodAuroc, MethodDifferences, Statistics
from fedlit.reports.compare.styles import save, styles, svg
from fedlit.reports.compare.support import Support

NAN = float("nan")
METHODS = ["FedAvg", "CODASCA", "FedProx"]
LOOKS = styles(METHODS)


def number(value, low=NAN, high=NAN, p=NAN):
    """An AUROC, or with p a difference."""
    interval = Interval(low, high, 0.95)
    return AurocEstimate(value, NAN, interval) if np.isnan(p) else Difference(value, interval, p, p, p, p)


def numbers(points, classes, macro=None, counts=None, baseline="FedAvg"):
    """Statistics by hand, each method's AUROC or difference by class: differences are of methods with a p."""
    n_pos, n_neg = np.array(counts or [(10, 90)] * len(classes)).T
    shared = Shared(tuple(classes), np.zeros((2, len(classes))), None, (), np.zeros(len(classes), dtype=bool), [])
    support = Support(n_pos, n_neg, None, None, n_pos > 0, n_pos > 0, [])
    scored, against, first = [], [], Method(baseline, (), {})
    for name, of_classes in points.items():
        method, mean = Method(name, (), {}), (macro or {}).get(name, number(0.8, 0.7, 0.9))
        if isinstance(of_classes[0], Difference):
            mean = (macro or {}).get(name, number(0.1, 0.0, 0.2, 0.5))
            against.append(MethodDifferences(method, first, tuple(of_classes), mean))
        else:
            scored.append(MethodAuroc(method, np.zeros((1, len(classes))), tuple(of_classes), mean))
    return Statistics(shared, support, tuple(scored), tuple(against), 0.95, 100)


def seeds(*ends):
    return [pd.Series(0.5 + 0.01 * np.arange(end) + 0.1 * s, index=np.arange(end)) for s, end in enumerate(ends)]


def test_methods_differ_in_more_than_colour_and_keep_their_look():
    many = [f"method {i}" for i in range(30)]
    looks = styles(many)
    assert styles(many[:4]) == {method: looks[method] for method in many[:4]}
    for number, one in enumerate(many):
        for other in many[number + 1 :]:
            a, b = looks[one], looks[other]
            assert (a.line, a.marker) != (b.line, b.marker)
            assert (a.colour != b.colour) + (a.line != b.line) + (a.marker != b.marker) >= 2
    assert len({look.colour for look in looks.values()}) == 10


def test_band_is_one_standard_deviation_from_three_seeds_and_the_range_of_two():
    values = np.array([[1.0, 2.0], [2.0, 4.0], [6.0, 9.0]])
    low, high = spread(values)
    np.testing.assert_allclose(high - low, 2 * values.std(0, ddof=1))
    np.testing.assert_allclose((high + low) / 2, values.mean(0))
    np.testing.assert_array_equal(spread(values[:2]), [[1, 2], [2, 4]])
    assert np.isnan(spread(values[:1])).all()
    assert "standard deviation" in band_note({"a": seeds(3, 3, 3)})
    assert "two seeds" in band_note({"a": seeds(3, 3), "b": seeds(3)})
    assert "One seed" in band_note({"a": seeds(3), "b": []})


def test_mean_ends_with_the_shortest_seed_and_the_rest_goes_on():
    band, tails = average([pd.Series([0, 2, 4.0], index=[0, 10, 20]), pd.Series([1, 2.0, NAN], index=[0, 15, 20])])
    assert band.x.tolist() == [0, 10, 15]
    np.testing.assert_allclose(band.mean, [0.5, (2 + 1 + 10 / 15) / 2, (3 + 2) / 2])
    assert [tail.index.tolist() for tail in tails] == [[20]]
    apart = average([pd.Series([1.0], index=[0]), pd.Series([1.0], index=[5])])
    assert apart[0] is None
    assert len(apart[1]) == 2
    assert average([pd.Series([NAN], index=[0])]) == (None, [])


def test_curves_are_drawn_named_and_banded():
    curves = {"FedAvg": seeds(9, 9, 9), "CODASCA": seeds(9, 5), "FedProx": []}
    figure = curves_figure(curves, "round", "validation AUROC", LOOKS)
    panel = figure.axes[0]
    means = {line.get_label(): line for line in panel.lines if line.get_label() in curves}
    assert set(means) == {"FedAvg", "CODASCA"}
    np.testing.assert_allclose(means["FedAvg"].get_ydata(), 0.6 + 0.01 * np.arange(9))
    assert means["CODASCA"].get_xdata().tolist() == [0, 1, 2, 3, 4]
    assert len(panel.lines) == 3  # two means and the seed that goes on
    assert len(panel.collections) == 2
    for method, line in means.items():
        assert (line.get_color(), line.get_marker()) == (LOOKS[method].colour, LOOKS[method].marker)
    assert {"round", "validation AUROC", "FedAvg", "CODASCA", "FedProx (none)"} <= set(texts(figure))
    assert lies_inside(figure)


def test_long_names_and_many_methods_stay_inside():
    methods = [f"method number {i} with a name that is far too long to print" for i in range(14)]
    looks = styles(methods)
    figure = curves_figure({method: seeds(4, 4, 4) for method in methods}, "round", "AUROC", looks)
    assert lies_inside(figure)
    assert figure.legends[0].get_window_extent().y0 > figure.axes[0].get_window_extent().y1
    assert figure.axes[0].get_window_extent().height > 1.8 * figure.dpi
    classes = [f"Consolidation or infiltrate of lobe {i}" for i in range(6)]
    points = {method: [number(0.05, 0.02, 0.08, 0.0004)] * 6 for method in methods[:5]}
    figure = differences_figure(numbers(points, classes, baseline=methods[0] * 2), looks)
    assert len(figure.axes) == 5
    assert lies_inside(figure)


def drawn_intervals(panel, colour):
    """Both ends of the intervals of a colour, from above."""
    bars = [
        c for c in panel.collections if isinstance(c, LineCollection) and to_hex(c.get_color()[0]) == colour.lower()
    ]
    return [[x for x, _ in bar.get_segments()[0]] for bar in bars if len(bar.get_segments()[0])]


def test_forest_has_a_point_and_an_interval_for_each_method_and_class():
    points = {m: [number(0.8 + 0.01 * i, 0.7, 0.9)] * 2 + [number(NAN)] for i, m in enumerate(METHODS)}
    points["FedProx"][1] = number(NAN)
    macro = {method: number(0.8) for method in METHODS}
    found = numbers(points, ["Edema", "Mass", "Hernia"], macro, [(1200, 8000), (7, 90), (0, 97)])
    figure = intervals_figure(found, LOOKS)
    assert lies_inside(figure)
    panel = figure.axes[0]
    for method, classes in (("FedAvg", 2), ("CODASCA", 2), ("FedProx", 1)):
        look = LOOKS[method]
        assert drawn_intervals(panel, look.colour) == [pytest.approx([0.7, 0.9])] * classes
        points = [line for line in panel.lines if line.get_color() == look.colour and line.get_marker() == look.marker]
        assert len([point for point in points if np.isfinite(point.get_xdata()).all()]) == classes + 1
    rows = [line.get_ydata()[0] for line in panel.lines if line.get_marker() == LOOKS["FedAvg"].marker]
    assert [round(row) for row in rows] == [0, 1, 2, 3]
    assert texts(figure).count("undefined") == 1
    assert {"1,200+ / 8,000−", "7+ / 90−", "mean of 2 of 3 classes", *METHODS} <= set(texts(figure))


def test_differences_say_what_is_significant():
    points = {
        "CODASCA": [number(0.05, 0.02, 0.08, 0.0004), number(-0.01, -0.04, 0.02, 0.3)],
        "FedProx": [number(0.02, 0.0, 0.04, 0.04), Difference(NAN, Interval(NAN, NAN, 0.95), NAN, NAN, NAN)],
    }
    figure = differences_figure(numbers(points, ["Edema", "Mass"]), LOOKS)
    shown = texts(figure)
    assert {"< 0.001", "***", "0.300", "0.040", "*", "undefined", "AUROC minus that of FedAvg", *points} <= set(shown)
    assert shown.count("undefined") == 1
    assert "ns" not in shown
    faces = {
        (line.get_color(), line.get_xdata()[0]): line.get_markerfacecolor()
        for axes in figure.axes
        for line in axes.lines
        if len(line.get_xdata()) == 1
    }
    colour = LOOKS["CODASCA"].colour
    assert faces[(colour, 0.05)] == colour
    assert faces[(colour, -0.01)] == "white"
    zero = [line for axes in figure.axes for line in axes.lines if list(line.get_xdata()) == [0, 0]]
    assert len(zero) == 2
    assert lies_inside(figure)


def test_roc_curve_agrees_with_scikit_learn():
    rng = np.random.default_rng(0)
    labels = (rng.random(400) < 0.3).astype(float)
    scores = np.round(rng.normal(size=400) + labels, 1)  # ties
    labels[:20] = NAN
    band = roc_curve([scores], [labels])
    false, true, _ = sklearn_roc_curve(labels[20:], scores[20:], drop_intermediate=False)
    for rate in (0.013, 0.2, 0.55):
        index = np.argmin(abs(band.x - rate))
        assert band.mean[index] == pytest.approx(np.interp(band.x[index], false, true), abs=1e-12)
    area = np.trapezoid if hasattr(np, "trapezoid") else np.trapz
    assert area(band.mean, band.x) == pytest.approx(roc_auc_score(labels[20:], scores[20:]), abs=0.005)
    assert band.mean[-1] == 1
    assert np.isnan(band.low).all()


def test_roc_band_of_seeds_and_of_draws():
    rng = np.random.default_rng(1)
    labels = (rng.random(300) < 0.3).astype(float)
    runs = [rng.normal(size=300) + labels for _ in range(3)]
    single = np.stack([roc_curve([run], [labels]).mean for run in runs])
    band = roc_curve(runs, [labels] * 3)
    np.testing.assert_allclose(band.mean, single.mean(0))
    np.testing.assert_allclose(band.low, np.clip(single.mean(0) - single.std(0, ddof=1), 0, 1))
    draws = patient_draws(np.arange(300) // 3)[:40]
    drawn_band = roc_curve(runs[:1], [labels], draws)
    repeated = np.stack([roc_curve([np.repeat(runs[0], n)], [np.repeat(labels, n)]).mean for n in draws])
    np.testing.assert_allclose(drawn_band.low, np.quantile(repeated, 0.025, axis=0))
    np.testing.assert_allclose(drawn_band.high, np.quantile(repeated, 0.975, axis=0))
    assert roc_curve(runs, [np.zeros(300)] * 3) is None


def test_patients_are_drawn_as_the_bootstrap_draws_them():
    rng = np.random.default_rng(2)
    patients, labels = np.array([f"p{i // 2}" for i in range(40)]), (np.arange(40) % 4 == 0).astype(float)
    scores = rng.normal(size=40)
    draws = patient_draws(patients)[:5]
    expected = bootstrap(scores[:, None], labels[:, None], patients, draws=5).draws[:, 0]
    weighted = [roc_auc_score(np.repeat(labels, n), np.repeat(scores, n)) for n in draws]
    np.testing.assert_allclose(weighted, expected)


def test_roc_panels_say_why_there_is_no_curve():
    rng = np.random.default_rng(3)
    labels = (rng.random(200) < 0.3).astype(float)
    bands = {m: [roc_curve([rng.normal(size=200) + labels], [labels]), None, None] for m in METHODS}
    auroc = {m: [number(0.75 + 0.01 * i), number(NAN), number(NAN)] for i, m in enumerate(METHODS)}
    found = numbers(auroc, ["Edema", "Mass", "Hernia"], counts=[(60, 140), (0, 200), (200, 0)])
    figure = comparison_roc_figure(bands, found, LOOKS)
    edema, mass, _ = figure.axes
    for method in METHODS:
        assert len([line for line in edema.lines if line.get_color() == LOOKS[method].colour]) == 2  # curve and key
    assert len(mass.lines) == 1  # chance
    shown = {"no positives", "no negatives", "0.750", "0.770", "60+ / 140−", "Edema", *METHODS}
    assert shown <= set(texts(figure))
    assert lies_inside(figure)


def test_roc_curves_of_a_comparison_have_a_band_each():
    rng = np.random.default_rng(4)
    labels = (rng.random((80, 2)) < 0.3).astype(float)
    scores = tuple(rng.normal(size=(80, 2)) + labels for _ in range(3))
    found = numbers({"FedAvg": [number(0.7)] * 2, "CODASCA": [number(0.8)] * 2}, ["Edema", "Mass"])
    two, one = (replace(s.method, runs=(None,) * n) for s, n in zip(found.scored, (2, 1), strict=True))
    scored = tuple(replace(s, method=method) for s, method in zip(found.scored, (two, one), strict=True))
    found = replace(found, shared=replace(found.shared, labels=labels, scores=scores), scored=scored)
    curves = class_curves(found)
    for c in range(2):
        expected = roc_curve([s[:, c] for s in scores[:2]], [labels[:, c]] * 2)
        np.testing.assert_array_equal(curves["FedAvg"][c].low, expected.low)
        expected = roc_curve([scores[2][:, c]], [labels[:, c]], patient_draws(range(80)))
        np.testing.assert_array_equal(curves["CODASCA"][c].low, expected.low)
        assert (curves["CODASCA"][c].low < curves["CODASCA"][c].high).any()


def test_svg_is_valid_text_and_equal_every_time(tmp_path):
    curves = {"a & <b>": seeds(9, 9, 9), "$x$ costs $1": seeds(9, 9, 9)}
    looks = styles(list(curves))
    first = svg(curves_figure(curves, "round", "AUROC", looks))
    root = ElementTree.fromstring(first)
    shown = ["".join(text.itertext()) for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"a & <b>", "$x$ costs $1", "round", "AUROC"} <= set(shown)
    figure = curves_figure(curves, "round", "AUROC", looks)
    assert save(figure, tmp_path / "a.svg").read_text(encoding="utf-8") == first
    pdf = save(figure, tmp_path / "a.pdf").read_bytes()
    assert pdf.startswith(b"%PDF")
    assert b"/FontFile2" in pdf
    assert b"Date" not in pdf
