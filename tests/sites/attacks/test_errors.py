"""What fails after images were read says nothing about them, and counts like an answer."""

import json

import pytest
import torch
from at_sites import classifier
from attacker import a_plan

from fedlit.sites.ledger import Ledger
from fedlit.sites.messages import FAILED, REPLY, new_run

OVERFLOWING = {"class_path": "RatioLoss", "init_args": {"a0": 1e38, "b0": 0.0, "prior": 0.5}}
SAID = "failed at the site (the site's own log has the details; its administrator may set leaves.errors: true)"


def trapped(server) -> torch.Tensor:
    """Weights whose loss overflows at the first positive of a class."""
    w = server.model.w.clone()
    entries = {each.name: each for each in server.model.layout.parameters}
    entries["head.weight"].view(w).zero_()
    entries["head.bias"].view(w).fill_(200.0)[0] = -1000.0
    return w


def overflowing() -> dict:
    model = classifier(lr=1e-30)
    return {**model, "init_args": {**model["init_args"], "objective": OVERFLOWING}}


def asked(server, verb: str):
    if verb == "evaluate":
        return server.evaluate(w=server.model.w.clone() * 1e30)
    return server.train(verb=verb, w=trapped(server))


@pytest.mark.parametrize("verb", ["train", "evaluate"])
def test_a_failure_on_images_tells_neither_step_nor_value_and_counts(attacked, verb):
    server = attacked
    assert server.prepare(run=new_run(), model=overflowing()).verb == REPLY
    assert asked(server, verb).content["reason"] == SAID
    line = server.ledger()[-1]
    assert line["touched"]
    assert line["answer"] == FAILED
    assert line["run"] == server.run
    assert line["examples"] == (31 if verb == "evaluate" else 64)
    assert len(line["config"]) == len(line["question"]) == 64
    assert line["view" if verb == "evaluate" else "client"] != ""


def test_the_site_may_let_the_words_of_a_failure_leave(attack):
    server = attack(leaves={"errors": True})
    server.prepare(model=overflowing())
    answer = asked(server, "train")
    assert answer.verb == FAILED
    assert answer.content["reason"] != SAID
    assert server.ledger()[-1]["touched"]


def test_failed_rounds_are_counted_with_the_others(attack):
    server = attack(rounds=2)
    for _ in range(2):
        server.prepare(run=new_run(), model=overflowing())
        assert asked(server, "train").content["reason"] == SAID
    server.prepare(run=new_run())
    server.refuses(server.train(), "has answered for 2 rounds in 30 days", "refused")


def test_a_failed_evaluation_is_the_one_question_of_its_part(attacked):
    attacked.prepare(run=new_run(), model=overflowing())
    assert asked(attacked, "evaluate").content["reason"] == SAID
    attacked.refuses(attacked.evaluate(), "another question about", "refused")
    assert asked(attacked, "evaluate").content["reason"] == SAID  # the same one may be asked again


def test_an_error_is_no_type_either(attacked):
    """A refusal of what comes before the images keeps its words."""
    attacked.prepare(run=new_run())
    attacked.refuses(attacked.train(w=attacked.model.w[:-1]), "weights and ", "unfit")
    assert not attacked.ledger()[-1]["touched"]
    plan = a_plan(model={"class_path": "ImageClassifier", "init_args": {"backbone": 3}})
    attacked.refuses(attacked.prepare(plan), "")
    assert "Error" not in attacked.ledger()[-1]["refused"]


def test_a_process_that_dies_on_images_has_a_line_too(attack):
    server = attack(rounds=1)
    server.prepare()
    line = {**server.ledger()[-1], "verb": "train", "client": server.client, "answer": FAILED, "touched": True}
    del line["head"]
    begun = server.state / "begun.json"  # what a process leaves that has died in a round
    begun.write_text(json.dumps(line))
    server.again()
    server.prepare(run=new_run())
    server.refuses(server.train(), "has answered for 1 rounds in 30 days", "refused")
    assert not begun.exists()


def test_a_round_is_noted_before_its_images_are_read(monkeypatch, attacked):
    noted, begin = [], Ledger.begin
    monkeypatch.setattr(Ledger, "begin", lambda ledger, entry: (noted.append(entry), begin(ledger, entry)))
    attacked.prepare(run=new_run())
    assert [attacked.train().verb, attacked.evaluate(at=1, accepted=1).verb] == [REPLY] * 2
    assert {entry.verb for entry in noted} == {"train", "evaluate"}
    assert all(entry.touched and entry.answer == FAILED for entry in noted)
