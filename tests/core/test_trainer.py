"""What a module finds instead of the Trainer and its logger."""

import re

import pytest
import torch
from refusals import refused
from scripted import Net, fit, two

from fedlit.core.errors import ConfigError, TrainingError

pytestmark = pytest.mark.usefixtures("folder")


class Asking(Net):
    """Asks for something while its optimizer is made, in a step, or while it is scored."""

    def __init__(self, where: str, asks):
        super().__init__()
        self.where, self.asks = where, asks

    @property
    def planned(self) -> int:
        return self.trainer.estimated_stepping_batches

    def configure_optimizers(self):
        if self.where == "optimizer":
            self.asks(self)
        return super().configure_optimizers()

    def training_step(self, batch, batch_idx):
        if self.where == "step":
            self.asks(self)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch, batch_idx):
        if self.where == "score":
            self.asks(self)
        return super().validation_step(batch, batch_idx)


def asking(where: str, asks) -> Asking:
    torch.manual_seed(0)
    return Asking(where, asks)


KIND = {"optimizer": ConfigError, "step": TrainingError, "score": TrainingError}
HERE = rf"{re.escape(__file__)}, line \d+: expected a module that needs no"


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("where", "asks", "words"),
    [
        ("optimizer", lambda m: m.trainer.estimated_stepping_batches, "self.trainer.estimated_stepping_batches; set "
         "federation.schedule for a rate that follows the rounds, or pass the number to the constructor"),
        ("optimizer", lambda m: m.planned, "self.trainer.estimated_stepping_batches; set federation.schedule"),
        ("optimizer", lambda m: m.trainer.datamodule.num_classes, "self.trainer.datamodule; pass what it needs"),
        ("step", lambda m: m.trainer.max_epochs, "self.trainer.max_epochs; set federation.schedule"),
        ("step", lambda m: m.lr_schedulers(), "self.trainer.lr_scheduler_configs; learning rates change between"),
        ("score", lambda m: m.trainer.callback_metrics["x"], "self.trainer.callback_metrics; a callback of fedlit"),
    ],
)  # fmt: skip
def test_an_attribute_of_the_trainer_is_refused_with_what_to_use_instead(where, asks, words, workers):
    with refused(KIND[where], words) as raised:
        fit(asking(where, asks), two(), workers=workers)
    assert re.match(f"{HERE} Trainer, found ", str(raised.value))


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("where", "asks", "found"),
    [
        ("optimizer", lambda m: m.logger.log_hyperparams({}), "m.logger.log_hyperparams"),
        ("step", lambda m: m.trainer.logger.log_metrics({}), "m.trainer.logger.log_metrics"),
        ("step", lambda m: m.loggers[0], "m.loggers[0]"),
        ("score", lambda m: m.logger.experiment.add_image("x", None), "m.logger.experiment.add_image"),
    ],
)
def test_the_logger_is_refused_with_what_to_use_instead(where, asks, found, workers):
    with refused(
        ConfigError if where == "optimizer" else TrainingError, found, "self.log", "state.run.artifact"
    ) as raised:
        fit(asking(where, asks), two(), workers=workers)
    assert re.match(f"{HERE} logger, found ", str(raised.value))


def test_what_is_the_same_in_a_federation_works():
    def asks(module: Net) -> None:
        assert module.logger is None
        assert not module.loggers
        assert not module.trainer.sanity_checking
        assert module.trainer.is_global_zero
        assert module.trainer.world_size == 1
        assert module.trainer.global_step == module.global_step
        assert module.trainer.current_epoch == module.current_epoch
        assert not hasattr(module.trainer, "_results")
        module.print("here")

    fit(asking("step", asks), two())


def test_a_mistake_that_has_nothing_to_do_with_it_stays_itself():
    with pytest.raises(AttributeError, match="'NoneType' object has no attribute 'shape'"):
        fit(asking("step", lambda m: None .shape), two())  # fmt: skip
    with pytest.raises(AttributeError, match="has no attribute 'logger_of'"):
        fit(asking("step", lambda m: m.logger_of()), two())


def test_a_step_for_the_test_is_named_once(recwarn: pytest.WarningsRecorder):
    class Tested(Net):
        def test_step(self, batch, batch_idx):
            return self(batch[0])

    fit(Tested(), two())
    fit(Tested(), two())
    said = [str(warning.message) for warning in recwarn if "Tested" in str(warning.message)]
    assert said == ["Tested.test_step is not called; test sets are scored by validation_step"]
