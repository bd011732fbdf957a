"""Aggregation that a few false updates cannot move at will: CoordinateMedian, TrimmedMean and NormBound."""

from collections.abc import Sequence
from math import ceil
from typing import Annotated

import torch

from fedlit.core.aggregator import Aggregator
from fedlit.core.errors import ConfigError, TrainingError
from fedlit.core.flat import Layout
from fedlit.core.messages import Payload
from fedlit.core.ranges import Within

CHUNK = 1 << 16
"""Number of elements sorted at a time."""


class CoordinateMedian(Aggregator):
    """The coordinate-wise median (Yin et al., ICML 2018, arXiv:1803.01498, Definition 1) of the clients' changes.

    ::

        w_j <- w_j + med {delta_k,j : k owns element j},      delta_k = w_k - w

    with the mean of the two middle values of an even number; BatchNorm's statistics likewise. While fewer than half of
    an element's owners lie, its change is within the range of the honest ones. An element counts for the clients that
    share it (SurgicalHeads, FedBN); with one or two owners it is their mean. All clients count equally, regardless of
    ``federation.weights``.

    It needs single replies: the server keeps every client's update until the round is over, K P values, and several
    Fabric processes are refused. Vectors of other algorithms (control variates, momenta) are still averaged, and so are
    measuring rounds and the squared norms of ``drift/...``, which are then compared with the median: through these a
    client can still lie.

    Deviation: in place of gradients at one point after each step it takes the changes of a round.

    Raises:
        ConfigError: Fewer than 3 clients in a round, one of which could move the median at will.
        TrainingError: Fewer than 3 replied.
    """

    weights = "uniform"

    def cut(self, clients: int) -> int:
        """Return the number of a cohort's sorted changes that are cut at each end, before averaging the rest."""
        return (clients - 1) // 2

    def check_cohort(self, clients: int) -> None:
        """Refuse a cohort that is too small."""
        self._check(clients, ConfigError, "let more take part, or use NormBound or another trim")

    def reduce(self, layout: Layout, replies: Sequence[Payload]) -> Payload:
        """Reduce the changes of the weights [P] and of the statistics [S]; add up everything else."""
        self._check(len(replies), TrainingError, "set federation.quorum, so that such a round is repeated")
        owned = torch.stack([reply.mask_weight > 0 for reply in replies])
        owners, pattern = owned.unique(dim=1, return_inverse=True)
        places: dict[str, Sequence[tuple]] = {
            "w": layout.spans(pattern),
            "stats": [(0, layout.stats_size, pattern[layout.stats_group])],
        }
        reduced = {name: torch.zeros_like(replies[0].vectors[name]) for name in places}
        for name, spans in places.items():
            for start, stop, number in spans:
                having = [replies[k] for k in owners[:, number].nonzero().flatten().tolist()]
                cut = min(self.cut(len(having)), (len(having) - 1) // 2)
                for first in range(start, stop if having else start, CHUNK):
                    part = slice(first, min(first + CHUNK, stop))
                    changes = torch.stack([reply.vectors[name][part] / reply.weight for reply in having], 1).sort(1)
                    middle = changes.values[:, cut : len(having) - cut].mean(1)
                    reduced[name][part] = middle * sum(reply.weight for reply in having)
        total = _summed(replies)
        total.vectors |= reduced
        return total

    def _check(self, clients: int, error: type[Exception], advice: str) -> None:
        cut, name = self.cut(clients), type(self).__name__
        if not 0 < 2 * cut < clients:
            raise error(
                f"{name}: expected to cut some and to keep some of {clients} clients in a round, found {cut} cut at "
                f"each end; {advice}"
            )


class TrimmedMean(CoordinateMedian):
    """The coordinate-wise trimmed mean (Yin et al., ICML 2018, arXiv:1803.01498, Definition 2) of the clients' changes.

    ::

        w_j <- w_j + 1/(m - 2 b) sum_{i=b+1}^{m-b} delta_(i),j,      b = ceil(trim m)

    where ``delta_(1),j <= ... <= delta_(m),j`` are the sorted changes of element j of its m owners: with at most b
    liars it moves within the range of the honest ones. Everything else, with the deviation and the errors, is as in
    :class:`CoordinateMedian`. Further deviations: b is rounded up; of a row with fewer than 2 b + 1 owners it keeps the
    one or two in the middle.

    Args:
        trim: The paper's beta, the share of the owners that is cut at each end, between 0 and 0.5.

    Raises:
        ConfigError: ``trim`` is out of range, or would cut all clients of a round.
    """

    def __init__(self, trim: Annotated[float, Within("(0, 0.5)", "; FedAvg cuts nothing")] = 0.2) -> None:
        self.trim = trim

    def cut(self, clients: int) -> int:
        """Return the share of so many clients, rounded up."""
        return ceil(self.trim * clients - 1e-9)


class NormBound(Aggregator):
    """Norm bounding (Sun et al., 2019, arXiv:1911.07963): a change that is too long is scaled down.

    ::

        w <- w + sum_k pi_k delta_k min(1, norm / |delta_k|),      delta_k = w_k - w

    so a client moves the weights by at most ``pi_k norm``. BatchNorm's statistics are scaled down separately, always to
    the cohort's median norm. A norm counts everything that the client shares; the means are FedAvg's, over the owners
    of each element. It needs single replies, and has the same gaps as :class:`CoordinateMedian`.

    Deviations: no noise is added; without ``norm`` it is the cohort's median norm (the smaller of the two in the
    middle).

    Args:
        norm: The largest norm of a client's change of the weights in a round; by default the cohort's median norm.

    Raises:
        ConfigError: ``norm`` is not above 0 and finite.
    """

    def __init__(
        self, norm: Annotated[float, Within("(0, inf)", "; leave it out for the cohort's median")] | None = None
    ) -> None:
        self.norm = norm

    def reduce(self, layout: Layout, replies: Sequence[Payload]) -> Payload:
        """Scale down changes of the weights [P] and of the statistics [S] that are too long, then add up."""
        for name, groups, bound in (("w", layout.groups(), self.norm), ("stats", [layout.stats_group], None)):
            sharing = [reply for reply in replies if reply.mask_weight[groups].any()]
            norms = [reply.vectors[name].double().norm() / reply.weight for reply in sharing]
            most = torch.stack(norms).median() if bound is None and norms else bound
            for reply, norm in zip(sharing, norms, strict=True):
                if norm > most:
                    reply.vectors[name].mul_(float(most / norm))
        return _summed(replies)


def _summed(replies: Sequence[Payload]) -> Payload:
    """Add replies up, in the memory of the first."""
    for reply in replies[1:]:
        replies[0].add_(reply)
    return replies[0]
