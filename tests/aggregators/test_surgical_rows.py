"""The effect of surgical heads, and of averaging, on a class's row."""

import copy
import itertools

import pytest
import torch
from fdam_toys import FINDINGS, FOUR, LR, SITES, WINDOW, Classifier, Scorer, Sites, batches, classifier, federation
from hypothesis import given, settings
from hypothesis import strategies as some
from simulation import Simulation, simulate
from torch import Tensor, nn

from fedlit.aggregators import Aggregator, FedAvg, FedBN, Scaffold, SurgicalHeads


def rows(done: Simulation) -> dict[str, Tensor]:
    """A class's weights and bias, by name."""
    together = torch.cat([done.tensor("head.weight"), done.tensor("head.bias")[:, None]], 1)
    return dict(zip(done.session.classes, together.clone(), strict=True))


def start_of(module: Classifier) -> dict[str, Tensor]:
    together = torch.cat([module.head.weight, module.head.bias[:, None]], 1).detach()
    return dict(zip(module.classes, together, strict=True))


def trained_alone(data: Sites, module: nn.Module, name: str, window: int = WINDOW) -> dict[str, Tensor]:
    """Rows after a site's local steps, without any averaging."""
    return rows(simulate(module, data, federation([], rounds=1, window=window, clients=[name])))


def test_figure_1():
    """Two sites, each with a niche model of two classes, stitched into one of three."""
    classes = ("Cardiomegaly", "Effusion", "Pneumonia")
    data = Sites({"one": (17, 0.4, ("Effusion",)), "two": (24, 0.5, ("Cardiomegaly",))}, classes)
    module = classifier(classes)
    head = rows(simulate(module, data, federation([SurgicalHeads()], rounds=1)))
    data.setup()
    niche = {}
    for name, client in data.clients.items():
        own = [classes.index(c) for c in client.classes]
        body, task = copy.deepcopy(module.body), nn.Linear(6, 2, dtype=torch.float64)
        task.weight.data, task.bias.data = module.head.weight.data[own].clone(), module.head.bias.data[own].clone()
        optimizer = torch.optim.SGD([*body.parameters(), *task.parameters()], lr=LR)
        for vectors, labels in itertools.islice(batches(data, name), WINDOW):
            optimizer.zero_grad()
            nn.functional.binary_cross_entropy_with_logits(task(body(vectors)), labels[:, own]).backward()
            optimizer.step()
        trained = torch.cat([task.weight, task.bias[:, None]], 1).detach()
        niche[name] = dict(zip(client.classes, trained, strict=True))
    expected = {
        "Cardiomegaly": niche["one"]["Cardiomegaly"],
        "Effusion": niche["two"]["Effusion"],
        "Pneumonia": (niche["one"]["Pneumonia"] + niche["two"]["Pneumonia"]) / 2,
    }
    assert (niche["one"]["Pneumonia"] - niche["two"]["Pneumonia"]).abs().max() > 1e-2
    assert head.keys() == expected.keys()
    for c, row in expected.items():
        assert (row - start_of(module)[c]).abs().max() > 1e-2
        torch.testing.assert_close(head[c], row, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("weights", ["uniform", "examples"])
def test_all_classes_everywhere_is_fedavg_bit_for_bit(weights):
    data = Sites({name: (size, share, ()) for name, (size, share, _) in SITES.items()}, FINDINGS)
    ends = [
        simulate(classifier(), data, federation(aggregators, 2, participation=0.6, weights=weights)).server
        for aggregators in ([FedAvg(weights)], [SurgicalHeads()])
    ]
    assert torch.equal(ends[0].w, ends[1].w)
    assert torch.equal(ends[0].stats, ends[1].stats)


OWNERS = {
    "Cardiomegaly": ["north"],
    "Effusion": ["south", "east"],
    "Nodule": ["east"],
    "Pneumonia": ["north", "south", "east", "west"],
}


def test_partial_loss_dilutes_a_class_and_surgical_heads_do_not():
    """A class of K_c of K sites moves by K_c/K of its owners' update; weight decay at the others shrinks it further."""
    decay = 0.2
    module, data = classifier(weight_decay=decay), Sites(FOUR, FINDINGS)
    before = start_of(module)
    local = {name: trained_alone(data, module, name) for name in FOUR}
    partial = rows(simulate(module, data, federation([FedAvg("uniform")], rounds=1)))
    surgical = rows(simulate(module, data, federation([SurgicalHeads()], rounds=1)))
    shrunk = (1 - LR * decay) ** WINDOW
    for c, owners in OWNERS.items():
        update = sum(local[k][c] - before[c] for k in owners) / len(owners)
        share = len(owners) / len(FOUR)
        assert update.abs().max() > 1e-2
        torch.testing.assert_close(surgical[c], before[c] + update, rtol=1e-12, atol=1e-13)
        shrinking = (1 - share) * (shrunk - 1) * before[c]
        torch.testing.assert_close(partial[c], before[c] + share * update + shrinking, rtol=1e-12, atol=1e-13)
        assert (partial[c] - surgical[c]).abs().max() < 1e-12 or share < 1
        assert (shrinking.abs().max() > 1e-2) == (share < 1)


@pytest.mark.parametrize("others", [[], [FedBN(), Scaffold(0.7)]])
def test_a_class_that_nobody_in_the_cohort_labels_keeps_its_row(others):
    module = classifier(weight_decay=0.1, momentum=0.9)
    last, seen = start_of(module), set()

    def check(done: Simulation) -> None:
        nonlocal last
        labelled = {c for name in done.cohorts[-1] for c in done.session.clients[name].classes}
        now = rows(done)
        for c, row in now.items():
            assert torch.equal(row, last[c]) == (c not in labelled)
            seen.add((c, c in labelled))
        last = now

    fed = federation([SurgicalHeads(), *others], rounds=12, window=2, participation=0.3, optimizer_state="keep")
    simulate(module, Sites(SITES, FINDINGS), fed, after_round=check)
    assert {c for c, labelled in seen if not labelled} == {"Cardiomegaly", "Effusion", "Nodule"}
    assert {c for c, labelled in seen if labelled} == set(FINDINGS)


class Push(Aggregator):
    """Local training with a known result: each site's weights move by a fixed vector."""

    def compute_gradient(self, ctx, batches) -> Tensor:
        ctx.grad.copy_(push(ctx.client.name, ctx.layout.size))
        return ctx.grad.sum()


def push(name: str, size: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(sum(name.encode())), dtype=torch.float64)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    some.lists(
        some.tuples(some.integers(2, 40), some.sets(some.sampled_from(FINDINGS), max_size=3)), min_size=1, max_size=5
    ),
    some.sampled_from(["uniform", "examples"]),
    some.sampled_from([1.0, 0.5]),
)
def test_a_row_is_the_weighted_mean_over_those_who_label_its_class(sites, weights, participation):
    names = [f"site {k}" for k in range(len(sites))]
    data = Sites({n: (size, 0.5, tuple(lacking)) for n, (size, lacking) in zip(names, sites, strict=True)}, FINDINGS)
    module = classifier(lr=1.0)
    fed = federation([SurgicalHeads(), Push()], rounds=1, window=1, weights=weights, participation=participation)
    done = simulate(module, data, fed)
    pi = {n: size if weights == "examples" else 1 for n, (size, _) in zip(names, sites, strict=True)}
    moved = {n: push(n, done.session.layout.size) for n in names}
    before = start_of(module)
    for row, (c, after) in enumerate(rows(done).items()):
        owners = [n for n in done.cohorts[0] if c in done.session.clients[n].classes]
        if not owners:
            assert torch.equal(after, before[c])
            continue
        expected = 0
        for n in owners:
            weight, bias = done.tensor("head.weight", moved[n])[row], done.tensor("head.bias", moved[n])[row]
            expected = expected + pi[n] * (before[c] - torch.cat([weight, bias[None]]))
        expected = expected / sum(pi[n] for n in owners)
        torch.testing.assert_close(after, expected, rtol=1e-12, atol=1e-12)


def test_variables_of_an_objective_go_with_the_rows_of_their_classes():
    """a, b and the dual alpha of a class are averaged over the clients that label it too."""
    torch.manual_seed(3)
    module, still = Scorer(FINDINGS, hidden=6, lr=1.0).double(), Scorer(FINDINGS, hidden=6, lr=0.0).double()
    still.load_state_dict(module.state_dict())
    ends = [
        simulate(m, Sites(FOUR, FINDINGS), federation([SurgicalHeads(), Push()], rounds=1, window=1))
        for m in (module, still)
    ]
    for name, sign in (("a", -1), ("b", -1), ("alpha", 1)):
        after, before = (end.tensor(f"objective.{name}") for end in ends)
        for row, c in enumerate(FINDINGS):
            vectors = [push(n, ends[0].session.layout.size) for n in OWNERS[c]]
            mean = sum(ends[0].tensor(f"objective.{name}", v)[row] for v in vectors) / len(vectors)
            torch.testing.assert_close(after[row], before[row] + sign * mean, rtol=1e-12, atol=1e-12)
