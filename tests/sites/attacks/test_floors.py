"""What an answer says: labels, images and counts that a server tried to read out of a site with its default rules."""

import pytest
import torch
from at_sites import classifier
from attacker import AttackerHere, write_site

from fedlit.sites.messages import REPLY, Evaluated, Look, Member, Prepare, Sent, new_run

STEP = {"class_path": "ConstantSchedule", "init_args": {"window": 1, "unit": "steps"}}


@pytest.fixture
def ready(attacked: AttackerHere) -> AttackerHere:
    """A run that has begun as an ordinary one does."""
    assert attacked.prepare(run=new_run()).verb == REPLY
    return attacked


def test_an_ordinary_round_is_answered(ready):
    trained = ready.train()
    assert trained.message(Sent).report.examples == 210
    measured = ready.train(verb="measure")
    assert measured.message(Sent).report.steps == 0
    scored = ready.evaluate(at=1, accepted=1)
    assert scored.message(Evaluated).examples == 31
    line = ready.ledger()[-1]
    assert line["view"] == f"{ready.client}/val"
    assert line["examples"] == 31


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch_size": 1}, "a batch of 1 examples"),
        ({"batch_size": 7}, "floors.batch_size is 8"),
        ({"limit_eval_batches": 1}, "floors.whole requires whole parts"),
        ({"threads": 10**6}, "limits.threads allows 16"),
    ],
)
def test_a_plan_below_a_floor_is_refused_before_anything_trains(attacked, changes, words):
    attacked.refuses(attacked.prepare(**changes), words, "refused")


@pytest.mark.parametrize(
    ("schedule", "batch_size", "words"),
    [
        (STEP, 16, "a round of 16 examples; floors.examples requires 64"),
        (STEP, 63, "a round of 63 examples"),
        ({**STEP, "init_args": {"window": 10**9, "unit": "steps"}}, 16, "limits.steps allows 100,000"),
        ({**STEP, "init_args": {"window": 10**9, "unit": "epochs"}}, 16, "limits.steps allows 100,000"),
    ],
)
def test_a_round_that_is_too_short_or_too_long_is_refused(attacked, schedule, batch_size, words):
    """The update of one image and one step is the image."""
    assert attacked.prepare(run=new_run(), schedule=schedule, batch_size=batch_size).verb == REPLY
    attacked.refuses(attacked.train(), words, "refused")


def test_an_infinite_rate_or_window_is_no_plan(attacked):
    for factor in (float("inf"), -1.0, 0.0):
        attacked.refuses(attacked.prepare(lr_factors={attacked.client or "x": factor}), "", None)
    attacked.refuses(attacked.prepare(schedule={**STEP, "init_args": {"window": -3, "unit": "steps"}}), "window")


def test_whole_views_alone_are_scored(ready):
    """The difference of an evaluation of k images and one of k + 1 is a label."""
    ready.refuses(ready.evaluate(limit=29), "floors.whole requires whole parts", "refused")


def test_one_question_for_each_view_and_round(ready):
    """The same one may be repeated; with other weights, another method or another client's model it is another one."""
    first = ready.evaluate(at=0)
    again = ready.evaluate(at=0)
    assert first.verb == again.verb == REPLY
    assert all((first.vectors[name] == again.vectors[name]).all() for name in ("positives", "negatives"))
    other = ready.model.w.clone()
    other[-1] += 1
    ready.refuses(ready.evaluate(at=0, w=other), "another question about", "refused")
    ready.refuses(ready.evaluate(at=0, method="predict_step"), "another question about", "refused")
    look = Look(ready.client, "val", 0, "validation_step", None)
    of_nobody = ready.task(look)
    of_nobody.client = None
    ready.refuses(ready.ask("evaluate", of_nobody, ready.down()), "another question about", "refused")
    assert ready.evaluate(at=1, w=other).verb == REPLY
    ready.refuses(ready.evaluate(at=1), "another question about", "refused")


def test_a_round_that_is_trained_again_opens_what_follows_it(ready):
    """As after a resume on a device that gives other bits; each such question costs a round."""
    assert ready.train().verb == REPLY
    assert ready.evaluate(at=1, accepted=1).verb == REPLY
    other = ready.model.w + 0.5
    ready.refuses(ready.evaluate(at=1, accepted=1, w=other), "another question about")
    assert ready.train(accepted=None).verb == REPLY
    assert ready.evaluate(at=1, accepted=1, w=other).verb == REPLY
    ready.refuses(ready.evaluate(at=1, accepted=1), "another question about")


def test_a_round_beyond_the_plan_is_not_asked_about(ready):
    ready.refuses(ready.evaluate(at=4), "expected a round from -1 to 3, found 4")
    ready.refuses(ready.evaluate(at=-2), "expected a round from -1 to 3, found -2")
    ready.refuses(ready.train(index=3), "round: expected 1 to 3, found 4")


def test_methods_are_of_a_closed_list(ready):
    asked = ready.task(Look(ready.client, "val", 0, "load_from_checkpoint", None))
    ready.refuses(ready.ask("evaluate", asked, ready.down()), "a value that does not fit", "damaged")


def test_rounds_count_over_all_runs_and_measuring_counts(attack):
    """A new run begins with what the last has left; measuring trains nothing, and counts."""
    site = attack(rounds=3)
    for _ in range(2):
        assert site.prepare(run=new_run()).verb == REPLY
        assert site.train().verb == REPLY
    assert site.train(verb="measure").verb == REPLY
    site.refuses(site.train(index=1, accepted=1), "has answered for 3 rounds in 30 days, over all runs", "refused")
    site.refuses(site.train(verb="measure"), "over all runs")
    site.prepare(run=new_run())
    site.refuses(site.train(), "over all runs")


def test_evaluations_are_as_many_as_rounds_and_two_for_each_run(attack):
    site = attack(rounds=2)
    for _ in range(2):
        assert site.prepare(run=new_run()).verb == REPLY
        assert site.evaluate(at=0).verb == REPLY
    site.prepare(run=new_run())
    site.refuses(site.evaluate(at=0), "evaluations of", "refused")
    assert site.train().verb == REPLY  # a run that trains has two more
    assert site.evaluate(at=0).verb == REPLY


def test_measuring_with_a_window_trains_nothing(ready):
    """The verb says what is done, and the round has no field for anything else."""
    measured = ready.train(verb="measure")
    assert set(measured.vectors) == {"mask_weight", "vectors/mean", "vectors/square"}
    assert (ready.ledger()[-1]["steps"], ready.ledger()[-1]["examples"]) == (4, 64)  # what was read
    asked = {"index": 0, "cohort": [ready.client], "moments": True, "window": 1}
    task = vars(ready.task(Look(ready.client, "val", 0, "validation_step", None))) | {"asked": asked}
    ready.refuses(ready.content("measure", task, ready.down()), "a value that does not fit")


def test_measuring_looks_at_as_many_examples_as_training(attacked):
    """The statistics of BatchNorm over a batch of eight would be those of eight images."""
    assert attacked.prepare(run=new_run(), batch_size=8, measure_batches=1).verb == REPLY
    attacked.refuses(attacked.train(verb="measure"), "a round of 8 examples; floors.examples requires 64", "refused")


@pytest.fixture(scope="module")
def hiding(tmp_path_factory) -> AttackerHere:
    """A site that hides most of its counts."""
    return AttackerHere(write_site(tmp_path_factory.mktemp("hiding") / "north", leaves={"counts_below": 42}))


def test_what_is_hidden_is_hidden_with_its_complement(hiding):
    """Counts, AUROC, histograms, and the loss of a view: the mean of one with chosen biases is a count."""
    attacked = hiding
    told = attacked.site_info.clients[0]
    hidden = {}
    for part, (positives, negatives) in told.counts.items():
        assert [p is None for p in positives] == [n is None for n in negatives]
        assert all(p is None or min(p, n) >= 42 for p, n in zip(positives, negatives, strict=True))
        hidden[part] = [name for name, count in zip(attacked.classes, positives, strict=True) if count is None]
    assert hidden["val"]
    assert hidden["train"]
    attacked.prepare(run=new_run())
    scored, columns = attacked.evaluate(), [attacked.classes.index(name) for name in hidden["val"]]
    assert scored.message(Evaluated).logged == {}
    for name in ("positives", "negatives"):
        assert not scored.tensors()[name][columns].any()
    assert scored.tensors()["auroc"][columns].isnan().all()


def test_a_measuring_round_tells_no_share_of_a_hidden_class(hiding):
    """In its place stands a number that follows the limit alone; of its scores there is nothing."""
    attacked = hiding
    assert attacked.prepare(run=new_run(), model=classifier("AUCSaddle")).verb == REPLY
    told, sent = attacked.site_info.clients[0], attacked.train(verb="measure").tensors()
    seen = 0
    for column, count in enumerate(told.counts["train"][0]):
        if count is None:
            assert sent["vectors/objective/positives"][column] == pytest.approx(21 / 210)
            assert sent["vectors/objective/n_positive"][column] == 0
            assert sent["vectors/objective/h_negative"][column] == 0
            seen += 1
        else:
            assert sent["vectors/objective/positives"][column] == pytest.approx(count / 210)
    assert 0 < seen < len(attacked.classes)


def test_an_approved_plan_is_all_that_is_known_before(approving):
    """Model, algorithms, batch size, window, rates, rounds, seed and the first weights; any other has another hash."""
    site = approving()
    plan = site.config
    odd = site.model.w.clone()
    odd[0] += 1
    site.refuses(site.train(w=odd), "are not those of the approved plan", "refused")
    assert site.train().verb == REPLY
    for changed in (
        {"batch_size": 64}, {"seed": 1}, {"rounds": 4}, {"lr_factors": {"hospital-01": 2.0}}, {"weights": ""},
        {"schedule": STEP}, {"aggregators": [{"class_path": "FedBN"}]},
    ):  # fmt: skip
        site.refuses(site.prepare(plan | changed, new_run(), {}), "is not approved", "refused")
    tensors = {name: tensor + 1 for name, tensor in site.tensors().items()}
    other = Prepare(new_run(), plan, site.fingerprint, [Member(site.client, 1.0)])
    site.refuses(site.ask("prepare", other, tensors), "the run's first weights: expected the SHA-256", "refused")


def test_errors_name_no_files(tmp_path):
    data = {"class_path": "NIHChestXray14", "init_args": {"root": "/data/patient-1234"}}
    answer = AttackerHere(write_site(tmp_path / "other", data)).hello()
    assert answer.content["reason"].startswith("its data cannot be read (the site's own log has the details")
    assert "1234" not in str(answer.content)


def test_weights_that_are_not_numbers_are_refused(ready):
    bad = ready.model.w.clone()
    bad[3] = torch.nan
    ready.refuses(ready.train(w=bad), "'w' is not finite", "damaged")
    ready.refuses(ready.train(w=ready.model.w[:-1]), "weights and ")
    ready.refuses(ready.train(w=ready.model.w.double()), "expected w and stats of torch.float32", "damaged")
