"""Test sets scored in the course of training, as the papers' curves are: for the record, and for nothing else."""

import pytest
from runs import Kept

from fedlit.experiment.phases import Phase
from fedlit.federation.federation import Federation

TOYS = (
    "fit --data toys.ToyData --model toys.ToyNet --name one --logger false --federation.workers 1 "
    "--federation.rounds 5 --federation.eval_every 2 --federation.schedule.window 2 --federation.schedule.unit steps"
)


@pytest.fixture
def runs(fedlit_cli, tmp_path, monkeypatch) -> dict[str, Kept]:
    """The same federation with curves of the test sets, and without."""
    kept = {}
    for name, more in (("without", ""), ("with", "--federation.test_curves true")):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        fedlit_cli(f"{TOYS} {more}").succeeded()
        kept[name] = Kept(tmp_path / name / "runs" / "default" / "one")
    return kept


def test_each_evaluation_scores_the_test_sets_and_nothing_else_changes(runs):
    rows = {name: kept.metrics() for name, kept in runs.items()}
    curve = [step for step, key, _ in rows["with"] if key == "test_curve/federation/auroc_macro"]
    assert curve == [step for step, key, _ in rows["with"] if key == "val/auroc_macro"] == [2, 4, 5]
    timed = ("time/", "client/")

    def others(name):
        return [row for row in rows[name] if not row[1].startswith(("test_curve/", *timed))]

    assert others("with") == others("without")
    tensors = [kept.tensors()["server/w"] for kept in runs.values()]
    assert (tensors[0] == tensors[1]).all()


def test_the_last_point_is_the_score_of_the_model_that_is_tested_then(runs):
    rows = runs["with"].metrics()
    best = max((float(value), -step) for step, key, value in rows if key == "val/auroc_macro")
    curve = {step: float(value) for step, key, value in rows if key == "test_curve/federation/auroc_macro"}
    tested = [float(value) for _, key, value in rows if key == "test/federation/auroc_macro"]
    assert tested == [pytest.approx(curve[-best[1]])]


def test_a_phase_has_them_too():
    assert Phase("warm-up").federation(Federation(test_curves=True)).test_curves
