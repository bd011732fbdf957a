"""An approved plan covers all that is broadcast before the first round, and questions are limited for each part."""

import pytest
import torch
from at_sites import classifier

from fedlit.sites.messages import FAILED, REPLY, new_run

NORMALISED = {"class_path": "ImageClassifier", "init_args": classifier()["init_args"] | {"norm": "batch"}}


@pytest.mark.parametrize(("name", "vectors"), [
    ("Scaffold", ["0/c"]), ("CODASCA", ["0/c", "0/centre"]), ("CODA", ["0/centre"]), ("FedDyn", []), ("MOON", [])
])  # fmt: skip
def test_what_an_algorithm_adds_to_a_first_round_is_what_it_begins_with(approving, name, vectors):
    objective = {"objective": "AUCSaddle"} if name in ("CODASCA", "CODA") else {}
    server = approving(aggregators=[{"class_path": name}], model=classifier(**objective))
    first = {"0/c": torch.zeros_like(server.model.w), "0/centre": server.model.w.clone()}
    honest = {vector: first[vector] for vector in vectors}
    for vector in vectors:
        server.refuses(server.train(**honest | {vector: honest[vector] + 1e-3}), "of the first round", "refused")
        server.refuses(server.train(), "expected the vectors", "refused")
    server.refuses(server.train(**honest, **{"7/c": server.model.w}), "expected the vectors", "refused")
    answer = server.train(**honest)
    assert answer.verb == REPLY, answer.content


def test_statistics_are_those_of_the_plan_until_the_site_has_measured_them(approving):
    server = approving(model=NORMALISED)
    odd = server.down()["stats"] + 1
    assert len(odd)
    server.refuses(server.train(stats=odd), "the statistics", "refused")
    assert server.train(verb="measure").verb == REPLY
    assert server.train(stats=odd).verb == REPLY


@pytest.mark.parametrize("at", [-1, 0])
def test_an_evaluation_before_the_first_round_is_of_the_plans_weights(approving, at):
    server = approving()
    server.refuses(server.evaluate(at=at, w=server.model.w + 1e-3), "are not those of the approved plan", "refused")
    assert server.evaluate(at=at).verb == REPLY


def test_questions_about_a_part_are_limited_over_names_of_rounds_and_runs(attack):
    server = attack()
    answered = 0
    for number in range(30):
        if number % 10 == 0:
            server.prepare(run=new_run(), rounds=10**6)
        answered += server.evaluate(at=number, w=server.model.w + number).verb == REPLY
    assert answered == 10
    server.refuses(server.evaluate(at=40), "floors.questions (10)", "refused")
    assert server.evaluate(at=40, part="test").verb == REPLY  # another part
    assert server.train().verb == REPLY
    assert server.evaluate(at=50).verb == server.evaluate(at=51).verb == REPLY
    assert server.evaluate(at=52).verb == FAILED
