"""Messages of a session before it trains, and its initial state."""

import pytest
import torch
from engine_rounds import opened, play_round
from toys import ToyData, ToyNet

from fedlit.aggregators import Aggregator
from fedlit.core.fabric import make_fabric
from fedlit.data import PhantomCXR
from fedlit.federation.assembly import assemble
from fedlit.federation.description import label_schemes, without_positives
from fedlit.federation.federation import Federation
from fedlit.models import ImageClassifier
from fedlit.schedules import ConstantSchedule


@pytest.mark.parametrize("images", [40, 900])
def test_clients_without_positives_of_a_class_are_allowed_and_reported(images, tmp_path):
    data = PhantomCXR(hospitals=2, images=images, image_size=16, batch_size=4, cache_dir=str(tmp_path))
    data.setup("fit")
    session = assemble(Federation(workers=1), ImageClassifier(data.classes, "small_cnn"), data, make_fabric("cpu"))
    said = without_positives(session)
    lacking = {name: [] for name in data.clients}
    for name, client in data.clients.items():
        for column, label in enumerate(data.classes):
            if not (client.train.labels[:, column] == 1).any():
                lacking[name].append(label)
    expected = [f"{name} ({', '.join(classes)})" for name, classes in lacking.items() if classes]
    assert bool(expected) == (images == 40)
    assert said == (f"no positive training image at {', '.join(expected)}" if expected else "")


def test_who_labels_what_is_said_where_clients_differ():
    different = assemble(Federation(), ToyNet(), ToyData(clients=3, labelled=2), make_fabric("cpu"))
    assert label_schemes(different).startswith("site-0 labels Edema, Effusion; site-1 labels ")
    many = assemble(Federation(workers=1), ToyNet(), ToyData(clients=11, labelled=1), make_fabric("cpu"))
    assert label_schemes(many).endswith("; and 3 more clients")
    alike = assemble(Federation(), ToyNet(), ToyData(clients=3), make_fabric("cpu"))
    assert label_schemes(alike) == ""


def test_each_round_draws_a_cohort_of_its_own():
    cohorts = []
    for seed in (0, 0, 1):
        federation = Federation(participation=0.5, rounds=8, workers=1)
        session = assemble(federation, ToyNet(), ToyData(clients=6), make_fabric("cpu"), seed)
        cohorts.append([session.round(index).cohort for index in range(8)])
        session.engine.close()
    first, again, other = cohorts
    assert first == again
    assert first != other
    assert {len(cohort) for cohort in first} == {3}
    assert len(set(first)) > 4
    assert {name for cohort in first for name in cohort} == set(session.clients)


class Anchored(Aggregator):
    """Keeps the initial weights as they were given to it."""

    def server_state(self, layout, w):
        return {"start": w}


def test_the_initial_weights_that_an_algorithm_keeps_stay_what_they_were():
    federation = Federation([Anchored(), Anchored()], rounds=1, schedule=ConstantSchedule(2, "steps"))
    with opened(federation, ToyNet(), ToyData(2)) as (session, server):
        before = server.w.clone()
        play_round(session, server)
        session.model(server)
    assert not torch.equal(server.w, before)
    assert all(torch.equal(state["start"], before) for state in server.aggregators)
