"""Surgical aggregation: sites that label different classes train one model."""

from fedlit.core.aggregator import Aggregator
from fedlit.core.flat import Layout
from fedlit.core.messages import Client, Mask


class SurgicalHeads(Aggregator):
    """Surgical aggregation (Kulkarni et al., arXiv:2301.06683), Algorithm 1, for the task block.

    A client sends the rows (weights and bias) of the classes that it labels, and nothing of other rows. A row of the
    federation's head is then the mean over the clients that label its class (the paper's ``g``); the row of a class
    that only one client labels is that client's, and a class that no client of the cohort labels keeps its row. The
    rest of the model (the paper's ``f``) is left to the other algorithms of the list: without any it is FedAvg,
    FedBNPlus freezes normalisation, Scaffold corrects drift. Variables that an objective has per class follow their
    rows.

    The task block is what the module names ``head``. Local losses must leave out what a client does not label, as BCE
    and the AUC objective do (eq. 3).

    Deviation: none with the paper's unweighted means, which are the default; ``federation.weights: examples`` weighs
    clients, and the owners of each row, by their number of images.
    """

    weights = "uniform"
    governs = "head"

    def scope(self, layout: Layout, client: Client) -> Mask:
        """Leave out the rows of classes that the client does not label."""
        others = tuple(c for c in layout.classes if c not in client.classes)
        return Mask.everything(layout).lacking(layout.groups(("head", "dual"), others))
