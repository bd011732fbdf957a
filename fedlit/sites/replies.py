"""The sites' replies in a phase, checked against what was asked and against what the sites have reported."""

import warnings
from collections.abc import Sequence

import torch

from fedlit.core.batches import BatchStream
from fedlit.core.flat import Layout
from fedlit.core.hooks import client_mask
from fedlit.core.measuring import objective_of
from fedlit.core.messages import ClientReport, Payload, Round
from fedlit.federation.engines.base import Program
from fedlit.federation.engines.scores import Scores, View
from fedlit.sites.answers import Expected, read_scores
from fedlit.sites.asking import Request
from fedlit.sites.envelope import Envelope, InvalidMessageError
from fedlit.sites.messages import Prepared, SiteInfo


class Replies:
    """Reader of the sites' replies in a phase.

    Args:
        program: What is trained.
        site_infos: What each site has reported.
        layout: The layout of the server's model.

    Attributes:
        sites: What each site has reported, by its name.
    """

    def __init__(self, program: Program, site_infos: Sequence[SiteInfo], layout: Layout) -> None:
        self._program, self._layout = program, layout
        self._masks = {name: client_mask(program.aggregators, layout, c) for name, c in program.clients.items()}
        self._infos = {info.name: info for site in site_infos for info in site.clients}
        self.sites = {site.name: site for site in site_infos}

    def prepared(self, request: Request, reply: Envelope) -> None:
        """Compare a site's layout with the server's.

        Raises:
            InvalidMessageError: If they differ; names the first difference.
        """
        there, here = reply.message(Prepared), self._layout
        if there.fingerprint == here.fingerprint:
            return
        pairs = {
            "classes": (", ".join(there.classes), ", ".join(here.classes)),
            "number of weights": (f"{there.parameters:,}", f"{here.size:,}"),
            "number of statistics": (f"{there.statistics:,}", f"{here.stats_size:,}"),
            "frozen weights (by their hash)": (there.frozen or "none", here.frozen or "none"),
            "order, shapes or types of tensors": (there.fingerprint, here.fingerprint),
        }
        name, (theirs, ours) = next((n, pair) for n, pair in pairs.items() if pair[0] != pair[1])
        raise InvalidMessageError(
            f"the layout of its model: expected {name} {ours}, found {theirs}; install the same code",
            key="reply-layout-differs",
        )

    def scores(self, view: View, request: Request, reply: Envelope, what: str) -> Scores:
        """Read an evaluation.

        Raises:
            InvalidMessageError: If it is not of this view, or contradicts what the site has reported.
        """
        info, site, look = self._infos[view.holder], self.sites[request.site], request.message.asked
        examples, batches = getattr(info, view.part), self._program.limit_eval_batches
        if look.limit is not None:
            examples = min(examples, look.limit)
        if batches is not None:
            examples = min(examples, batches * self._program.eval_batch_size)
        scores, data = read_scores(view, reply, info, self._layout.classes, examples, site.scores)
        self._check_data(request, data, what)
        return scores

    def part(self, request: Request, reply: Envelope, rnd: Round) -> tuple[Payload, ClientReport]:
        """Read a client's part of a round.

        Raises:
            InvalidMessageError: If it does not fit the client or the model, or is not finite.
        """
        client = self._program.clients[request.client]
        steps = rnd.window
        if rnd.unit == "epochs":
            stream = BatchStream(self._program.data[client.name].train, self._program.batch_size, 0, client.name)
            steps *= stream.steps_per_epoch
        measured = None if rnd.window else self._measured(rnd)
        expected = Expected(
            client, self._masks[client.name], self._layout, len(self._program.aggregators), steps, measured
        )
        payload, report, data = expected.read(reply)
        self._check_data(request, data, name_of(rnd))
        return payload, report

    def _measured(self, rnd: Round) -> dict[str, int]:
        sizes = dict.fromkeys(("mean", "square"), self._layout.stats_size) if rnd.moments else {}
        objective, classes = objective_of(self._program.module), len(self._layout.classes)
        if objective is None:
            return sizes
        blank = torch.zeros(2, classes, dtype=self._layout.dtype)
        sums = objective.measure(blank, blank, blank)
        return sizes | {f"objective/{name}": vector.numel() for name, vector in sums.items()}

    def _check_data(self, request: Request, data: str, what: str) -> None:
        info = self._infos[request.client]
        if data != info.data:
            info.data = data
            warnings.warn(
                f"{what}: site {request.site!r}, client {request.client!r}: its data have changed; from now on its "
                "results are for other images or labels",
                stacklevel=2,
            )


def name_of(rnd: Round) -> str:
    """Return the name of a round, readable."""
    return f"round {rnd.index + 1}" if rnd.window else f"the measuring round before round {rnd.index + 1}"
