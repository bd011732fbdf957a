"""What clients keep to themselves, from one part of a run to the next."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lightning.pytorch import LightningModule
from torch import Tensor

from fedlit.core.aggregator import Aggregator
from fedlit.core.checkpoints import checkpoint
from fedlit.core.flat import Layout
from fedlit.core.hooks import client_mask, initial_client_state
from fedlit.core.measuring import objective_of
from fedlit.core.messages import Client, ClientState, ServerState
from fedlit.core.parts import Parts


@dataclass(frozen=True)
class PersonalState:
    """Hold what the clients of a phase that is over kept to themselves.

    Attributes:
        path: The phase's checkpoint; None at a site, which has states of its own.
        layout: The layout of the phase's model.
        aggregators: The phase's algorithms, which say what a client keeps.
        dropped: Beginnings of the names of tensors that start afresh.
        phase: Name of the phase.
    """

    path: Path | None
    layout: Layout
    aggregators: Sequence[Aggregator]
    dropped: tuple[str, ...] = ()
    phase: str = ""

    def kept(self) -> Iterator[tuple[str, ClientState]]:
        """Yield the clients' states in the phase's checkpoint, with their names."""
        return checkpoint.clients(self.path, self.layout, [type(a).__name__ for a in self.aggregators])

    def states(
        self,
        clients: Mapping[str, Client],
        module: LightningModule,
        server: ServerState,
        aggregators: Sequence[Aggregator],
        kept: Iterable[tuple[str, ClientState]],
    ) -> Iterator[tuple[str, ClientState]]:
        """Yield who starts the next part with something of its own: elements kept here and there, the server's for the rest.

        Args:
            clients: Clients of the next part that keep something there.
            module: The next part's model.
            server: The state from which the next part starts.
            aggregators: The next part's algorithms.
            kept: Clients' states of the phase, with their names.
        """
        fresh, common = initial_client_state(aggregators, server.layout), _common_buffers(module)
        w, stats = server.w.clone(), server.stats.clone()
        there_w, there_stats = self.layout.zeros(), stats.new_zeros(self.layout.stats_size)
        old = _named(self.layout, there_w, there_stats)
        new = {
            name: part
            for name, part in _named(server.layout, w, stats).items()
            if name in old
            and old[name].shape == part.shape
            and name not in common
            and not name.startswith(self.dropped)
        }
        for name, state in kept:
            if name not in clients or not len(state.w) + len(state.stats):
                continue
            w.copy_(server.w)
            stats.copy_(server.stats)
            for key, part in new.items():
                old[key].copy_(part)
            state.write(client_mask(self.aggregators, self.layout, clients[name]), self.layout, there_w, there_stats)
            for key, part in new.items():
                part.copy_(old[key])
            mask = client_mask(aggregators, server.layout, clients[name])
            own = stats.clone() if mask.keeps_stats(server.layout) else fresh.stats
            yield name, replace(fresh, w=mask.part(server.layout, w), stats=own)


def _named(layout: Layout, w: Tensor, stats: Tensor) -> dict[str, Tensor]:
    """Every tensor of a model, as a view."""
    return {e.name: e.view(v) for v, entries in ((w, layout.parameters), (stats, layout.buffers)) for e in entries}


def _common_buffers(module: LightningModule) -> set[str]:
    """Names of buffers that the federation gives, though statistics may be kept.

    The statistics of a body that is not trained belong to features computed once for all; an objective's constants are
    measured anew.
    """
    common = (objective_of(module), Parts.of(module).fixed_features)
    return {
        f"{name}.{buffer}"
        for name, part in module.named_modules()
        if any(part is c for c in common)
        for buffer, _ in part.named_buffers()
    }
