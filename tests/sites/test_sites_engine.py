"""A federation across sites gives the bits of one in a process, whatever it is made of."""

from pathlib import Path

import pytest
import yaml
from at_sites import Ended, assert_same, classifier
from exclusive import CLASSES

from fedlit.experiment.choices import shipped
from fedlit.predictions import read

STEPS = {"class_path": "ConstantSchedule", "init_args": {"window": 2, "unit": "steps"}}
ONE_CLASS = ("LocalSCGDAM",)
"""Aggregators for one class against the rest."""
HELD = ("Scaffold", "FedBN", "SurgicalHeads", "CoordinateMedian", "FedProx", "Ditto")
"""Aggregators whose bits other tests of this file compare."""

PRETRAIN = {
    "name": "pretrain",
    "rounds": 2,
    "schedule": STEPS,
    "aggregators": [{"class_path": "Ditto"}],
    "objective": {"class_path": "BCE"},
    "keep": "all",
}

CASES = {
    "control variates, own norms, some of the clients": "--federation.aggregators='[Scaffold, FedBN]' --data.clients 5 "
    "--federation.participation 0.6 --data.labelled 2 --federation.eval_every 2",
    "optimizer kept": "--federation.optimizer_state keep --model.momentum 0.9 --federation.gradient_clip 1 "
    "--federation.weights uniform --federation.lr_factors '{site-0: 0.2, site-1: 3}'",
    "patience": "--federation.rounds 9 --federation.patience 2 --federation.monitor train/loss "
    "--federation.monitor_mode max",
    "double precision, own rows": "--federation.aggregators='[SurgicalHeads, FedProx]' --fabric.precision 64-true "
    "--data.labelled 1",
    "single replies": "--federation.aggregators='[CoordinateMedian, Scaffold, SurgicalHeads, FedBN]' --data.clients 5 "
    "--federation.participation 0.8 --data.labelled 2",
    "some clients": "--federation.clients '[site-0, site-2]' --data.clients 4",
}
FAST = ("control variates, own norms, some of the clients", "single replies")


def written(folder: Path, **keys) -> Path:
    file = folder / "x.yaml"
    file.write_text(
        yaml.safe_dump({"model": classifier("AUCSaddle"), "federation": {"rounds": 3, "schedule": STEPS}} | keys)
    )
    return file


@pytest.mark.parametrize("case", [c if c in FAST else pytest.param(c, marks=pytest.mark.slow) for c in CASES])
def test_bits(same_as_here, case):
    same_as_here(f"--federation.rounds 3 {CASES[case]}", 2 if case == "some clients" else 3)


def test_the_bytes_that_are_logged_are_those_that_are_sent(fit, sites, tmp_path):
    exchanged = sites.recorded()
    fit("--federation.aggregators='[Scaffold, FedBN]' --federation.rounds 1 --data.labelled 2")
    sent = [reply.nbytes for _, envelope, reply in exchanged if envelope.verb == "train"]
    ((_, _, logged),) = [row for row in Ended(tmp_path).kept.metrics() if row[1] == "bytes/up"]
    assert float(logged) == sum(sent) + 8 * len(sent)  # and each client's weight, a double


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [cls.__name__ for cls in shipped("aggregators") if cls.__name__ not in ("NPA", "DPSGD", *HELD)]
)
def test_bits_of_every_aggregator_that_ships(same_as_here, tmp_path, name):
    settings = {
        "aggregators": [{"class_path": name}],
        "rounds": 2,
        "schedule": STEPS,
        "participation": 0.7,
        "eval_every": 2,
    }
    toys = {"data": {"class_path": "saddle_toys.Sites"}, "model": {"class_path": "saddle_toys.Scorer"}}
    file = written(tmp_path, federation=settings, **(toys if name in ONE_CLASS else {}))
    same_as_here(f"--config {file} --data.clients 4", 2)


def test_bits_of_classes_that_exclude_each_other(same_as_here):
    same_as_here(
        "--data exclusive.Insects --model exclusive.Tilted --model.objective SoftmaxFocalLoss --federation.rounds 2", 2
    )


def test_histograms_of_classes_that_exclude_each_other_are_those_of_the_softmax(fit, sites, tmp_path):
    options = "--data exclusive.Insects --model exclusive.Cross --federation.rounds 1"
    rules = {"leaves": {"scores": False, "counts_below": 0}, "floors": None, "allow": ["exclusive.Cross"]}
    sites.rules = {"site-1": rules, "site-2": rules}
    assert "the scores are the softmax of what Cross.validation_step returns" in fit(options, 2, "there").out
    fit(options, 0, "here")
    there, here = ({key: float(v) for _, key, v in Ended(tmp_path / p).kept.metrics()} for p in ("there", "here"))
    for name in CLASSES:
        key = f"test/federation/auroc/{name}"
        assert here[key] > 0.7  # raw logits: below 0.65
        within = there[f"test/federation/auroc_within/{name}"]
        assert within < 0.01
        assert abs(here[key] - there[key]) <= within + 1e-9


@pytest.mark.slow
def test_a_phase_is_a_run_at_the_sites(same_as_here, tmp_path):
    """Measuring rounds, another objective, the best of a phase, and states of clients in both runs."""
    federation = {"aggregators": [{"class_path": "FedBN"}], "rounds": 2, "schedule": STEPS}
    same_as_here(f"--config {written(tmp_path, phases=[PRETRAIN], federation=federation)}", 2)


@pytest.mark.slow
def test_resumed_with_more_rounds(fit, sites, tmp_path):
    """Sites that are started anew go on from their files; what the run here does is what both must equal."""
    options = "--federation.aggregators='[Scaffold, FedBN]' --federation.participation 0.6"
    fit(f"{options} --federation.rounds 3", 2, "there")
    fit(f"{options} --federation.rounds 5 --ckpt_path last", 2, "there")
    fit(f"{options} --federation.rounds 5", 0, "here")
    there, here = Ended(tmp_path / "there"), Ended(tmp_path / "here")
    assert sites.made == {"site-1": 2, "site-2": 2}
    wanted = [row for row in here.kept.metrics() if not row[1].startswith(("test/", "total/"))]
    found = [row for row in there.kept.metrics() if not row[1].startswith(("test/", "total/"))]
    assert found == wanted
    assert there.states().keys() == {"site-0", "site-1", "site-2"}


@pytest.mark.slow
def test_states_at_sites_are_not_looked_for_here(fit):
    """A run with sites does not go on without, and the other way round: states would be missing without a word."""
    for first, second, said in (
        (2, 0, "clients' states are at sites; pass --sites of the original run"),
        (0, 2, "is a run without sites"),
    ):
        fit("--federation.rounds 1", first, f"x{first}")
        assert said in fit("--federation.rounds 2 --ckpt_path last", second, f"x{first}", code=1).err


def test_a_message_a_step_is_refused_with_the_reason(fit, tmp_path):
    options = f"--config {written(tmp_path)} --federation.aggregators='[NPA]' --federation.schedule.window 1"
    fit(options, 2, code=1).refused("federation.schedule")
    assert not (tmp_path / "default" / "one").exists()


@pytest.mark.slow
def test_short_rounds_are_told_in_numbers(fit):
    err = fit("--federation.rounds 2", 2).err
    assert err.count("training should take at least 10 times as long") == 1
    assert "2.0 kB to each client and 2.2 kB back" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--sites loopback:4", ("found 4", "for 3")),
        ("--sites project/", ("project", "startup/fed_admin.json")),
        ("--sites loopback:0", ("'loopback:0'",)),
        ("--fresh_state site-1", ("only with --sites",)),
        ("--sites loopback:2 --fresh_state other", ("site-1, site-2", "other")),
        ("--sites loopback:2 --seed 0,1", ("found 2",)),
    ],
)
def test_mistakes_on_the_command_line(fit, words, said):
    fit(f"--federation.rounds 1 {words}", 0, code=1).refused(*said)


@pytest.mark.slow
def test_organisations_of_a_sites_images_are_told_where_scores_leave(ran, sites, tmp_path):
    """Clients that hold images of several hospitals: the hospitals' own rows are those of a run here."""
    hospitals = (
        "--data two_scanners.TwoScanners --data.hospitals 3 --data.images 120 --data.image_size 16 "
        "--data.partition IID --data.partition.clients 2"
    )
    options = (
        f"fit {hospitals} --model.backbone small_cnn --federation.rounds 1 --federation.workers 1 --logger "
        f"false --name one"
    )
    for path, where in (("there", "--sites loopback:2"), ("here", "")):
        ran(f"{options} --run_dir {tmp_path / path} {where}")
    assert_same(Ended(tmp_path / "there"), Ended(tmp_path / "here"))
    assert any(key.startswith("test/hospital-01/auroc/") for _, key, _ in Ended(tmp_path / "there").kept.metrics())
    there, here = (read(tmp_path / where / "default/one/predictions/federation.parquet") for where in ("there", "here"))
    assert there.groups["scanner"].tolist() == here.groups["scanner"].tolist()
    assert set(here.groups["scanner"]) == {"A", "B"}
