"""The engine of several Fabric processes or machines: each client has a rank, with one all-reduce per round."""

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from fedlit.core.errors import ConfigError, TrainingError
from fedlit.core.fabric import FederationFabric
from fedlit.core.messages import Broadcast, ClientReport, Payload, Round
from fedlit.federation.engines.base import AnyState, Engine, InProcessPool, OnReply, Program
from fedlit.federation.engines.scores import Scores, View


@dataclass(frozen=True)
class RankReport:
    """Message from one rank to all others before a round's all-reduce."""

    reports: list[ClientReport]
    sizes: dict[str, int]
    error: str


class FabricEngine(Engine):
    """Engine in which each rank keeps and trains the clients whose position modulo the world size is its rank.

    Each rank sums its clients' payloads, one all-reduce adds these sums, and every rank runs the same server round. A
    client's state never leaves its rank.

    Raises:
        ConfigError: There are more processes than clients, an aggregator reduces single replies, or the ranks built
            different models.
    """

    def __init__(self, program: Program, fabric: FederationFabric) -> None:
        if fabric.world_size > len(program.clients):
            raise ConfigError(
                f"fabric: expected at most one process per client, found {fabric.world_size} processes for "
                f"{len(program.clients)} clients; lower fabric.devices or fabric.num_nodes"
            )
        if reducing := [type(a).__name__ for a in program.aggregators if a.implements("reduce")]:
            raise ConfigError(
                f"{reducing[0]} needs the single replies of a round, but {fabric.world_size} processes of Fabric "
                "exchange only sums; set fabric.devices and fabric.num_nodes to 1, and federation.workers to train in "
                "parallel"
            )
        super().__init__(InProcessPool(program, fabric))
        self.where = f"{fabric.world_size} ranks"
        self._fabric = fabric
        self._own = set(list(program.clients)[fabric.global_rank :: fabric.world_size])
        self._layout = self._pool.worker.local.layout
        prints = self._gather(self._layout.fingerprint)
        if len(set(prints)) > 1:
            raise ConfigError(
                f"model: expected one layout on all ranks, found {', '.join(prints)}; use the same configuration"
            )

    def run(
        self, cohort: Sequence[str], down: Broadcast, rnd: Round, on_reply: OnReply = lambda report: None
    ) -> tuple[Payload, list[ClientReport]]:
        """Run a round: each rank trains its clients, and one all-reduce gives every rank the same sum."""
        total, reports, error = None, [], ""
        try:
            total, reports = super().run([name for name in cohort if name in self._own], down, rnd, on_reply)
        except TrainingError as failure:
            error = str(failure)
        except Exception:
            # Other ranks would otherwise wait forever.
            error = f"rank {self._fabric.global_rank}: {traceback.format_exc()}"
        sizes = {name: vector.numel() for name, vector in total.vectors.items()} if total else {}
        ranks = self._gather(RankReport(reports, sizes, error))
        failed = [rank for rank in ranks if rank.error]
        if failed:
            raise TrainingError("; ".join(rank.error for rank in failed))
        by_client = {report.client: report for rank in ranks for report in rank.reports}
        sizes = next((rank.sizes for rank in ranks if rank.sizes), {})
        return self._sum(total, sizes), [by_client[name] for name in cohort]

    def evaluate(self, views: Sequence[View], down: Broadcast) -> list[Scores]:
        """Score each view on the rank of its client; every rank receives all scores, in order."""
        size, rank = self._fabric.world_size, self._fabric.global_rank
        mine = [v for i, v in enumerate(views) if (v.client in self._own if v.client else i % size == rank)]
        scored = list(self._pool.evaluate(mine, self._states, down))
        by_view = {scores.view: scores for rank in self._gather(scored) for scores in rank}
        return [by_view[view] for view in views]

    def load_client_states(self, states: Mapping[str, AnyState]) -> None:
        """Restore the states of this rank's clients; others are ignored."""
        super().load_client_states({name: state for name, state in states.items() if name in self._own})

    def _sum(self, total: Payload | None, sizes: dict[str, int]) -> Payload:
        """Add the ranks' payloads by one all-reduce of a single vector."""
        groups, dtype = self._layout.num_groups, self._layout.dtype
        if total is None:
            vectors = {name: torch.zeros(size, dtype=dtype) for name, size in sizes.items()}
            total = Payload(vectors, 0.0, torch.zeros(groups, dtype=torch.float64))
        tail = torch.cat([total.mask_weight, torch.tensor([total.weight], dtype=torch.float64)]).to(dtype)
        packed = self._fabric.to_device(torch.cat([*(total.vectors[name] for name in sizes), tail]))
        packed = self._fabric.all_reduce(packed, reduce_op="sum").cpu()
        parts = packed.split([*sizes.values(), groups, 1])
        mask_weight, weight = parts[-2].double(), float(parts[-1])
        return Payload(dict(zip(sizes, parts, strict=False)), weight, mask_weight)

    def _gather(self, value: object) -> list:
        gathered = [None] * self._fabric.world_size
        dist.all_gather_object(gathered, value)
        return gathered
