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


STEP = "self.trainer.estimated_stepping_batches"
ASKED = {
    "steps": ("optimizer", lambda m: m.trainer.estimated_stepping_batches, (STEP, "federation.schedule")),
    "steps in a property": ("optimizer", lambda m: m.planned, (STEP,)),
    "the data": ("optimizer", lambda m: m.trainer.datamodule.num_classes, ("self.trainer.datamodule",)),
    "schedulers": ("step", lambda m: m.lr_schedulers(), ("self.trainer.lr_scheduler_configs",)),
    "metrics": ("score", lambda m: m.trainer.callback_metrics["x"], ("self.trainer.callback_metrics",)),
    "its logger": ("optimizer", lambda m: m.logger.log_hyperparams({}), ("m.logger.log_hyperparams", "self.log")),
    "the Trainer's logger": (
        "step", lambda m: m.trainer.logger.log_metrics({}), ("m.trainer.logger.log_metrics", "self.log")),
    "loggers": ("step", lambda m: m.loggers[0], ("m.loggers[0]", "self.log")),
    "a page": ("score", lambda m: m.logger.experiment.add_image("x", None), ("state.run.artifact",)),
}  # fmt: skip


@pytest.mark.parametrize(
    ("what", "workers"),
    [*((what, 1) for what in ASKED), pytest.param("the Trainer's logger", 2, marks=pytest.mark.slow)],
)
def test_what_only_a_trainer_has_is_refused_with_file_line_and_what_to_use_instead(what, workers):
    where, asks, names = ASKED[what]
    with refused(ConfigError if where == "optimizer" else TrainingError, *names) as raised:
        fit(asking(where, asks), two(), workers=workers)
    assert re.match(rf"{re.escape(__file__)}, line \d+: ", str(raised.value))


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
