"""Users' modules: the handling of their steps and metrics."""

from pathlib import Path

import pytest
import torch
from foreigners import Plain, Unvalidated
from runs import Place, assert_same_run
from torchmetrics import MeanMetric

from fedlit.core.fabric import make_fabric
from fedlit.core.module import collect_logs, overrides, step_of
from fedlit.federation.examinations import OF_MODULES, examine


class WithMean(Unvalidated):
    """Logs the mean of its metric."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = MeanMetric()


def test_a_module_of_two_processes_logs_metrics_of_its_own(tmp_path: Path):
    """torchmetrics would gather from all ranks at each logged value, but ranks take different numbers of steps."""
    place = Place(tmp_path, "--data foreigners.Digits --model foreigners.Plain --federation.rounds 2")
    ranks = place.ranks("--name two")
    one = place.fit("--name one --fabric.accelerator cpu")
    for command in (*ranks, one):
        assert command.wait() == 0, command.output
    two = dict((row[:2], float(row[2])) for row in place.run("two").metrics())
    for step, key, value in place.run("one").metrics():
        assert two[step, key] == pytest.approx(float(value), rel=1e-5), key


def test_worker_processes_log_what_one_process_logs(tmp_path: Path):
    place = Place(tmp_path, "--data foreigners.Digits --model foreigners.Plain --federation.rounds 2")
    commands = [place.fit("--name one"), place.fit("--name two --federation.workers 2")]
    for command in commands:
        assert command.wait() == 0, command.output
    assert_same_run(place.run("one"), place.run("two"))


def test_a_metric_is_accumulated_until_the_round_ends():
    module, fabric = WithMean(), make_fabric("cpu")
    collect_logs(module, fabric)
    for rounds in range(2):
        fabric.begin()
        for batch in ([1.0, 3.0], [11.0 + rounds]):
            module.mean.update(torch.tensor(batch))
            module.log("mean", module.mean, on_epoch=True)
        assert fabric.means() == {"mean": pytest.approx(5 + rounds / 3)}


def test_what_is_not_for_the_logger_is_not_logged():
    module, fabric = WithMean(), make_fabric("cpu")
    collect_logs(module, fabric)
    module.log("shown", 1.0, prog_bar=True, logger=False)
    module.log_dict({"kept": torch.tensor(2.0, requires_grad=True)}, sync_dist=True)
    assert list(fabric.logged) == ["kept"]
    assert not fabric.logged["kept"][0].requires_grad


def test_a_step_may_leave_the_number_of_its_batch_out():
    assert step_of(Unvalidated(), "training_step").__func__ is Unvalidated.training_step
    g = torch.Generator().manual_seed(0)
    batch = torch.randn(2, 1, 4, 4, generator=g), torch.tensor([0, 3])
    plain = Plain()
    collect_logs(plain, make_fabric("cpu"))
    torch.testing.assert_close(step_of(plain, "training_step")(batch, 5), plain.training_step(batch))


def test_what_is_overridden():
    assert overrides(Plain(), "validation_step")
    assert not overrides(Unvalidated(), "validation_step")


def test_a_plain_module_is_accepted_without_a_word(recwarn: pytest.WarningsRecorder):
    examine(Plain(), OF_MODULES)
    examine(Unvalidated(), OF_MODULES)
    assert not recwarn.list
