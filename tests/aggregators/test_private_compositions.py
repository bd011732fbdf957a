"""DPSGD beside others: sums are clipped and noised first; corrections, masks and frozen layers act on the result."""

import copy

import numpy as np
import pytest
import torch
from private_toys import EqualClients, PlainNet, local
from toys import CLASSES, ToyNet

from fedlit.aggregators import CODASCA, DPSGD, FedBNPlus, SurgicalHeads
from fedlit.core.batches import PoissonStream
from fedlit.core.hooks import initial_client_state
from fedlit.core.messages import Broadcast, Client, Round
from fedlit.core.rounds import client_round
from fedlit.objectives import AUCSaddle

CLIP, NOISE, BATCH, RATE, GAMMA, STEPS = 0.05, 0.7, 8, 0.1, 0.3, 2


def trained_norms() -> ToyNet:
    """A network with BatchNorm whose statistics are not those of a new layer."""
    made = ToyNet(drop=0.0)
    made.body[1].running_mean.uniform_(-0.5, 0.5)
    made.body[1].running_var.uniform_(0.5, 2)
    return made


def saddle() -> PlainNet:
    made = PlainNet()
    made.objective = AUCSaddle(prior=0.3, start="zeros")
    made.objective.build(len(made.classes))
    return made


CASES = {"FedBNPlus": (FedBNPlus(), trained_norms), "CODASCA": (CODASCA(GAMMA), saddle),
         "SurgicalHeads": (SurgicalHeads(), PlainNet)}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_two_steps_are_those_that_are_written_down(name):
    torch.manual_seed(0)
    other, made = CASES[name]
    module = made().double()
    model, private = local(module, [other, DPSGD(CLIP, NOISE, delta=1e-3)]), copy.deepcopy(module)
    layout, start = model.layout, model.flat.w.detach().clone()
    data = EqualClients(clients=1, size=40, labelled=2)
    data.setup()
    held = data.clients["site-0"]
    stream = PoissonStream(held.train, BATCH, np.full(40, ""), b"secret", "site-0")
    rnd = Round(0, 0, 1.0, STEPS, "steps", 0, False, False)
    state = initial_client_state(model.aggregators, layout)
    sent = [each.broadcast(each.server_state(layout, start.clone()), rnd) for each in model.aggregators]
    shift = torch.zeros_like(start)
    if name == "CODASCA":
        sent[0]["c"], state.aggregators[0]["c"] = torch.randn_like(start), torch.randn_like(start)
        sent[0]["centre"] = start + 0.1 * torch.randn_like(start)
        shift = sent[0]["c"] - state.aggregators[0]["c"]
    down = Broadcast(start.clone(), model.flat.stats.clone(), sent)
    client = Client("site-0", held.classes, 40, 1.0)
    payload, after, _ = client_round(model, stream, client, state, down, rnd)

    w, dual, mean = start.clone(), layout.slices["dual"], torch.zeros_like(start)
    named, norms = dict(private.named_parameters()), [m for m in private.modules() if "Norm" in type(m).__name__]
    if name == "FedBNPlus":
        assert not {entry.name for entry in layout.parameters} & {"body.1.weight", "body.1.bias"}
        norms[0].eval()
    for step in range(STEPS):
        for entry in layout.parameters:
            named[entry.name].data.copy_(entry.view(w))
        drawn, total = stream[step], torch.zeros_like(w)
        assert drawn.examples
        for images, labels in drawn.examples:
            private.zero_grad()
            private.objective(private(images.double()), labels.double()).backward()
            gradient = torch.zeros_like(w)
            for entry in layout.parameters:
                if named[entry.name].grad is not None:
                    entry.view(gradient).copy_(named[entry.name].grad)
            total += gradient * min(1.0, CLIP / float(gradient.norm()))
        noise = torch.from_numpy(drawn.generator.standard_normal(len(w)))
        step_gradient = (total + NOISE * CLIP * noise) / BATCH
        step_gradient[dual] *= -1
        if name == "CODASCA":
            pull = GAMMA * (w - sent[0]["centre"])
            pull[dual] = 0
            step_gradient += pull
        mean += step_gradient / STEPS
        w -= RATE * (step_gradient + shift)
    change = w - start
    if name == "SurgicalHeads":
        (unlabelled,) = (number for number, each in enumerate(CLASSES) if each not in held.classes)
        for entry in layout.parameters:
            if entry.name.startswith("head"):
                entry.view(change)[unlabelled] = 0
    torch.testing.assert_close(payload.vectors["w"], change, rtol=0, atol=1e-9)
    if name == "CODASCA":
        torch.testing.assert_close(after.aggregators[0]["c"], mean, rtol=0, atol=1e-9)
    assert torch.equal(payload.vectors["stats"], torch.zeros_like(down.stats))
