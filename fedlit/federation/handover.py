"""State that clients keep from one part of a run to the next."""

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
    """State that the clients kept in a completed phase.

    Attributes:
        path: Checkpoint of the phase; None at a site, which stores its own states.
        aggregators: Algorithms of the phase, which determine what a client keeps.
        dropped: Prefixes of the names of tensors that are initialised again.
    """

    path: Path | None
    layout: Layout
    aggregators: Sequence[Aggregator]
    dropped: tuple[str, ...] = ()
    phase: str = ""

    def kept(self) -> Iterator[tuple[str, ClientState]]:
        """Yield names and states of the clients in the phase's checkpoint."""
        return checkpoint.clients(self.path, self.layout, [type(a).__name__ for a in self.aggregators])

    def states(
        self,
        clients: Mapping[str, Client],
        module: LightningModule,
        server: ServerState,
        aggregators: Sequence[Aggregator],
        kept: Iterable[tuple[str, ClientState]],
    ) -> Iterator[tuple[str, ClientState]]:
        """Yield names and initial states of the clients of the next part that keep a part of the model there.

        Elements that a client keeps in both parts are taken from its old state, all others from the server.
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
            kept_stats = stats.clone() if mask.keeps_stats(server.layout) else fresh.stats
            yield name, replace(fresh, w=mask.part(server.layout, w), stats=kept_stats)


def _named(layout: Layout, w: Tensor, stats: Tensor) -> dict[str, Tensor]:
    return {e.name: e.view(v) for v, entries in ((w, layout.parameters), (stats, layout.buffers)) for e in entries}


def _common_buffers(module: LightningModule) -> set[str]:
    """Return names of buffers that come from the server even if clients keep statistics.

    Statistics of a frozen body belong to features that are computed once, and an objective's constants are measured
    again.
    """
    common = (objective_of(module), Parts.of(module).fixed_features)
    return {
        f"{name}.{buffer}"
        for name, part in module.named_modules()
        if any(part is c for c in common)
        for buffer, _ in part.named_buffers()
    }
