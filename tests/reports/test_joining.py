"""The gains of sites from joining a federation, over individual models."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from joining_runs import SITES, site_predictions, write_federation, write_individual, write_joining
from refusals import Cli, refused

from fedlit.core.errors import ConfigError
from fedlit.metrics.auroc import auroc
from fedlit.metrics.claim import holm
from fedlit.predictions.table import Predictions
from fedlit.reports.compare.comparison import compare_runs
from fedlit.reports.compare.joining import Joining, gains_from_joining, random_effects
from fedlit.reports.compare.runs import load_runs
from fedlit.reports.compare.tables import matrix_table


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_joining(tmp_path_factory.mktemp("joining") / "joining")


def joined(folder: Path) -> Joining:
    runs, _ = load_runs([str(folder)], None, {}, "", folder)
    return gains_from_joining(runs, draws=100)


@pytest.fixture(scope="module")
def joining(folder: Path) -> Joining:
    return joined(folder)


def macro(found: Predictions, rows: np.ndarray) -> float:
    return float(auroc(found.scores[rows], found.labels[rows]).mean())


def test_random_effects_are_those_of_statsmodels():
    # statsmodels 0.15.0: combine_effects(effects, variances, method_re="dl", use_t=True), its tau2, i2, mean_effect_re
    # and sd_eff_w_re_hksj.
    effects, variances = [0.031, 0.012, -0.004, 0.050, 0.022], [0.0001, 0.0002, 0.00008, 0.0004, 0.00015]
    found = random_effects(effects, variances)
    expected = (0.0002339176954732511, 0.6175658938310772, 0.01925686367545365, 0.008623451079396695)
    np.testing.assert_allclose((found.tau2, found.i2, found.mean, found.error), expected, rtol=1e-12)


def test_the_matrix_has_each_own_model_on_the_images_of_each_site(joining: Joining):
    cells = {(cell.model, cell.tested_on): cell for cell in joining.matrix}
    assert set(cells) == {(model, site) for model in SITES for site in SITES}
    for (model, site), cell in cells.items():
        found = [site_predictions(0.6, 10 * seed + SITES.index(model)) for seed in (0, 1, 2)]
        np.testing.assert_allclose(cell.by_seed, [macro(each, each.clients == site) for each in found])
        assert cell.classes == 2


def test_a_model_that_has_not_learned_a_class_says_of_how_many_classes_its_cells_are(tmp_path: Path):
    for place, site in enumerate(("east", "north")):
        found = site_predictions(0.6, place, sites=("east", "north"))
        if site == "north":
            found.labels[:, 1] = found.scores[:, 1] = np.nan
            found = replace(found, trained_positives=(100, 0))
        write_individual(tmp_path, site, found, 0)
    write_federation(tmp_path, "FedAvg", site_predictions(1.4, 8, sites=("east", "north")), 0)
    row = next(row for row in matrix_table(joined(tmp_path)).rows if row[0] == "north")
    assert all("(1 of 2 classes)" in str(cell) for cell in row[1:])


def test_equal_effects_have_no_heterogeneity():
    found = random_effects([0.01, 0.01], [1e-4, 2e-4])
    assert (found.tau2, found.i2) == (0, 0)
    assert found.error < 1e-15


def test_gains_are_differences_on_the_same_images(joining: Joining):
    fedavg, pooled = joining.methods
    assert [fedavg.method.name, pooled.method.name] == ["fedavg", "pooled"]
    for place, (home, away) in enumerate(zip(fedavg.home, fedavg.away, strict=True)):
        assert home.site == SITES[place]
        found = [(site_predictions(0.6, 10 * s + place), site_predictions(1.4, 10 * s + 8)) for s in (0, 1, 2)]
        for gain, rows in ((home, found[0][0].clients == home.site), (away, found[0][0].clients != home.site)):
            own, ours = ([macro(pair[i], rows) for pair in found] for i in (0, 1))
            np.testing.assert_allclose(gain.own.value, np.mean(own))
            np.testing.assert_allclose(gain.gain.value, np.mean(ours) - np.mean(own))
        assert home.gain.claimed
        assert re.fullmatch(r"\+0\.\d{3} \[\+0\.\d{3}, \+0\.\d{3}\]", home.text)
    homes = [home.gain for gains in (fedavg, pooled) for home in gains.home]
    np.testing.assert_allclose([each.p_holm for each in homes], holm([each.p for each in homes]))
    assert fedavg.summary.effects.sites == 3
    assert fedavg.summary.interval.low > 0


def test_the_summary_adds_the_noise_of_trainings_that_all_sites_share(tmp_path: Path):
    for seed, joined_strength in enumerate((1.0, 1.4, 1.8)):
        for place, site in enumerate(SITES):
            write_individual(tmp_path, site, site_predictions(1.2, 10 * seed + place), seed)
        write_federation(tmp_path, "FedAvg", site_predictions(joined_strength, 10 * seed + 8), seed)
    (fedavg,) = joined(tmp_path).methods
    between_sites = random_effects(*zip(*[(g.gain.value, g.gain.variance) for g in fedavg.home], strict=True)).error
    interval = fedavg.summary.interval
    assert interval.high - interval.low > 10 * between_sites
    assert fedavg.summary.p > 0.1


def test_losses_are_negative_gains(tmp_path: Path):
    for seed in (0, 1):
        for place, site in enumerate(("east", "north")):
            found = site_predictions(1.4, 10 * seed + place, sites=("east", "north"))
            write_individual(tmp_path, site, found, seed)
        write_federation(tmp_path, "FedAvg", site_predictions(0.6, 10 * seed + 8, sites=("east", "north")), seed)
    (gains,) = joined(tmp_path).methods
    gain = gains.home[0].gain
    assert gain.value < 0
    assert gains.home[0].text == f"{gain.value:+.3f} [{gain.interval.low:+.3f}, {gain.interval.high:+.3f}]"
    assert f"is {gains.summary.effects.mean:+.3f} [" in gains.summary.text("fedavg")


def test_personal_models_score_only_their_own_site(tmp_path: Path):
    for site in SITES:
        write_individual(tmp_path, site, site_predictions(0.6, 0), 0)
    found = site_predictions(1.4, 8)
    write_federation(tmp_path, "FedBN", replace(found, models=found.clients), 0)
    (gains,) = joined(tmp_path).methods
    assert [home.site for home in gains.home] == list(SITES)
    assert gains.away == (None, None, None)
    assert not gains.home[0].gain.claimed  # one seed
    assert "one seed says nothing" in gains.summary.text("fedbn")


def test_seeds_with_their_own_draws_are_paired_by_draw(tmp_path: Path):
    for seed in (0, 1, 2):
        data = {"class_path": "PhantomCXR", "init_args": {"seed": seed}}
        directory = write_individual(tmp_path, "east", site_predictions(0.6, 0, draw=seed), seed)
        with (directory / "config.yaml").open("a") as file:
            file.write(f"data: {data}\n")
        write_federation(tmp_path, "FedAvg", site_predictions(1.4, 8, draw=seed), seed, data=data)
    (fedavg,) = joined(tmp_path).methods
    assert fedavg.home[0].support.startswith("900 images")
    expected = [
        macro(site_predictions(1.4, 8, draw=s), slice(0, 300)) - macro(site_predictions(0.6, 0, draw=s), slice(0, 300))
        for s in (0, 1, 2)
    ]
    np.testing.assert_allclose(fedavg.home[0].by_seed, expected)
    assert fedavg.home[0].gain.covers_images


def test_one_site_has_no_heterogeneity(tmp_path: Path):
    write_individual(tmp_path, "east", site_predictions(0.6, 0, sites=["east"]), 0)
    write_federation(tmp_path, "FedAvg", site_predictions(1.4, 8, sites=["east"]), 0)
    joining = joined(tmp_path)
    assert joining.methods[0].summary is None
    assert any("one site" in note for note in joining.notes)


def test_sites_without_a_test_set_or_an_own_model_are_named(tmp_path: Path):
    for site in ("east", "north"):
        write_individual(tmp_path, site, site_predictions(0.6, 0), 0)
    (tmp_path / "individual-north,seed=0" / "predictions" / "federation.parquet").unlink()
    write_federation(tmp_path, "FedAvg", site_predictions(1.4, 8), 0)
    joining = joined(tmp_path)
    assert [home.site for home in joining.methods[0].home] == ["east"]
    notes = " ".join(joining.notes)
    assert "north: " in notes
    assert "without a test set" in notes
    assert "north, west: no run has an individual model" in notes


def test_other_test_images_are_refused_by_name(tmp_path: Path):
    write_individual(tmp_path, "east", site_predictions(0.6, 0), 0)
    found = site_predictions(1.4, 8)
    write_federation(tmp_path, "FedAvg", found.take(found.clients != "east"), 0)
    with refused(ConfigError, "FedAvg,seed=0 (fedavg", "east"):
        joined(tmp_path)


def test_two_kinds_of_individual_models_are_refused(tmp_path: Path):
    write_individual(tmp_path, "east", site_predictions(0.6, 0), 0)
    other = write_individual(tmp_path / "other", "east", site_predictions(0.6, 0), 0)
    config = (other / "config.yaml").read_text().replace("rounds: 3", "rounds: 5")
    (other / "config.yaml").write_text(config)
    other.rename(tmp_path / "again")
    write_federation(tmp_path, "FedAvg", site_predictions(1.4, 8), 0)
    with refused(ConfigError, "east"):
        joined(tmp_path)


def test_the_command_writes_a_row_per_site(folder: Path, tmp_path: Path, fedlit_cli: Cli, monkeypatch, blank_charts):
    monkeypatch.setenv("COLUMNS", "80")
    options = f"--against individual --margin 0.1 --draws 100 --latex --output {tmp_path}"
    out = fedlit_cli(f"compare {folder} {options}").succeeded()
    assert max(map(len, out.replace(str(tmp_path), "").splitlines())) <= 80
    for site in SITES:
        assert re.search(rf"^  {site} +0\.\d+ +0\.\d+ +\+0\.\d+ \[\+0\.\d+, \+0\.\d+\]  \*+ +\+0\.\d+ \*+$", out, re.M)
    table = pd.read_csv(tmp_path / "gains.csv")
    assert len(table) == 2 * (2 * len(SITES) + 1)
    assert (tmp_path / "gains.svg").exists()
    assert (tmp_path / "gains.pdf").exists()
    page = (tmp_path / "report.html").read_text()
    assert "Joining or staying alone" in page
    assert "Hartung" in page
    assert "pooled against fedavg: not worse by more than 0.1." in page
    assert "pooled against fedavg: not worse by more than 0.1." in " ".join(out.split())
    assert "all sites" in (tmp_path / "gains.tex").read_text()


def test_runs_without_individual_models_are_refused(tmp_path: Path):
    write_federation(tmp_path, "FedAvg", site_predictions(1.4, 8), 0)
    with refused(ConfigError, "baselines"):
        joined(tmp_path)


def test_individual_models_alone_can_still_be_compared(tmp_path: Path):
    found = site_predictions(0.6, 0)
    for seed in (0, 1):
        write_individual(tmp_path / "runs", "east", replace(found, scores=found.scores + 0.1 * seed), seed)
    runs, notes = load_runs([str(tmp_path / "runs")], None, {}, "", tmp_path)
    assert [method.name for method in compare_runs(runs, notes, draws=100).methods] == ["individual-east"]
