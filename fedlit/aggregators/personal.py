"""Sites with personal heads."""

from fedlit.core.aggregator import Aggregator
from fedlit.core.flat import Layout
from fedlit.core.messages import Client, Mask


class PersonalHeads(Aggregator):
    """The personalised baseline (PFL) of surgical aggregation (Kulkarni et al., arXiv:2301.06683), section 3.2.2.

    Clients share the body and keep their own task block, for their own classes, trained from the common start. The
    variables that an objective has per class stay with it. There is no single global model: validation and test score
    every client's images with that client's model, a server's test set with each client's in turn, and a class counts
    only if the client labels it.
    """

    weights = "uniform"
    governs = "head"
    one_model = "SurgicalHeads"

    def scope(self, layout: Layout, client: Client) -> Mask:
        """Keep the head and the objective's variables at the client."""
        return Mask.everything(layout).keeping(layout.groups(("head", "dual")))
