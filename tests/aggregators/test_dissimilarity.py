"""Client drift D^2 of FDAM's Assumption 2: ``1/K sum_k |grad f_k - grad f|^2`` at a common point."""

from functools import partial
from pathlib import Path

import pytest
import torch
from lightning.pytorch import LightningModule
from saddle_toys import Scorer, Sites
from simulation import federated, simulate
from strangers import fit, seeded
from torch import nn
from torch.utils.data import TensorDataset
from toys import Problems, Quadratic, SaddleModule, ToyData, ToyNet

from fedlit.aggregators import GradientDissimilarity, Scaffold
from fedlit.data.in_memory import GivenClients
from fedlit.tracking.base import MetricsFile

federation = partial(federated, rounds=1, weights="uniform")


def measured(done, position: int = 0) -> list[float]:
    return done.server.aggregators[position]["measured"].tolist()


def test_on_quadratics_it_is_eq_4_at_the_start_of_each_round():
    problems = {"one": (1.0, 2.0), "two": (3.0, -1.0), "three": (0.5, 4.0)}
    points, found = [], []

    def keep(done):
        found.append(measured(done)[0])
        points.append(float(done.server.w))

    simulate(
        Quadratic(0.75).double(),
        Problems(**problems),
        federation([GradientDissimilarity()], rounds=4),
        after_round=keep,
    )
    for x, drift in zip([0.75, *points], found, strict=False):
        gradients = [curvature * (x - optimum) for curvature, optimum in problems.values()]
        mean = sum(gradients) / 3
        assert drift == pytest.approx(sum((g - mean) ** 2 for g in gradients) / 3, rel=1e-9)


def test_the_dual_is_measured_apart():
    done = simulate(
        SaddleModule().double(), Problems(one=(1.0, 2.0), two=(3.0, 6.0)), federation([GradientDissimilarity()])
    )
    # at x = y = 1 the gradients in x are a + 1 = 2 and 4, in y 1 - b = -1 and -5
    assert measured(done) == pytest.approx([1.0, 4.0], rel=1e-9)


class Noisy(LightningModule):
    """``<x, z>`` with z of the batch: a client's gradient is the mean of its z; a batch adds noise."""

    def __init__(self, size: int = 20) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(size))

    def training_step(self, batch, batch_idx):
        return (batch[0] @ self.x).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


def noisy_clients(apart: float) -> GivenClients:
    """Clients whose gradients have different means and much noise."""
    generator, sets = torch.Generator().manual_seed(0), {}
    for name, sign in (("one", 1.0), ("two", -1.0)):
        z = torch.randn(400, 20, generator=generator, dtype=torch.float64)
        sets[name] = TensorDataset(z + sign * apart - z.mean(0), torch.zeros(400))
    return GivenClients(sets, batch_size=4)


@pytest.mark.parametrize("apart", [0.0, 0.3])
def test_the_noise_of_batches_does_not_count(apart):
    found = []
    given = federation([GradientDissimilarity(batches=2)], rounds=40, window=1)
    simulate(Noisy().double(), noisy_clients(apart), given, after_round=lambda done: found.append(measured(done)[0]))
    values = torch.tensor(found)
    exact, noise = 20 * apart**2, 20 / 8  # |mean of a client's z|^2 and the variance of a mean of 8
    error = float(values.std() / len(values) ** 0.5)
    assert abs(float(values.mean()) - exact) < 4 * error
    assert 4 * error < noise / 4  # what the naive estimate would be too large by


def test_it_changes_neither_weights_nor_statistics_and_other_algorithms_go_on():
    torch.manual_seed(0)
    still = simulate(ToyNet(lr=0.0).double(), ToyData(), federation([GradientDissimilarity()], window=1))
    torch.manual_seed(0)
    alone = simulate(ToyNet(lr=0.0).double(), ToyData(), federation([], window=1))
    torch.testing.assert_close(still.server.w, alone.server.w, rtol=0, atol=0)
    assert not torch.equal(still.server.stats, alone.server.stats)  # the step's batch is another one
    both = simulate(Scorer(), Sites(), federation([Scaffold(), GradientDissimilarity(every=2)], rounds=3))
    assert measured(both, 1)[0] > 0


def test_between_measurements_nothing_is_sent():
    sent = []
    given = federation([GradientDissimilarity(every=2)], rounds=3)
    simulate(Quadratic(0.75).double(), Problems(one=(1.0, 2.0), two=(3.0, -1.0)), given,
             after_round=lambda done: sent.append(measured(done)[0]))  # fmt: skip
    assert sent[0] == sent[1] != sent[2]


@pytest.mark.slow
def test_a_resume_and_other_processes_change_nothing(tmp_path: Path):
    """Like `check_aggregator`, whose clients own rows, which this aggregator refuses."""

    def run(place: str, rounds: int, resume: Path | None = None, workers: int = 1) -> torch.Tensor:
        aggregators = [Scaffold(), GradientDissimilarity(every=2)]
        given = {"aggregators": aggregators, "rounds": rounds, "participation": 0.7, "workers": workers}
        return fit(seeded(ToyNet), tmp_path / place, resume, ToyData(4), **given)[0]

    whole = run("whole", 6)
    run("parts", 3)
    assert torch.equal(run("parts", 6, tmp_path / "parts/checkpoints/round-000003", workers=2), whole)
    found, other = (
        [row for row in MetricsFile(tmp_path / place / "metrics.csv").rows() if "dissimilarity" in row[1]]
        for place in ("whole", "parts")
    )
    assert found == other
    # The fourth round, which does not measure, is the first behind the resume.
    values = [value for _, _, value in found]
    assert values[0] == values[1] != values[2] == values[3] != values[4] == values[5]
