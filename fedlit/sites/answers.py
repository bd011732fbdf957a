"""Answers of sites, checked completely before use, so that a dishonest site cannot end or steer a run."""

import statistics
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import torch
from torch import Tensor

from fedlit.core.errors import TrainingError
from fedlit.core.flat import Layout
from fedlit.core.messages import Client, ClientReport, Mask, Payload, State
from fedlit.federation.engines.scores import Scores, View
from fedlit.metrics.tally import BINS, Tally, pooled_auroc
from fedlit.sites.envelope import Envelope, InvalidMessageError
from fedlit.sites.messages import ClientInfo, Evaluated, RoundReport, Sent, printable
from fedlit.sites.payloads import MASK, VECTORS, filled

FAR = 10.0
"""The server warns about an update whose norm is this many times the usual one."""

COHORT = 4
"""Least number of clients whose updates are compared with each other; fewer are compared with their own past rounds."""

PAST = 3
"""Least number of past rounds with which a client's update is compared."""


@dataclass(frozen=True)
class Expected:
    """Expected form of a client's part of a round, known before it arrives."""

    client: Client  # The client that was asked.
    mask: Mask  # What it shares.
    layout: Layout  # The layout of the model.
    aggregators: int  # Number of aggregators of the phase.
    steps: int  # Local steps; 0 in a measuring round.
    # Names and sizes of what a measuring round sends; None if the round trains.
    measured: Mapping[str, int] | None = None

    @property
    def sizes(self) -> dict[str, int]:
        """The number of values of each vector whose size the server knows."""
        if self.measured is not None:
            return dict(self.measured)
        layout = self.layout
        return {"w": layout.size, "stats": layout.stats_size, "squares": 2 * layout.num_groups}

    def read(self, answer: Envelope) -> tuple[Payload, ClientReport, str]:
        """Read a client's part of a round, and the fingerprint of its data.

        Raises:
            InvalidMessageError: If it is not what was asked for; names the array.
        """
        sent, tensors = answer.message(Sent), answer.tensors()
        mask_weight = tensors.pop(MASK, None)
        payload = Payload({n.removeprefix(VECTORS): t for n, t in tensors.items()}, sent.weight, mask_weight)
        nbytes = payload.nbytes
        if self.measured is None:
            for name in sent.whole.keys() & payload.vectors.keys():
                cut = payload.vectors[name]
                payload.vectors[name] = filled(cut, name, sent.whole[name], self.mask, self.layout)
        wanted = self.client.weight * self.mask.owned.double()
        same_mask = mask_weight is not None and mask_weight.dtype == wanted.dtype and torch.equal(mask_weight, wanted)
        if sent.weight != self.client.weight or not same_mask:
            raise InvalidMessageError(
                f"its {MASK!r} or its weight {sent.weight:g} is not that of client {self.client.name!r}",
                key="reply-mask-or-weight",
            )
        for name, vector in payload.vectors.items():
            self._check(name, vector)
        missing = self.sizes.keys() - payload.vectors.keys()
        of_scores = {name for name in self.sizes if name.startswith("objective/")}  # a module may give no scores
        if missing and missing != of_scores:
            raise InvalidMessageError(f"{min(missing)!r} is missing", key="reply-vector-missing")
        self._check_report(sent.report)
        checked = {"error": printable(sent.report.error), "still": printable(sent.report.still), "bytes_up": nbytes}
        return payload, ClientReport(**asdict(sent.report) | checked), sent.data

    def _check(self, name: str, vector: Tensor) -> None:
        known, layout = self.sizes, self.layout
        number, _, own = name.partition("/")
        added = self.measured is None and own and number.isdecimal() and int(number) < self.aggregators
        if name not in known and not added:
            raise InvalidMessageError(f"it sends {name!r}, which was not requested", key="reply-vector-unknown")
        if vector.numel() != known.get(name, vector.numel()):
            raise InvalidMessageError(
                f"its {name!r} has {vector.numel():,} values, expected {known[name]:,}", key="reply-vector-size"
            )
        if vector.dtype != layout.dtype and (name in known or not vector.dtype.is_floating_point):
            raise InvalidMessageError(
                f"its {name!r} has type {vector.dtype}, expected {layout.dtype}", key="reply-vector-dtype"
            )
        if not torch.isfinite(vector).all():
            raise InvalidMessageError(f"its {name!r} is not finite", key="reply-vector-not-finite")
        if self.measured is not None:
            return
        if vector.numel() == layout.size:
            if any(vector[stretch].any() for stretch in self.mask.unshared(layout)):
                raise InvalidMessageError(
                    f"its {name!r} is not zero where the client shares nothing", key="reply-vector-outside-mask"
                )
        elif vector.numel() == layout.stats_size and not self.mask.shares_stats(layout) and vector.any():
            raise InvalidMessageError(
                f"its {name!r} is not zero, although the client keeps its statistics", key="reply-statistics-kept"
            )

    def _check_report(self, report: RoundReport) -> None:
        said = {"client": report.client, "steps": report.steps, "examples": report.examples}
        wanted = {"client": self.client.name, "steps": self.steps, "examples": self.client.examples}
        for key, value in wanted.items():
            if said[key] != value:
                raise InvalidMessageError(
                    f"{key}: expected {value}, found {printable(str(said[key]), 60)}", key="reply-report-value"
                )
        if report.seconds < 0:
            raise InvalidMessageError(
                f"seconds: expected at least 0, found {report.seconds:g}", key="reply-seconds-negative"
            )


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
            own = [f"{name} [{size:,}] of {dtype}" for name, size, dtype in form if (name, size, dtype) not in other]
            odd[client] = f"it sends {', '.join(own) or 'fewer vectors'}"
    return odd


def _form(payload: Payload) -> tuple[tuple[str, int, str], ...]:
    return tuple(sorted((name, v.numel(), str(v.dtype).removeprefix("torch.")) for name, v in payload.vectors.items()))


@dataclass
class Norms:
    """Norms of the clients' updates, to detect unusually large ones."""

    past: dict[str, list[float]] = field(default_factory=dict)  # Norms of each client's accepted rounds.

    def watch(self, parts: Mapping[str, Payload], site_of: Mapping[str, str]) -> None:
        """Warn about updates that are far larger than the cohort's, or than the client's own past ones."""
        norms = {name: float(p.vectors["w"].norm()) / p.weight for name, p in parts.items() if "w" in p.vectors}
        for name, norm in norms.items():
            own = self.past.setdefault(name, [])
            others = [value for other, value in norms.items() if other != name]
            usual, whose = None, ""
            if len(norms) >= COHORT:
                usual, whose = statistics.median(others), "the others in this round"
            elif len(own) >= PAST:
                usual, whose = statistics.median(own), "its own past rounds"
            if usual is not None and norm > FAR * usual:
                warnings.warn(
                    f"site {site_of[name]!r}, client {name!r}: the norm of its update is {norm:.3g}, "
                    f"{norm / max(usual, 1e-30):,.0f} times that of {whose}; ask the site, and check its data",
                    stacklevel=3,
                )
            own.append(norm)


def read_scores(
    view: View, answer: Envelope, info: ClientInfo, classes: Sequence[str], examples: int, may_score: bool
) -> tuple[Scores, str]:
    """Read an evaluation, and the fingerprint of the client's data.

    Args:
        view: What was asked.
        answer: The answer.
        info: What the site has reported about the client.
        classes: Classes of the model.
        examples: Number of examples of the view.
        may_score: Whether the site sends scores of single images.

    Raises:
        InvalidMessageError: If it is not what was asked for, or contradicts what the site has reported.
    """
    scored, tensors = answer.message(Evaluated), answer.tensors()
    wanted = {"none": set(), "tally": {"auroc", "positives", "negatives"}, "scores": {"scores", "labels"}}[scored.kind]
    if tensors.keys() != wanted or (scored.kind == "scores" and not may_score):
        raise InvalidMessageError(
            f"an evaluation of kind {scored.kind!r}: expected {sorted(wanted)}, found {sorted(tensors)}",
            key="reply-evaluation-tensors",
        )
    if scored.examples != examples and not (scored.kind == "none" and scored.examples == 0):
        raise InvalidMessageError(
            f"an evaluation of {scored.examples} images, expected {examples}", key="reply-evaluation-examples"
        )
    size = getattr(info, view.part)
    counts = info.counts.get(view.part) if examples == size else None
    made = Scores(view, scored.examples, None, None, scored.logged)
    if scored.kind == "tally":
        made.tally = _tally(tensors, classes, counts, examples)
    elif scored.kind == "scores":
        scores, labels = tensors["scores"], tensors["labels"]
        if scores.shape != (examples, len(classes)) or scores.shape != labels.shape or not scores.is_floating_point():
            raise InvalidMessageError(
                f"expected scores and labels of shape {(examples, len(classes))}, found {tuple(scores.shape)} and "
                f"{tuple(labels.shape)}",
                key="reply-scores-shape",
            )
        if not ((labels == 0) | (labels == 1) | labels.isnan()).all():
            raise InvalidMessageError("expected labels 0, 1 and NaN, found other values", key="reply-labels-not-binary")
        _agree(counts, [(labels == value).sum(0).tolist() for value in (1, 0)])
        made = replace(made, scores=scores, labels=labels)
    return made, scored.data


def _tally(tensors: State, classes: Sequence[str], counts: list[list[int | None]] | None, examples: int) -> Tally:
    bins, auroc = (len(classes), BINS), tensors["auroc"]
    histograms = [tensors[name] for name in ("positives", "negatives")]
    if any(h.dtype != torch.int64 or h.shape != bins or (h < 0).any() for h in histograms):
        raise InvalidMessageError("the histograms are not counts of fedlit's bins", key="reply-histogram-counts")
    if auroc.dtype != torch.float64 or auroc.shape != bins[:1] or (sum(histograms).sum(1) > examples).any():
        raise InvalidMessageError(
            "AUROC of other classes, or histograms of more images than the client has", key="reply-histogram-size"
        )
    _agree(counts, [h.sum(1).tolist() for h in histograms])
    tally = Tally(auroc, *histograms)
    binned, within = pooled_auroc([tally], classes)
    if ((auroc - binned.auroc).abs() > within + 1e-9).any() or (auroc.isnan() != binned.auroc.isnan()).any():
        raise InvalidMessageError("its AUROC contradicts its own histograms", key="reply-auroc-contradiction")
    return tally


def _agree(counts: list[list[int | None]] | None, received: list[list[int]]) -> None:
    """Compare positives and negatives of each class with the site's reported counts; a hidden class has none."""
    for reported, sent in zip(counts or (), received, strict=False):
        if any(count is not None and count != number for count, number in zip(reported, sent, strict=True)):
            raise InvalidMessageError(
                "its numbers of positives and negatives contradict those that it reported at hello",
                key="reply-counts-contradiction",
            )


def not_agreed(what: str, odd: Mapping[str, str], site_of: Mapping[str, str]) -> TrainingError:
    """Return the error of a round in which sites send different vectors."""
    named = "; ".join(f"site {site_of[name]!r}, client {name!r}: {printable(why)}" for name, why in odd.items())
    return TrainingError(
        f"{what}: sites do not send the same vectors: {named}. Install the same fedlit and the same code everywhere",
        key="sites-send-other-vectors",
    )
