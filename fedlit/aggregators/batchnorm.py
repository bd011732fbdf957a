"""Sites that keep their normalisation layers."""

from fedlit.aggregators.base import Aggregator
from fedlit.flat import Layout
from fedlit.messages import Client, Mask


class FedBN(Aggregator):
    """FedBN (Li et al., ICLR 2021, arXiv:2102.07623), Algorithm 1: normalisation layers stay local.

    Affine parameters and running statistics of every normalisation layer, found by type, are never sent; each
    client trains its own from the common start. There is then no single global model: validation and test score
    every client's images with that client's model.
    """

    def scope(self, layout: Layout, client: Client) -> Mask:
        return Mask.everything(layout).without([*layout.groups(("norm",)), layout.stats_group])
