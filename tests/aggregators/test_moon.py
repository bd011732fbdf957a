"""MOON against its loss written by hand, its first round, and the state of layers around its extra passes."""

import torch
from canon_oracle import assert_equal, trained_by_fedlit
from simulation import federated, simulate
from toys import ToyData, ToyNet

from fedlit.aggregators import MOON, FedAvg
from fedlit.testing import OwnRows


def test_three_rounds_equal_the_loss_by_hand():
    mu, temperature = 2.0, 0.4
    done, hand = trained_by_fedlit([MOON(mu, temperature)], rounds=4)
    last = {}
    for cohort in done.cohorts:
        start, ends = dict(hand.x), {}
        for k in cohort:
            fixed = [hand.at(weights).eval() for weights in (start, last[k])] if k in last else []

            def loss(module, batch, fixed=fixed):
                features = module.body(batch[0])
                total = module.objective(module.head(features), batch[1])
                terms = []
                for image, z in enumerate(features) if fixed else ():
                    with torch.no_grad():
                        others = [model.body(batch[0][image : image + 1])[0] for model in fixed]
                    near, far = ((z @ o) / (z.norm() * o.norm()) / temperature for o in others)
                    terms.append(-torch.log(torch.exp(near) / (torch.exp(near) + torch.exp(far))))
                return total + mu * sum(terms) / len(terms) if terms else total

            ends[k] = last[k] = hand.local(k, start, loss=loss)
        hand.average(cohort, ends)
    assert any(set(one) & set(other) for one, other in zip(done.cohorts, done.cohorts[1:], strict=False))
    assert_equal(done, hand)


def run(aggregator, after_round=lambda done: None):
    torch.manual_seed(0)
    federation = federated([aggregator, OwnRows()], rounds=2, window=3)
    return simulate(ToyNet(), ToyData(3, labelled=2), federation, "32-true", after_round)


def test_the_first_round_and_mu_zero_are_fedavg_and_later_rounds_are_not():
    """The extra passes change neither statistics nor random numbers of dropout."""
    rounds = {}
    for aggregator in (FedAvg(), MOON(0.0), MOON(5.0)):
        kept = rounds[getattr(aggregator, "mu", None)] = []
        run(aggregator, lambda done, kept=kept: kept.append((done.server.w.clone(), done.server.stats.clone())))
    for mu, equal in ((0.0, (True, True)), (5.0, (True, False))):
        for number in (0, 1):
            for ours, plain in zip(rounds[mu][number], rounds[None][number], strict=True):
                assert torch.equal(ours, plain) == equal[number]


def test_layers_are_left_as_they_were():
    done = run(MOON())
    module = done.session.engine._pool.worker.local.module
    assert not module.head._forward_pre_hooks
    assert all(part.training for part in module.modules())
    kept = next(iter(done.states.values())).aggregators[0]
    assert kept["w"].shape == done.server.w.shape
    assert kept["trained"] == 1
    assert kept["stats"].abs().sum() > 0
