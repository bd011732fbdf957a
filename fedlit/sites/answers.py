"""Answers of sites, checked completely before use, so that a dishonest site cannot end or steer a run."""

import math
import statistics
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import torch
from torch import Tensor

from fedlit.core.batches import BatchStream
from fedlit.core.flat import Layout
from fedlit.core.hooks import client_mask
from fedlit.core.measuring import objective_of
from fedlit.core.messages import Client, ClientReport, Mask, Payload, Round, State
from fedlit.federation.engines.base import Program
from fedlit.federation.engines.scores import Scores, View
from fedlit.metrics.tally import BINS, Tally, pooled_auroc
from fedlit.sites.envelope import Envelope, InvalidMessageError
from fedlit.sites.messages import ClientInfo, Evaluated, Prepared, RoundReport, Sent, SiteInfo, printable
from fedlit.sites.payloads import MASK, VECTORS, filled
from fedlit.sites.requests import Request

FAR = 10.0
"""The server warns about an update whose norm is this many times the usual one, and about such a loss."""

FARTHEST = 1000.0
"""Largest norm of an update, in norms of the model before the round: the model would be useless to all other sites."""

LARGEST, LARGEST_SUM = 1e6, 1e20
"""Largest magnitude of a value in what a round changes, and in sums of squares and what a measuring round counts."""

COHORT = 4
"""Least number of clients whose updates are compared with each other; fewer are compared with their own past rounds."""

PAST = 3
"""Least number of past rounds with which a client's update is compared."""


class Replies:
    """Reader of the sites' replies in a run.

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
            f"the layout of its model: expected {name} {ours}, found {theirs}; install the same code"
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
            InvalidMessageError: If it does not fit the client or the model, or is not finite; names the array.
        """
        client = self._program.clients[request.client]
        mask, known = self._masks[client.name], self._sizes(rnd)
        sent, tensors = reply.message(Sent), reply.tensors()
        mask_weight = tensors.pop(MASK, None)
        payload = Payload({n.removeprefix(VECTORS): t for n, t in tensors.items()}, sent.weight, mask_weight)
        nbytes = payload.nbytes
        if rnd.window:
            for name in sent.whole.keys() & payload.vectors.keys():
                cut = payload.vectors[name]
                payload.vectors[name] = filled(cut, name, sent.whole[name], mask, self._layout)
        wanted = client.weight * mask.owned.double()
        same_mask = mask_weight is not None and mask_weight.dtype == wanted.dtype and torch.equal(mask_weight, wanted)
        if sent.weight != client.weight or not same_mask:
            raise InvalidMessageError(
                f"its {MASK!r} or its weight {sent.weight:g} is not that of client {client.name!r}"
            )
        for name, vector in payload.vectors.items():
            self._check_form(name, vector, known, rnd)
            if rnd.window:
                self._check_shared(name, vector, mask)
            if name == "w":
                self._check_length(float(vector.norm()) / client.weight, float(request.tensors["w"].norm()))
        missing = known.keys() - payload.vectors.keys()
        of_scores = {name for name in known if name.startswith("objective/")}  # a module may give no scores
        if missing and missing != of_scores:
            raise InvalidMessageError(f"{min(missing)!r} is missing")
        self._check_report(sent.report, client, rnd, request.site)
        self._check_data(request, sent.data, name_of(rnd))
        checked = {"error": printable(sent.report.error), "still": printable(sent.report.still), "bytes_up": nbytes}
        checked |= {"loss": math.nan} if sent.report.loss is None else {}
        return payload, ClientReport(**asdict(sent.report) | checked)

    def _sizes(self, rnd: Round) -> dict[str, int]:
        """Return the number of values of each vector whose size the server knows."""
        layout = self._layout
        if rnd.window:
            return {"w": layout.size, "stats": layout.stats_size, "squares": 2 * layout.num_groups}
        sizes = dict.fromkeys(("mean", "square"), layout.stats_size) if rnd.moments else {}
        objective = objective_of(self._program.module)
        if objective is None:
            return sizes
        blank = torch.zeros(2, len(layout.classes), dtype=layout.dtype)
        sums = objective.measure(blank, blank, blank)
        return sizes | {f"objective/{name}": vector.numel() for name, vector in sums.items()}

    def _check_form(self, name: str, vector: Tensor, known: Mapping[str, int], rnd: Round) -> None:
        number, _, own = name.partition("/")
        added = rnd.window and own and number.isdecimal() and int(number) < len(self._program.aggregators)
        if name not in known and not added:
            raise InvalidMessageError(f"it sends {name!r}, which was not requested")
        if vector.numel() != known.get(name, vector.numel()):
            raise InvalidMessageError(f"its {name!r} has {vector.numel():,} values, expected {known[name]:,}")
        dtype = self._layout.dtype
        if vector.dtype != dtype and (name in known or not vector.dtype.is_floating_point):
            raise InvalidMessageError(f"its {name!r} has type {vector.dtype}, expected {dtype}")
        if not torch.isfinite(vector).all():
            raise InvalidMessageError(f"its {name!r} is not finite")
        most = LARGEST_SUM if not rnd.window or name == "squares" else LARGEST
        most = min(most, torch.finfo(vector.dtype).max / len(self._program.clients))  # the sum is finite too
        if (highest := float(vector.abs().max()) if len(vector) else 0.0) > most:
            raise InvalidMessageError(f"its {name!r}: expected magnitudes up to {most:g}, found {highest:g}")

    def _check_length(self, update: float, model: float) -> None:
        if update > FARTHEST * max(model, 1.0):
            raise InvalidMessageError(
                f"its 'w': expected a change of at most {FARTHEST:g} times the model's norm, {model:.3g}, found one "
                f"of {update:.3g}; lower the learning rate, or check its data"
            )

    def _check_shared(self, name: str, vector: Tensor, mask: Mask) -> None:
        layout = self._layout
        if vector.numel() == layout.size:
            if any(vector[stretch].any() for stretch in mask.unshared(layout)):
                raise InvalidMessageError(f"its {name!r} is not zero where the client shares nothing")
        elif vector.numel() == layout.stats_size and not mask.shares_stats(layout) and vector.any():
            raise InvalidMessageError(f"its {name!r} is not zero, although the client keeps its statistics")

    def _check_report(self, report: RoundReport, client: Client, rnd: Round, site: str) -> None:
        steps = rnd.window
        if rnd.unit == "epochs":
            data, least = self._program.data[client.name].train, self.sites[site].batch
            stream = self._program.private_stream(client.name) or BatchStream(
                data, self._program.batch_size, 0, client.name, smallest=least
            )
            steps *= stream.steps_per_epoch
        for key, value in {"client": client.name, "steps": steps, "examples": client.examples}.items():
            if (said := getattr(report, key)) != value:
                raise InvalidMessageError(f"{key}: expected {value}, found {printable(str(said), 60)}")
        if (report.loss is None) is not any(each.private for each in self._program.aggregators):
            raise InvalidMessageError(f"loss: expected none if and only if steps are private, found {report.loss}")

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


def disagreeing(parts: Mapping[str, Payload]) -> dict[str, str]:
    """Return the clients whose vectors differ from those of most others in names, sizes or types, and the difference.

    Without a majority, all clients are returned: the server cannot know which are right.
    """
    forms = {client: _form(payload) for client, payload in parts.items()}
    counted = Counter(forms.values()).most_common(2)
    if len(counted) < 2:
        return {}
    most = counted[0][0] if counted[0][1] > counted[1][1] else None
    odd = {}
    for client, form in forms.items():
        if form != most:
            other = most or next(each for each in forms.values() if each != form)
            odd_ones = [
                f"{name} [{size:,}] of {dtype}" for name, size, dtype in form if (name, size, dtype) not in other
            ]
            odd[client] = f"it sends {', '.join(odd_ones) or 'fewer vectors'}"
    return odd


def _form(payload: Payload) -> tuple[tuple[str, int, str], ...]:
    return tuple(sorted((name, v.numel(), str(v.dtype).removeprefix("torch.")) for name, v in payload.vectors.items()))


@dataclass
class Watch:
    """Norms of the clients' updates, and their losses, to detect unusual ones."""

    past: dict[str, list[float]] = field(default_factory=dict)  # Norms of each client's accepted rounds.

    def norms(self, parts: Mapping[str, Payload], site_of: Mapping[str, str], model: float) -> None:
        """Warn about updates that are far larger than the cohort's, than the client's own past ones, or than the model.

        Args:
            parts: The payload of each client.
            site_of: The site of each client.
            model: Norm of the weights before the round.
        """
        norms = {name: float(p.vectors["w"].norm()) / p.weight for name, p in parts.items() if "w" in p.vectors}
        for name, norm in norms.items():
            past = self.past.setdefault(name, [])
            others = [value for other, value in norms.items() if other != name]
            usual, whose = max(model, 1.0), "the model"
            if len(norms) >= COHORT:
                usual, whose = statistics.median(others), "the others in this round"
            elif len(past) >= PAST:
                usual, whose = statistics.median(past), "its own past rounds"
            if norm > FAR * usual:
                warnings.warn(
                    f"site {site_of[name]!r}, client {name!r}: the norm of its update is {norm:.3g}, "
                    f"{norm / max(usual, 1e-30):,.0f} times that of {whose}; ask the site, and check its data",
                    stacklevel=3,
                )
            past.append(norm)

    def losses(self, reports: Sequence[ClientReport], site_of: Mapping[str, str]) -> None:
        """Warn about losses that are far from most of the cohort's: ``train/loss`` is their mean."""
        usual = statistics.median(report.loss for report in reports) if len(reports) > 2 else None
        for report in reports if usual is not None else ():
            if abs(report.loss - usual) > FAR * max(abs(usual), 1.0):
                warnings.warn(
                    f"site {site_of[report.client]!r}, client {report.client!r}: its loss is {report.loss:.3g}, and "
                    f"the median of this round is {usual:.3g}; ask the site, and do not select by train/loss",
                    stacklevel=3,
                )


def read_scores(
    view: View, answer: Envelope, info: ClientInfo, classes: Sequence[str], examples: int, may_score: bool
) -> tuple[Scores, str]:
    """Read an evaluation of a view with so many examples, and the fingerprint of the client's data.

    Raises:
        InvalidMessageError: If it is not what was asked for, or contradicts what the site has reported.
    """
    scored, tensors = answer.message(Evaluated), answer.tensors()
    wanted = {"none": set(), "tally": {"auroc", "positives", "negatives"}, "scores": {"scores", "labels"}}[scored.kind]
    if tensors.keys() != wanted or (scored.kind == "scores" and not may_score):
        raise InvalidMessageError(
            f"an evaluation of kind {scored.kind!r}: expected {sorted(wanted)}, found {sorted(tensors)}"
        )
    if scored.examples != examples and not (scored.kind == "none" and scored.examples == 0):
        raise InvalidMessageError(f"an evaluation of {scored.examples} images, expected {examples}")
    size = getattr(info, view.part)
    counts = info.counts.get(view.part) if examples == size else None
    made = Scores(view, scored.examples, None, None, scored.logged, taken=scored.taken)
    if scored.kind == "tally":
        made.tally = _tally(tensors, classes, counts, examples)
    elif scored.kind == "scores":
        scores, labels = tensors["scores"], tensors["labels"]
        if scores.shape != (examples, len(classes)) or scores.shape != labels.shape or not scores.is_floating_point():
            raise InvalidMessageError(
                f"expected scores and labels of shape {(examples, len(classes))}, found {tuple(scores.shape)} and "
                f"{tuple(labels.shape)}"
            )
        if not ((labels == 0) | (labels == 1) | labels.isnan()).all():
            raise InvalidMessageError("expected labels 0, 1 and NaN, found other values")
        _agree(counts, [(labels == value).sum(0).tolist() for value in (1, 0)])
        made = replace(made, scores=scores, labels=labels)
    return made, scored.data


def _tally(tensors: State, classes: Sequence[str], counts: list[list[int | None]] | None, examples: int) -> Tally:
    bins, auroc = (len(classes), BINS), tensors["auroc"]
    histograms = [tensors[name] for name in ("positives", "negatives")]
    if any(h.dtype != torch.int64 or h.shape != bins or (h < 0).any() for h in histograms):
        raise InvalidMessageError("the histograms are not counts of fedlit's bins")
    if auroc.dtype != torch.float64 or auroc.shape != bins[:1] or (sum(histograms).sum(1) > examples).any():
        raise InvalidMessageError("AUROC of other classes, or histograms of more images than the client has")
    _agree(counts, [h.sum(1).tolist() for h in histograms])
    tally = Tally(auroc, *histograms)
    binned, within = pooled_auroc([tally], classes)
    if ((auroc - binned.auroc).abs() > within + 1e-9).any() or (auroc.isnan() != binned.auroc.isnan()).any():
        raise InvalidMessageError("its AUROC contradicts its own histograms")
    return tally


def _agree(counts: list[list[int | None]] | None, received: list[list[int]]) -> None:
    """Compare positives and negatives of each class with the site's reported counts; a hidden class has none."""
    for reported, sent in zip(counts or (), received, strict=False):
        if any(count is not None and count != number for count, number in zip(reported, sent, strict=True)):
            raise InvalidMessageError(
                "its numbers of positives and negatives contradict those that it reported at hello"
            )
