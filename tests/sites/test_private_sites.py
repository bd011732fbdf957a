"""Private steps at sites: the bits of a simulation, a secret that stays, and a budget over all runs of the ledger."""

import json
import sys
from collections.abc import Callable, Iterator
from functools import cache

import pytest
import torch
import yaml
from at_sites import Answer, Ended, assert_same, classifier, is_train
from attacker import AttackerHere, a_plan, write_site

from fedlit.aggregators.accounting import Steps, epsilon_of
from fedlit.core.checkpoints.checkpoint import find
from fedlit.core.checkpoints.manifest import Manifest
from fedlit.sites import site as site_module
from fedlit.sites.budget import PrivacyRule
from fedlit.sites.ledger import BEGUN, Ledger
from fedlit.sites.messages import FAILED, REPLY, new_run
from fedlit.sites.own_data import OwnData
from fedlit.sites.policy import digest

rdp = pytest.importorskip(
    "opacus.accountants.analysis.rdp", reason="Opacus is not installed: pip install 'fedlit[privacy]'"
)

RULE = {"epsilon": 8.0, "delta": 1e-4, "patients": 200}
NET = classifier(lr=0.01)
NET = {**NET, "init_args": NET["init_args"] | {"norm": "group"}}
WINDOW = 2
STEPS = {"class_path": "ConstantSchedule", "init_args": {"window": WINDOW, "unit": "steps"}}
"""Two steps of 16 of 200 patients."""
SHORT = {"examples": 16 * WINDOW}
"""Floors that allow them."""


@pytest.fixture(autouse=True, scope="module")
def _divergences_computed_once() -> Iterator[None]:
    """Compute the divergence of a step once per order: PRV asks for all of them twice, which takes half a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rdp, "_compute_rdp", cache(rdp._compute_rdp))
        yield


def dpsgd(**arguments) -> dict:
    return {"class_path": "DPSGD", "init_args": {"delta": 1e-4} | (arguments or {"noise": 1.0})}


def a_private_plan(**changes) -> dict:
    return {"model": NET, "aggregators": [dpsgd()], "schedule": STEPS} | changes


def noise(multiplier: float = 1.0) -> dict[str, torch.Tensor]:
    return {"0/noise": torch.tensor(multiplier, dtype=torch.float64)}


@pytest.fixture
def ruled(attack) -> Callable[..., AttackerHere]:
    """A function that starts a site with the rule, and changes of its policy."""
    return lambda name="north", privacy=RULE, **policy: attack(name, privacy=privacy, floors=SHORT, **policy)


@pytest.fixture
def private(ruled) -> AttackerHere:
    server = ruled()
    assert server.prepare(**a_private_plan()).verb == REPLY
    return server


def spent(server: AttackerHere) -> float:
    return PrivacyRule(**RULE).spent(Ledger(server.state).entries)


def after(rounds: int, multiplier: float = 1.0) -> float:
    return epsilon_of([Steps(multiplier, 16 / 200, WINDOW)] * rounds, RULE["delta"])


PRIVATE = (
    "--model private_toys.PlainNet --data private_toys.EqualClients --data.batch_size 8 --federation.rounds 2 "
    "--federation.aggregators="
    "'[{class_path: PersonalHeads}, {class_path: DPSGD, init_args: {noise: 1.0, delta: 1e-3}}]'"
)
TWO = "--data.clients 2"


@pytest.fixture
def seeded(monkeypatch):
    """Sites whose secret is a simulation's."""
    monkeypatch.setattr(site_module, "secret_of", lambda *about: b"0")


def test_a_run_at_sites_has_the_bits_of_a_simulation_with_the_same_secret_and_says_what_its_epsilon_is_worth(
    fit, tmp_path, seeded
):
    out = fit(PRIVATE, path="there").out
    fit(PRIVATE, 0, "here")
    there = Ended(tmp_path / "there")
    assert_same(there, Ended(tmp_path / "here"))
    assert "noise of the sites' own secrets" in out
    assert "not private" not in out
    assert "counts as a patient" not in out  # a lead does not know
    assert "site-1 trains only with DPSGD, with 24 patients: epsilon 0 of inf is spent" in out
    assert json.loads((there.kept.path / "privacy.json").read_text())["private"] is True
    assert (
        "epsilon 0 of inf" not in fit(f"{PRIVATE} --federation.rounds 1 --name two", path="there").out
    )  # over all runs


def test_an_answer_holds_nothing_that_follows_the_images_without_noise(private):
    answer = private.train(**noise())
    assert answer.verb == REPLY, answer.content
    report = answer.content["report"]
    assert report["loss"] is None
    assert (report["logged"], report["still"], report["error"]) == ({}, "", "")
    line = private.ledger()[-1]
    assert (line["noise"], line["rate"], line["steps"], line["examples"]) == (1.0, 16 / 200, WINDOW, 16 * WINDOW)


def weights(answer) -> torch.Tensor:
    assert answer.verb == REPLY, answer.content
    return answer.tensors()["vectors/w"]


def test_the_same_question_has_the_same_answer_and_is_charged_once(private):
    first = weights(private.train(**noise()))
    assert torch.equal(weights(private.train(**noise())), first)
    assert spent(private) == after(1)
    other = weights(private.train(w=private.model.w + 1e-6, **noise()))
    assert (other - first).norm() > 0.1 * first.norm()
    assert spent(private) == after(2)
    private.prepare(run=new_run(), **a_private_plan())
    assert (weights(private.train(**noise())) - first).norm() > 0.1 * first.norm()
    assert spent(private) == after(3)
    private.prepare(**a_private_plan(seed=1))
    assert (weights(private.train(**noise())) - first).norm() > 0.1 * first.norm()
    assert spent(private) == after(4)


def test_a_question_about_another_state_of_the_client_is_another_question(ruled):
    """The same weights after another first round: with the same noise, the difference of answers would have none."""
    server = ruled()
    own = [{"class_path": "PersonalHeads"}, dpsgd()]
    server.prepare(**a_private_plan(aggregators=own))
    given, answers = {"1/noise": noise()["0/noise"]}, []
    for shift in (0.0, 1e-3):
        assert server.train(w=server.model.w + shift, **given).verb == REPLY
        answers.append(weights(server.train(1, accepted=1, **given)))
    body = server.model.layout.slices["backbone"] if "backbone" in server.model.layout.slices else slice(0, 100)
    one, other = (answer[body] for answer in answers)
    assert (one - other).norm() > 0.1 * one.norm()
    assert spent(server) == after(4)


def test_another_site_and_a_simulation_have_other_noise(ruled, private):
    other = ruled("south")
    other.run = private.run
    other.prepare(**a_private_plan())
    one, two = weights(private.train(**noise())), weights(other.train(**noise()))
    assert (one - two).norm() > 0.1 * one.norm()
    secrets = [(each.state / "secret") for each in (private, other)]
    assert [file.stat().st_mode & 0o777 for file in secrets] == [0o600] * 2
    assert len({file.read_bytes() for file in secrets}) == 2
    assert {len(file.read_bytes()) for file in secrets} == {32}


def in_words(answer, *words: str) -> None:
    assert answer.verb == FAILED, answer.content
    assert not answer.vectors
    for word in words:
        assert word in answer.content["reason"], answer.content["reason"]


PLANS = [
    ("no DPSGD", {}, {"aggregators": []}, ["trains only with differential privacy", "add DPSGD"]),
    ("no rule", None, {}, ["DPSGD", "patients: 20000", "under policy"]),
    ("a large batch", {"patients": 30}, {"batch_size": 32}, ["data.batch_size", "30", "32"]),
    ("few patients", {"patients": 19}, {}, ["20 patients", "19"]),
    ("BatchNorm", {}, {"model": classifier()}, ["body.bn1", "model.norm"]),
    ("a second model", {}, {"aggregators": [{"class_path": "Ditto"}, dpsgd()]}, ["Ditto", "second model"]),
    ("clipped noise", {}, {"gradient_clip": 1.0}, ["gradient_clip"]),
    ("measuring", {}, {"model": classifier("AUCSaddle") | {}, "aggregators": [{"class_path": "CODAPlus"}, dpsgd()]},
     ["AUCSaddle"]),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "plan", "words"), [row[1:] for row in PLANS], ids=[row[0] for row in PLANS])
def test_a_plan_that_does_not_fit_the_rule_is_refused_before_anything_is_trained(ruled, rule, plan, words):
    server = ruled(privacy=None if rule is None else RULE | rule)
    if "model" in plan:
        plan = plan | {"model": {**plan["model"], "init_args": NET["init_args"] | plan["model"]["init_args"]}}
        if words[0] == "body.bn1":
            plan["model"]["init_args"]["norm"] = "batch"
    in_words(server.prepare(**a_private_plan(**plan)), *words)
    assert server.train(**noise()).verb == FAILED
    assert not any(line["touched"] for line in server.ledger())


def test_what_would_read_training_images_without_noise_is_refused(private):
    private.refuses(private.train(verb="measure", **noise()), "measuring round", "refused")
    private.refuses(private.evaluate(part="train"), "training images", "refused")
    private.refuses(private.train(**noise(0.0)), "would bring it to inf", "refused")
    in_words(private.train(**noise(float("nan"))), "not finite")
    assert private.evaluate().verb == REPLY  # validation images are not protected
    assert spent(private) == 0


def test_a_round_beyond_the_budget_is_refused_and_nothing_is_read(ruled):
    most = (after(2) + after(3)) / 2
    server = ruled(privacy=RULE | {"epsilon": most})
    server.prepare(**a_private_plan())
    assert server.train(**noise()).verb == REPLY
    server.prepare(run=new_run(), **a_private_plan())  # over all runs
    assert server.train(**noise()).verb == REPLY
    server.refuses(server.train(1, accepted=1, **noise()), f"epsilon is {after(2):.3g}", "refused")
    assert f"bring it to {after(3):.3g}" in server.ledger()[-1]["refused"]
    assert not server.ledger()[-1]["touched"]
    assert server.train(**noise()).verb == REPLY  # the same question costs nothing


def test_a_budget_of_the_plan_is_one_of_the_run(ruled):
    server = ruled()
    budget = (after(1) + after(2)) / 2
    server.prepare(**a_private_plan(aggregators=[dpsgd(epsilon=budget)]))
    assert server.train(**noise()).verb == REPLY
    server.refuses(server.train(1, accepted=1, **noise()), "the plan's budget is", "refused")
    server.prepare(run=new_run(), **a_private_plan(aggregators=[dpsgd(epsilon=budget)]))
    assert server.train(**noise()).verb == REPLY


def test_an_approved_plan_with_a_budget_trains_with_the_noise_that_the_server_has_computed(ruled):
    first = ruled("first")
    changes = a_private_plan(aggregators=[{"class_path": "Scaffold"}, dpsgd(epsilon=4.0)])
    first.prepare(**changes)
    plan = a_plan(**changes, weights=first.ledger()[-1]["question"], classes=first.classes)
    server = ruled("second", configs=[digest(plan)])
    assert server.prepare(plan).verb == REPLY
    given = {"1/noise": noise(1.37)["0/noise"], "0/c": torch.zeros_like(server.model.w)}
    server.refuses(server.train(**given | {"0/c": given["0/c"] + 1e-3}), "0/c of the first round", "refused")
    server.refuses(server.train(**given | {"1/noise": torch.ones(2)}), "1/noise of the first round", "refused")
    assert server.train(**given).verb == REPLY
    assert spent(server) == after(1, multiplier=1.37)


def test_a_process_that_died_in_a_round_has_spent_all_of_it(private):
    assert private.train(**noise()).verb == REPLY
    line = {**private.ledger()[-1], "answer": FAILED, "touched": True, "question": 64 * "a"}
    del line["head"]
    private.again(change=lambda state: (state / BEGUN).write_text(json.dumps(line)))
    assert private.site_info.privacy.spent == after(2)


def test_a_round_that_failed_on_images_has_spent_all_of_it(ruled):
    server = ruled(leaves={"vectors": ["stats"]})
    server.prepare(**a_private_plan())
    in_words(server.train(**noise()), "leaves.vectors")
    in_words(server.train(w=server.model.w + 1, **noise()), "leaves.vectors")
    assert spent(server) == after(2)


def test_noise_that_cannot_be_accounted_is_not_in_the_ledger(private):
    """It would stay there, and the site could say nothing about its budget any more."""
    for multiplier in (1e-200, 1e300, -1.0):
        assert private.train(**noise(multiplier)).verb == FAILED
    assert private.site_info.privacy.spent == 0


def test_rounds_without_noise_and_of_an_older_fedlit_are_infinite(ruled):
    server = ruled(privacy=None)
    server.prepare()
    assert server.train().verb == REPLY
    server.rewrite(lambda values: values["policy"].update(privacy=RULE))
    assert server.site_info.privacy.spent == float("inf")
    in_words(server.prepare(**a_private_plan()), "without noise", "did not record it", server.run[:8], "infinite")


def test_a_secret_that_others_can_read_is_refused(private):
    private.again(change=lambda state: (state / "secret").chmod(0o640))
    in_words(private.prepare(**a_private_plan()), "the secret of its noise is not safe")
    (private.state / "secret").write_bytes(b"short")
    private.again(change=lambda state: (state / "secret").chmod(0o600))
    in_words(private.prepare(**a_private_plan()), "the secret of its noise is not safe")


def test_another_secret_is_another_question(private):
    first = weights(private.train(**noise()))
    private.again(change=lambda state: (state / "secret").unlink())
    private.prepare(**a_private_plan())
    assert (weights(private.train(**noise())) - first).norm() > 0.1 * first.norm()
    assert spent(private) == after(2)


def test_a_rule_says_what_is_wrong_with_it(tmp_path, fedlit_cli):
    for rule, words in (({"epsilon": 8, "patients": 200}, ("delta",)), (RULE | {"epsilon": 0}, ("epsilon", "above 0")),
                        (RULE | {"delta": 1.5}, ("delta",)), (RULE | {"patients": 0}, ("patients",))):  # fmt: skip
        file = write_site(tmp_path / f"site{len(list(tmp_path.iterdir()))}", privacy=rule)
        fedlit_cli(f"site check {file}").refused(*words)


def test_other_data_make_other_noise(private):
    """One patient more, below the same noise, would show that patient."""
    first = weights(private.train(**noise()))
    private.rewrite(lambda values: values["data"]["init_args"].update(images=299))
    private.prepare(**a_private_plan())
    assert (weights(private.train(**noise())) - first).norm() > 0.1 * first.norm()
    assert spent(private) == after(2)


def test_data_that_change_during_a_run_are_prepared_again(fit, sites, monkeypatch):
    changed, fingerprint = [], OwnData.fingerprint
    monkeypatch.setattr(OwnData, "fingerprint", lambda data, name: fingerprint(data, name) + str(len(changed)))

    def between(name: str, envelope, answer: Answer) -> bytes:
        if is_train(envelope, 1) and not changed:
            changed.append(name)
        return answer(envelope.to_bytes())

    sites.between = between
    err = fit(f"{PRIVATE} {TWO}", 2).err
    assert "its process was started again; asking again" in err
    assert "its data have changed" in err


def test_a_refusal_at_its_budget_ends_a_run_in_words_and_the_last_checkpoint_stands(fit, sites, tmp_path):
    leaves = {"scores": True, "counts_below": 0, "errors": True}
    allow = ["private_toys.PlainNet"]
    rule = {"epsilon": 4.0, "delta": 1e-3, "patients": 24}
    sites.rules = {f"site-{n}": {"floors": None, "leaves": leaves, "allow": allow, "privacy": rule} for n in (1, 2)}
    ended = fit(f"{PRIVATE} {TWO} --federation.rounds 30", 2, code=1)
    assert "privacy: epsilon is" in ended.err
    assert "the site's budget is 4" in ended.err
    (run,) = tmp_path.glob("default/*/checkpoints")
    done = Manifest.read(find(run, "last")).round
    assert 1 <= done < 30
    for folder in tmp_path.glob("default/sites/site-*"):
        assert PrivacyRule(**rule).spent(Ledger(folder).entries) <= 4.0


def test_a_lead_is_told_before_anything_is_asked_of_a_site_without_the_rule(fit, sites):
    exchanged = sites.recorded()
    sites.rules = {"site-2": {"floors": None, "allow": ["private_toys.PlainNet"]}}
    assert "site 'site-2': DPSGD: the site has declared neither" in fit(f"{PRIVATE} {TWO}", 2, code=1).err
    assert {envelope.verb for _, envelope, _ in exchanged} == {"hello"}


def test_a_site_tries_private_steps(fedlit_cli, tmp_path):
    file = write_site(tmp_path / "north", privacy=RULE, floors=SHORT)
    out = fedlit_cli(f"site check {file}").succeeded()
    assert "privacy: trains only with DPSGD, up to epsilon 8 at delta 0.0001 over 3650 days, 200 patients" in out
    assert "loss" not in out.partition("a round of")[2].partition(";")[0]
    config = tmp_path / "whole.yaml"
    federation = {"rounds": 3, "aggregators": [dpsgd(epsilon=4.0)], "schedule": STEPS}
    config.write_text(yaml.safe_dump({"model": NET, "federation": federation}))
    out = fedlit_cli(f"site check {file} --config {config}").succeeded()
    assert "the whole run would bring epsilon from 0 to 4, of epsilon 8 at delta 0.0001" in out
    assert "ready to join" in out
    assert not (tmp_path / "north" / "state" / "secret").exists()
    federation["aggregators"] = []
    config.write_text(yaml.safe_dump({"model": NET, "federation": federation}))
    fedlit_cli(f"site check {file} --config {config}").refused("add DPSGD")


def test_the_ledger_shows_noise_rate_and_epsilon(fedlit_cli, private):
    for shift in (0.0, 0.0, 1.0):
        private.train(w=private.model.w + shift, **noise())
    out = fedlit_cli(f"site ledger {private.file}").succeeded()
    (line,) = [" ".join(each.split()) for each in out.splitlines() if " train " in each]
    assert line.endswith(" 3 0 32 1.1 MB 1 0.08")
    assert f"{after(2):.2f} of epsilon 8 at delta 0.0001 over 3650 days is spent" in out


def test_opacus_is_missing(private, monkeypatch):
    private.train(**noise())
    monkeypatch.setitem(sys.modules, "opacus.accountants.analysis", None)
    private.again()
    assert "pip install 'fedlit[privacy]'" in private.hello().content["reason"]


def test_a_ledger_is_not_summed_by_a_rule_with_a_mistake(private, fedlit_cli):
    private.rewrite(lambda values: values["policy"]["privacy"].pop("delta"))
    fedlit_cli(f"site ledger {private.file}").refused(str(private.file), "policy.privacy", "delta", code=1)
