"""Buffers that a client keeps: counters, flags and all others that are not statistics."""

import torch
from torch import Tensor, nn

Buffers = dict[str, Tensor | None]


class OwnBuffers:
    """Buffers of a module that are not statistics; every client keeps its own from round to round.

    Statistics are the floating-point buffers: they lie in the flat vector, and the federation averages them. All other
    buffers, persistent or not, are here: integers, flags, and those that are None at first. The counter of a BatchNorm
    layer, ``num_batches_tracked``, has no effect and stays with the module.
    """

    def __init__(self, module: nn.Module, statistics: set[str], device: torch.device) -> None:
        self._device = device
        self._slots: dict[str, tuple[list[tuple[Buffers, str]], Tensor | None]] = {}  # places, and value at the start
        counters = counters_of(module)
        for name, places in places_of_buffers(module).items():
            if name not in statistics and name not in counters:
                buffers, leaf = places[0]
                start = buffers[leaf]
                self._slots[name] = places, None if start is None else start.detach().clone()

    @property
    def names(self) -> list[str]:
        """The buffers' names."""
        return [*self._slots]

    def load(self, state: dict[str, Tensor]) -> None:
        """Load a client's buffers; those that ``state`` lacks are reset to their start."""
        for name, (places, start) in self._slots.items():
            value = state.get(name, start)
            value = None if value is None else value.to(self._device, copy=True)
            for buffers, leaf in places:
                buffers[leaf] = value

    def state(self) -> dict[str, Tensor]:
        """Return copies, by name, of the buffers that differ from their start."""
        live = {name: (places[0][0][places[0][1]], start) for name, (places, start) in self._slots.items()}
        return {
            name: value.detach().cpu().clone()
            for name, (value, start) in live.items()
            if value is not None and (start is None or value.dtype != start.dtype or not torch.equal(value, start))
        }


def counters_of(module: nn.Module) -> set[str]:
    """Return the names of the counters of PyTorch's own BatchNorm layers; a subclass may compute with its counter."""
    return {
        f"{name}.num_batches_tracked".lstrip(".")
        for name, layer in module.named_modules()
        if isinstance(layer, nn.modules.batchnorm._NormBase) and type(layer).__module__.startswith("torch.nn.")
    }


def places_of_buffers(module: nn.Module) -> dict[str, list[tuple[Buffers, str]]]:
    """Return every buffer of a module by its first name, with all places that hold the same tensor."""
    places: dict[str, list[tuple[Buffers, str]]] = {}
    names: dict[int, str] = {}
    for prefix, part in module.named_modules():
        for leaf, value in part._buffers.items():
            name = f"{prefix}.{leaf}".lstrip(".")
            first = name if value is None else names.setdefault(id(value), name)
            places.setdefault(first, []).append((part._buffers, leaf))
    return places
