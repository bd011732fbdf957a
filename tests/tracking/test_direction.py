"""Which metrics fall when a model gets better."""

import pytest

from fedlit.tracking.names import better

LESS = "val/loss val/loss_client_mean train/loss val/auc_loss/Edema client/a/train_loss client/loss/loss own/focal_loss"
MORE = "val/auroc_macro val/auroc/Volume_loss client/loss/auroc_macro client/q25/auroc/Edema val/auroc_shared auto"
UNKNOWN = "drift/client_drift own/score time/round_s val/glossy val/accuracy round/lr score"


@pytest.mark.parametrize(
    ("metrics", "mode"), [(LESS, "min"), (MORE, "max"), (UNKNOWN, None)], ids=["min", "max", "none"]
)
def test_losses_fall_and_auroc_rises(metrics, mode):
    assert {metric: better(metric) for metric in metrics.split()} == dict.fromkeys(metrics.split(), mode)
