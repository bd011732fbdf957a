"""A run goes on with a site fewer, with one more, and with one that comes back; what cannot go on is refused."""

import json
from pathlib import Path

import pytest
import torch
import yaml
from at_sites import Ended, classifier
from torch import Tensor

from fedlit.aggregators import FedBN, Scaffold
from fedlit.core.batches import BatchStream
from fedlit.core.checkpoints import checkpoint
from fedlit.core.flat import FlatModel
from fedlit.core.hooks import client_mask
from fedlit.core.messages import Client
from fedlit.data import PhantomCXR
from fedlit.sites.envelope import Envelope
from fedlit.testing import OwnRows, ToyData, ToyNet

SIZES = {"site-0": 12, "site-1": 14, "site-2": 16}
"""Training images of the clients; each is at a site of its own."""


@pytest.fixture
def run(fit, sites, tmp_path):
    """Goes on with a run of three sites until so many rounds, without some of them; returns what was said."""

    def go_on(rounds: int, *away: str, more: str = "", code: int = 0) -> str:
        sites.away = set(away)
        path = "--ckpt_path last" if list(tmp_path.glob("default/*/config.yaml")) else ""
        _, out, err = fit(f"--model.drop 0 --federation.rounds {rounds} {path} {more}", code=code)
        return " ".join((out + err).split())

    return go_on


def last(folder: Path) -> Path:
    return checkpoint.find(folder / "default" / "one" / "checkpoints", "last")


def by_hand(start: dict[str, Tensor], weights: dict[str, float], taken: dict[str, int]) -> dict[str, Tensor]:
    """A round of FedAvg: two steps of SGD at each client, after the batches it has taken, and the weighted mean."""
    data = ToyData()
    data.setup()
    mean = {name: torch.zeros_like(value) for name, value in start.items()}
    for client, weight in weights.items():
        model = ToyNet(drop=0)
        model.load_state_dict(start, strict=False)
        optimizer, stream = model.configure_optimizers(), BatchStream(data.clients[client].train, 4, 0, client)
        for number in (taken[client], taken[client] + 1):
            optimizer.zero_grad()
            model.training_step(stream[number], number).backward()
            optimizer.step()
        taken[client] += 2
        for name in mean:
            mean[name] += weight * model.state_dict()[name]
    return mean


def test_fedavg_goes_on_as_by_hand_with_a_new_site_without_it_and_with_it_again(run, sites, tmp_path):
    exchanged, taken = sites.recorded(), {"site-0": 2, "site-1": 2, "site-2": 0}
    run(1, "site-3")
    for rounds, away in ((2, ()), (3, ("site-3",)), (4, ())):
        start, members = checkpoint.tensors(last(tmp_path)), list(SIZES)[: 3 - len(away)]
        said = run(rounds, *away)
        shares = {name: SIZES[name] / sum(SIZES[n] for n in members) for name in members}
        wanted, found = by_hand(start, shares, taken), checkpoint.tensors(last(tmp_path))
        assert wanted.keys() == found.keys()
        for name in wanted:
            torch.testing.assert_close(found[name], wanted[name], rtol=1e-5, atol=1e-6)
        told = ", ".join(f"{name} {share:.3f}" for name, share in shares.items())
        who = "without site-2" if away else "with site-2"
        assert f"the run continues {who}, with new client weights: {told}; only the rounds to come" in said
        assert "starts afresh" not in said
    rows = Ended(tmp_path).kept.metrics()
    assert [float(value) for _, key, value in rows if key == "round/clients"] == [2, 3, 2, 3]
    trained = [(site, envelope.content) for site, envelope, _ in exchanged if envelope.verb == "train"]
    assert [content["accepted"] for site, content in trained if site == "site-3"] == [None, 2]
    assert [content["asked"]["index"] for site, content in trained if site == "site-1"] == [0, 1, 2, 3]


def owners_mean(ended: Ended, aggregators: list, **data) -> Tensor:
    """The weighted mean of the clients' control variates, for each weight over its owners."""
    toys = ToyData(**data)
    toys.setup()
    layout, states = FlatModel(ToyNet()).layout, ended.states()
    total, weights = torch.zeros(layout.size), torch.zeros(layout.num_groups, dtype=torch.float64)
    members = checkpoint.manifest_of(ended.kept.last).clients
    for name in members:
        client = Client(name, toys.clients[name].classes, SIZES[name], SIZES[name])
        total += SIZES[name] * states[name]["0/c"]
        weights += SIZES[name] * client_mask(aggregators, layout, client).owned.double()
    return total / layout.expand(weights).clamp(min=1)


@pytest.mark.parametrize(
    ("first", "then", "named", "options"),
    [
        ((), ("site-3",), "Scaffold, OwnRows", "--data.labelled 2"),
        pytest.param(("site-3",), (), "Scaffold, FedBN", "--federation.participation 0.7", marks=pytest.mark.slow),
    ],
    ids=["one fewer", "one more"],
)
def test_c_is_the_owners_mean_of_the_control_variates(run, tmp_path, first, then, named, options):
    known = {"Scaffold": Scaffold, "FedBN": FedBN, "OwnRows": OwnRows}
    aggregators = [known[name]() for name in named.split(", ")]
    paths = ", ".join(f"{{class_path: {'fedlit.testing.OwnRows' if n == 'OwnRows' else n}}}" for n in named.split(", "))
    more = f"--federation.aggregators='[{paths}]' {options}"
    said = [run(2, *first, more=more), run(4, *then, more=more)]
    c, wanted = (
        Ended(tmp_path).server["0/c"],
        owners_mean(Ended(tmp_path), aggregators, labelled=2 if "labelled" in options else 3),
    )
    assert c.norm() > 0.1
    torch.testing.assert_close(c, wanted, rtol=1e-4, atol=1e-6)
    assert "the state of Scaffold starts afresh at the server and at the clients" in said[1]
    assert "starts afresh" not in said[0]


def test_a_client_keeps_its_part_of_the_model_where_the_rest_begins_anew(run, sites, tmp_path):
    more = "--federation.aggregators='[Scaffold, FedBN, PersonalHeads]'"
    run(2, more=more)
    before, begun = Ended(tmp_path).states(), {}

    def between(site, envelope, answer):
        if envelope.verb == "train" and envelope.content["asked"]["index"] == 2:
            (folder,) = (tmp_path / "default" / "sites" / site).glob("*/site-*")
            begun[folder.name] = torch.load(folder / f"round-{envelope.content['accepted']:06d}.pt", weights_only=True)
        return answer(envelope.to_bytes())

    sites.between = between
    run(3, "site-3", more=more)
    assert begun.keys() == {"site-0", "site-1"}
    for name, state in begun.items():
        assert before[name]["0/c"].any()
        assert not state["0/c"].any()
        for part in ("w", "stats"):
            assert len(before[name][part])
            assert torch.equal(state[part], before[name][part])


def test_a_run_that_dies_right_after_goes_on_again(run, sites, tmp_path):
    """Before a new checkpoint is there, all of it is done once more, with the same numbers."""
    more = "--federation.aggregators='[Scaffold, FedBN]' --federation.checkpoint_every 5"
    run(2, more=more)
    saved, payloads, dies = last(tmp_path), [], [True]

    def between(site, envelope, answer):
        if envelope.verb != "train":
            return answer(envelope.to_bytes())
        if site == "site-2" and dies:
            dies.clear()
            raise KeyboardInterrupt
        reply = answer(envelope.to_bytes())
        payloads.append(Envelope.from_bytes(reply).digest)
        return reply

    sites.between = between
    with pytest.raises((AssertionError, KeyboardInterrupt)):
        run(3, "site-3", more=more)
    assert last(tmp_path) == saved
    assert "starts afresh" in run(3, "site-3", more=more)
    assert len(payloads) == 3
    assert payloads[0] == payloads[1]


def test_the_best_model_and_patience_are_of_the_rounds_with_those_who_are_there(run, tmp_path):
    """By the metric the first rounds were better, and patience would have run out if they counted."""
    more = "--federation.monitor round/clients --federation.monitor_mode max --federation.patience 2"
    run(2, more=more)
    said = run(4, "site-3", more=more)
    assert checkpoint.best(last(tmp_path)).round == 3
    assert checkpoint.rounds(last(tmp_path)) == 4
    assert "stopped after" not in said


def test_the_objectives_constants_are_those_of_the_clients_that_are_there(ran, sites, tmp_path):
    """p of AUCSaddle, the share of positives; sites with floors answer one question a round, also then."""
    data = {"class_path": "PhantomCXR", "init_args": {"hospitals": 3, "images": 60, "image_size": 16, "batch_size": 8}}
    federation = {"rounds": 1, "workers": 1, "aggregators": [{"class_path": "CODASCA"}]}
    config = {"data": data, "model": classifier("AUCSaddle"), "federation": federation, "logger": False, "name": "one"}
    file = tmp_path / "x.yaml"
    file.write_text(yaml.safe_dump(config))
    sites.rules = {f"site-{number}": {"leaves": {"counts_below": 0}} for number in (1, 2, 3)}
    seen = []
    for rounds, away in ((1, set()), (2, {"site-2"})):
        sites.away = away
        line = f"fit --config {file} --federation.rounds {rounds} --run_dir {tmp_path} --sites loopback:3"
        err = ran(line + (" --ckpt_path last" if away else "")).err
        assert "floors" not in err
        seen.append(checkpoint.tensors(last(tmp_path))["objective.p"])
    phantom = PhantomCXR(**data["init_args"])
    phantom.setup()
    shares = {name: client.train.labels.nanmean(0) for name, client in phantom.clients.items()}
    for found, names in zip(seen, (list(shares), ["hospital-01", "hospital-03"]), strict=True):
        torch.testing.assert_close(found, torch.stack([shares[name] for name in names]).mean(0), rtol=1e-5, atol=1e-6)


def test_an_algorithm_that_does_not_say_what_becomes_of_it_is_refused(run, tmp_path):
    more = "--federation.aggregators='[{class_path: at_sites.BothSides}]'"
    run(1, more=more)
    before = (last(tmp_path) / "server.pt").read_bytes()
    said = run(2, "site-3", more=more, code=1)
    assert "BothSides keeps state at the server that belongs to state at its clients" in said
    assert "resume with the first clients" in said
    assert (last(tmp_path) / "server.pt").read_bytes() == before
    run(2, more=more)


def test_clients_at_other_sites_than_before_are_refused(fit, tmp_path):
    """Two sites in the place of three have other clients each: what those kept is at another one."""
    fit("--federation.rounds 1")
    fit("--federation.rounds 2 --ckpt_path last", 2, code=1).refused("'site-2'", "'site-3'", "'site-1'")
    told = json.loads((tmp_path / "default" / "one" / "sites.json").read_text())
    assert told["clients"] == {"site-0": "site-1", "site-1": "site-2", "site-2": "site-3"}
