"""What an objective may be beside a function of a batch."""

from typing import ClassVar

from torch import Tensor, nn

from fedlit.core.argument_types import Checked
from fedlit.core.messages import State


class Loss(Checked, nn.Module):
    """A loss of fedlit's, called with (logits [B, C], labels [B, C] in {0, 1, NaN}); other labels are refused before it."""


class Objective(Loss):
    """A loss with variables or constants of its own, called with (logits [B, C], labels [B, C] in {0, 1, NaN}).

    A loss that has none needs no more than ``nn.Module``. Variables are parameters with one entry a class, named in
    ``per_class_parameters``; those that are maximised over also in ``dual_parameters``. Constants that come from the
    whole federation's data are buffers. Both start from a measuring round: every client reports :meth:`measure`, their
    weighted mean goes to :meth:`settle`, or in later rounds to :meth:`optimise`.
    """

    per_class_parameters: tuple[str, ...] = ()
    dual_parameters: tuple[str, ...] = ()

    metrics_help: ClassVar[dict[str, str]] = {}
    """What its metrics are: a sentence for each name, less the class; ``fedlit fit --help`` shows them.

    Metrics of an objective are its variables and constants (``objective/<name>``) and what :meth:`pooled` returns
    (``val/<name>``).
    """

    def build(self, num_classes: int) -> None:
        """Called by the model that owns it: create the variables of C classes."""

    def measure(self, logits: Tensor, labels: Tensor, all_labels: Tensor) -> State:
        """On a client: what :meth:`settle` needs, as vectors whose means over clients make sense.

        Args:
            logits: [n, C] of a sample of its training set.
            labels: [n, C] of that sample.
            all_labels: [N, C] of its whole training set.
        """
        return {}

    def settle(self, means: State) -> None:
        """On the server, once, before the first round: set variables and constants, given the clients' weighted means."""

    def optimise(self, means: State) -> None:
        """On the server, after a later measuring round: set the variables to their optimum at the scores of now.

        By default as at the start. An objective that may start elsewhere than at the optimum has this apart, for algorithms
        that compute variables anew, such as CODA.
        """
        self.settle(means)

    def project(self) -> None:
        """After each optimizer step: bring the variables back to where they may be."""

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the probability [B, C] of each class at logits [B, C]; by default each class is a question of its own."""
        return logits.sigmoid()

    def pooled(self, logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Metrics [C] of all scores together, for a loss that is no mean over examples."""
        return {}
