"""Messages of a session before it trains, and its initial state."""

import pytest
import torch
from engine_rounds import opened, play_round
from toys import ToyData, ToyNet

from fedlit.aggregators import Aggregator, FedProx, Scaffold
from fedlit.core.fabric import make_fabric
from fedlit.data import PhantomCXR
from fedlit.federation.assembly import assemble
from fedlit.federation.description import announcement, label_schemes, without_positives
from fedlit.federation.federation import Federation
from fedlit.federation.monitor import Monitor
from fedlit.models import ImageClassifier
from fedlit.schedules import ConstantSchedule


def test_clients_without_positives_of_a_class_are_allowed_and_reported(tmp_path):
    data = PhantomCXR(hospitals=2, images=40, image_size=16, batch_size=4, cache_dir=str(tmp_path))
    data.setup("fit")
    session = assemble(Federation(workers=1), ImageClassifier(data.classes, "small_cnn"), data, make_fabric("cpu"))
    lacking = {}
    for name, client in data.clients.items():
        positive = (client.train.labels == 1).any(0).tolist()
        lacking[name] = [label for label, found in zip(data.classes, positive, strict=True) if not found]
    expected = [f"{name} ({', '.join(classes)})" for name, classes in lacking.items() if classes]
    assert expected
    assert without_positives(session) == f"no positive training image at {', '.join(expected)}"


def test_who_labels_what_is_said_where_clients_differ():
    many = assemble(Federation(workers=1), ToyNet(), ToyData(clients=11, labelled=1), make_fabric("cpu"))
    assert label_schemes(many).endswith("; and 3 more clients")
    same = assemble(Federation(), ToyNet(), ToyData(clients=3), make_fabric("cpu"))
    assert label_schemes(same) == ""


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


class Adaptive(ToyNet):
    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters())


@pytest.mark.parametrize(
    ("aggregator", "module", "warned"),
    [(Scaffold, Adaptive, True), (Scaffold, ToyNet, False), (FedProx, Adaptive, False)],
)
def test_control_variates_with_an_adaptive_optimizer_are_warned_of(aggregator, module, warned):
    with opened(Federation([aggregator()]), module(), ToyData()) as (session, _):
        said = announcement(session, Monitor("val/loss", "min"))
    assert any("Scaffold corrects the gradients by control variates, and Adam" in line for line in said) == warned
