"""Normalisation layers that stay local or frozen."""

import warnings
from functools import partial

from torch import nn

from fedlit.core.aggregator import Aggregator
from fedlit.core.errors import ConfigError
from fedlit.core.flat import NORM_TYPES, Layout
from fedlit.core.messages import Client, Mask, Round, ServerState, State


class FedBN(Aggregator):
    """FedBN (Li et al., ICLR 2021, arXiv:2102.07623), Algorithm 1: normalisation layers stay local.

    Affine parameters and running statistics of every normalisation layer, found by type, are never sent; each
    client trains its own from the common start. There is then no single global model: validation and test score
    every client's images with that client's model.
    """

    governs = "norm"
    one_model = "FedBNPlus"

    def scope(self, layout: Layout, client: Client) -> Mask:
        """Keep normalisation layers, and all statistics, at the client."""
        return Mask.everything(layout).keeping([*layout.groups(("norm",)), layout.stats_group])


class FedBNPlus(Aggregator):
    """FedBN+ (Kulkarni et al., arXiv:2303.06180; section 3.4.2 of arXiv:2301.06683): pre-trained normalisation, frozen.

    Every normalisation layer, found by type, keeps the affine parameters and the statistics with which the model
    starts: no gradient, no optimizer entry, no message, and evaluation mode even while the rest trains. So all sites
    normalise in the same way, and the federation has one global model.

    It needs trained weights: ``model.pretrained``, ``model.weights`` or an earlier phase. Layers as initialised (mean
    0, variance 1) normalise nothing, which raises a warning.

    Raises:
        ConfigError: The model has no normalisation layer.
    """

    governs = "norm"

    def configure_model(self, module: nn.Module) -> None:
        """Freeze every normalisation layer permanently, in evaluation mode."""
        layers = [layer for layer in module.modules() if isinstance(layer, NORM_TYPES)]
        if not layers:
            raise ConfigError(f"FedBNPlus: {type(module).__name__} has no normalisation layer to freeze; leave it out")
        for layer in layers:
            layer.requires_grad_(False)
            layer.eval()
            setattr(layer, "train", partial(_stays, layer))  # noqa: B010

    def on_round_start(self, state: State, server: ServerState, rnd: Round) -> None:
        """Warn in the first round if no normalisation layer was ever trained."""
        starts = {"running_mean": 0.0, "running_var": 1.0}
        values = [
            (entry.view(server.stats), starts[leaf])
            for entry in server.layout.buffers
            if (leaf := entry.name.rpartition(".")[2]) in starts
        ]
        if rnd.index == 0 and values and all((value == start).all() for value, start in values):
            warnings.warn(
                "FedBNPlus freezes normalisation layers that were never trained (mean 0, variance 1): start from "
                "model.pretrained, model.weights or a phase that trains them",
                stacklevel=2,
            )


def _stays(layer: nn.Module, mode: bool = True) -> nn.Module:
    """Replace ``train()`` of a frozen layer."""
    return layer
