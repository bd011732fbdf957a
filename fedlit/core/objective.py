"""The interface of losses that have variables or constants."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedlit.core.messages import State
from fedlit.core.system.argument_types import Checked


class Loss(Checked, nn.Module):
    """Base class of losses of (logits [B, C], labels [B, C]); labels other than 0, 1, NaN are refused.

    If no label is known, the value is 0 unless the loss has a finite one; a mean over no terms is NaN.
    """

    def __call__(self, *values: Any, **named: Any) -> Tensor:
        """Return the loss."""
        loss = super().__call__(*values, **named)
        if type(self).__module__.startswith("fedlit."):  # finite without known labels; on a GPU, the check would wait
            return loss
        return zero_if_unlabelled(loss, *[*values, *named.values()][:2])


def zero_if_unlabelled(loss: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of a batch; 0 with a gradient of 0 if no label is known and it is not finite."""
    if not torch.is_tensor(loss) or loss.isfinite().all() or not labels.isnan().all():
        return loss
    return logits.sum() * 0


class Objective(Loss):
    """A loss with variables or constants, called with (logits [B, C], labels [B, C] in {0, 1, NaN}).

    A loss without them only needs to be an ``nn.Module``. Variables are parameters with one entry per class, named in
    ``per_class_parameters``; those that are maximised over also in ``dual_parameters``. Constants that depend on the
    data of the whole federation are buffers of any shape; those of shape [C] are logged. Both start from a measuring
    round: every client returns :meth:`measure`, and :meth:`settle`, or in later rounds :meth:`optimise`, gets the
    clients' weighted means. Constants of a single client come from :meth:`settle_client`.
    """

    per_class_parameters: tuple[str, ...] = ()
    dual_parameters: tuple[str, ...] = ()

    metrics_help: ClassVar[dict[str, str]] = {}
    """Descriptions of its metrics, one sentence per name, without the class; ``fedlit fit --help`` shows them.

    Metrics of an objective are its variables and constants (``objective/<name>``) and what :meth:`pooled` returns
    (``val/<name>``)."""

    @property
    def measured(self) -> bool:
        """True if it needs a measuring round before the first round; by default if it overrides :meth:`measure`."""
        return type(self).measure is not Objective.measure

    def build(self, num_classes: int) -> None:
        """Called by the model that owns it: create the variables of C classes."""

    def measure(self, logits: Tensor, labels: Tensor, all_labels: Tensor) -> State:
        """Return, on a client, the vectors that :meth:`settle` needs.

        Clients' vectors are averaged with the run's client weights, except those whose name begins with ``total/``:
        they are summed without weights, as counts over the whole federation need it.

        Args:
            logits: [n, C] of a sample of its training set.
            labels: [n, C] of that sample.
            all_labels: [N, C] of its whole training set.
        """
        return {}

    def settle(self, means: State) -> None:
        """Set variables and constants, on the server, once, before the first round.

        Args:
            means: The clients' weighted means of :meth:`measure`, and the sums of ``total/...``, by name.
        """

    def settle_client(self, labels: Tensor) -> None:
        """Set constants of a single client, from the labels [N, C] of its training set, before its first round.

        Such constants are buffers of whole numbers or flags: each client keeps its own from round to round, and they
        are never sent. They hold while the client trains; elsewhere they have the values that ``build`` gave them.
        """

    def optimise(self, means: State) -> None:
        """Set the variables, on the server, after a later measuring round, to their optimum at the current scores.

        The default is :meth:`settle`. An objective that may start elsewhere than at the optimum overrides it, for
        algorithms that recompute variables, such as CODA.
        """
        self.settle(means)

    def project(self) -> None:
        """Project the variables onto their domain, after each optimizer step."""

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the probability [B, C] of each class at logits [B, C]; the default treats classes independently.

        If its rows sum to one, classes exclude each other, and AUROC ranks images by these probabilities.
        """
        return logits.sigmoid()

    def pooled(self, logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return metrics [C] of all scores together, for a loss that is not a mean over examples.

        If classes exclude each other, ``logits`` are the log-odds of ``probabilities``.
        """
        return {}
