"""``fedlit evaluate`` of runs with their own draws of the data, as ``--seed 0,1,2`` makes them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from evaluated import drawn, evaluated, run_of, where
from refusals import Cli, refused
from scipy import stats
from scipy.special import expit
from sklearn.metrics import roc_auc_score

from fedlit.core.errors import ConfigError
from fedlit.metrics.thresholds import choose_threshold
from fedlit.predictions.table import Predictions
from fedlit.reports.evaluation.evaluation import Evaluation

SEEDS = (0, 1, 2)
TESTED = [drawn(10 + seed, seed) for seed in SEEDS]
VALIDATION = [drawn(20 + seed, seed, 500) for seed in SEEDS]


def of_draws(folder: Path, tested: list[Predictions], **options: object) -> Evaluation:
    """The evaluation of runs with these test sets, each with its own seed of the data."""
    for seed, (found, validation) in enumerate(zip(tested, VALIDATION, strict=True)):
        run_of(folder / f"seed-{seed}", found, seed, validation, draw=seed)
    return evaluated(folder, **options)


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory: pytest.TempPathFactory) -> Evaluation:
    """The evaluation of three seeds on three draws of synthetic data, whose images have the same names."""
    return of_draws(tmp_path_factory.mktemp("draws"), TESTED, points=[{"at": "sensitivity 0.8"}], draws=400)


def auroc(found: Predictions, column: int, sex: str) -> float:
    rows = found.groups["sex"] == sex
    return roc_auc_score(found.labels[rows, column], found.scores[rows, column])


def test_values_are_means_over_draws_each_on_its_own_images(evaluation: Evaluation):
    expected = [auroc(found, 1, "F") for found in TESTED]
    (found,) = where(evaluation.estimates, group="F", name="Nodule", measure="auroc").to_dict("records")
    assert found["value"] == pytest.approx(np.mean(expected))
    assert found["sd_over_seeds"] == pytest.approx(np.std(expected, ddof=1))
    positives = sum(int(each.labels[each.groups["sex"] == "F", 1].sum()) for each in TESTED)
    assert found["n_pos"] == found["patients_pos"] == positives
    assert evaluation.sets[0].text == "3,600 images, 3,600 patients, in 3 draws of the data"
    assert any("on federation, each run is evaluated on the test images of its draw" in n for n in evaluation.notes)


def test_test_set_noise_is_that_of_the_patients_of_all_draws(evaluation: Evaluation, tmp_path: Path):
    errors = []
    for seed, found in enumerate(TESTED):
        alone = evaluated(run_of(tmp_path / str(seed), found, seed), draws=400)
        errors.append(reach(alone))
    assert reach(evaluation) == pytest.approx(np.linalg.norm(errors) / 3, rel=0.1)


def reach(evaluation: Evaluation) -> float:
    (row,) = where(evaluation.estimates, by="all", name="Nodule", measure="intercept").to_dict("records")
    return row["high"] - row["low"]


def test_gaps_of_draws_show_both_noises(evaluation: Evaluation):
    (gap,) = where(evaluation.gaps, by="sex", name="Nodule", measure="auroc").to_dict("records")
    gaps = [auroc(found, 1, gap["group"]) - auroc(found, 1, gap["reference"]) for found in TESTED]
    test = stats.ttest_1samp(gaps, 0)
    assert gap["gap"] == pytest.approx(np.mean(gaps))
    assert gap["p_seeds"] == pytest.approx(test.pvalue)
    assert gap["p"] == max(gap["p_seeds"], gap["p_images"])
    low, high = test.confidence_interval()
    assert (gap["low"], gap["high"]) == pytest.approx((low, high))


def test_a_threshold_is_that_of_the_draws_own_validation_images(evaluation: Evaluation):
    rates = []
    for tested, validation in zip(TESTED, VALIDATION, strict=True):
        positive = validation.labels[:, 0].numpy() == 1
        threshold = choose_threshold(expit(validation.scores[:, 0].double().numpy()), positive, "sensitivity", 0.8)
        scores = expit(tested.scores[:, 0].double().numpy())[tested.labels[:, 0].numpy() == 1]
        rates.append((scores >= threshold).mean())
    (row,) = where(evaluation.points, by="all", name="Effusion", measure="sensitivity").to_dict("records")
    assert row["value"] == pytest.approx(np.mean(rates))


def test_patients_in_several_draws_count_once(tmp_path: Path):
    """Of 900 images of a pool, each draw has 600, and two draws have 300 in common."""
    pool = drawn(7, 0, 900)
    rows = [np.arange(300 * seed, 300 * seed + 600) % 900 for seed in SEEDS]
    noise = [0.3 * np.random.default_rng(seed).normal(size=(600, 2)) for seed in SEEDS]
    tested = [pool.take(here) for here in rows]
    tested = [
        replace(each, scores=each.scores + torch.tensor(n).float()) for each, n in zip(tested, noise, strict=True)
    ]
    found = of_draws(tmp_path, tested)
    (row,) = where(found.estimates, by="all", name="Nodule", measure="auroc").to_dict("records")
    assert row["n_pos"] == row["patients_pos"] == int(pool.labels[:, 1].sum())
    assert any("two draws have 50% in common" in note for note in found.notes)
    (gap,) = where(found.gaps, by="sex", name="Nodule", measure="auroc").to_dict("records")
    gaps = np.array([auroc(each, 1, gap["group"]) - auroc(each, 1, gap["reference"]) for each in tested])
    t = gaps.mean() / np.sqrt(gaps.var(ddof=1) * (1 / 3 + 1))  # Nadeau and Bengio
    assert gap["p_seeds"] == pytest.approx(2 * stats.t.sf(abs(t), 2))


def test_an_official_test_set_is_evaluated_once_though_draws_give_it_to_other_clients(tmp_path: Path):
    tested = [drawn(7, seed) for seed in SEEDS]
    same = of_draws(tmp_path / "same", tested)
    assert (same.sets[0].draws, same.sets[0].overlap) == (1, 1)
    other = [replace(each, clients=np.roll(each.clients, seed)) for seed, each in enumerate(tested)]
    dealt = of_draws(tmp_path / "dealt", other)
    assert (dealt.sets[0].draws, dealt.sets[0].overlap) == (3, 1)
    ours, theirs = (where(each.estimates, by="all") for each in (dealt, same))
    np.testing.assert_allclose(ours.select_dtypes("number"), theirs.select_dtypes("number"))
    ours, theirs = (where(each.gaps, by="sex") for each in (dealt, same))
    np.testing.assert_allclose(ours["p"], theirs["p"])


def test_a_group_without_positives_in_one_draw_has_no_value_and_is_named(tmp_path: Path):
    lacking = replace(TESTED[1], labels=TESTED[1].labels.clone())
    lacking.labels[lacking.clients == "south", 1] = 0
    found = of_draws(tmp_path, [TESTED[0], lacking, TESTED[2]], by=("client",))
    assert any("in a draw of the data, so there are no values: client south: label/Nodule" in n for n in found.notes)
    assert "south" not in set(where(found.estimates, name="Nodule")["group"])


def test_other_images_with_the_same_seed_of_the_data_are_refused_in_plain_text(tmp_path: Path):
    run_of(tmp_path / "a", TESTED[0], 0, draw=0)
    run_of(tmp_path / "b", replace(TESTED[0], images=np.char.add("x", TESTED[0].images)), 1, draw=0)
    with refused(ConfigError, "'0'", "same seeds of the data"):
        evaluated(tmp_path)


@pytest.mark.slow
def test_the_page_says_what_the_draws_are(tmp_path: Path, fedlit_cli: Cli, blank_charts):
    for seed, found in enumerate(TESTED):
        run_of(tmp_path / "runs" / f"seed-{seed}", found, seed, draw=seed)
    fedlit_cli(f"evaluate {tmp_path / 'runs'} --draws 100 --output {tmp_path / 'out'}").succeeded()
    page = (tmp_path / "out" / "report.html").read_text()
    for words in ("in 3 draws of the data", "each with its own draw of the data", "covers both sources"):
        assert words in " ".join(page.split())
    assert page.count('role="img"') == 4
