"""Exact AUROC of each class with its support, and two averages of it in a federation.

*Pooled* AUROC ranks all scores together (``class_auroc``). *Client-mean* AUROC is the mean of the clients' own AUROCs
(``client_mean_auroc``). The two can differ widely, so they have different metric names: ``auroc`` and
``auroc_client_mean``.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


def auroc(scores: Tensor, labels: Tensor, classes: Sequence[str] | None = None) -> Tensor:
    """Return the area under the ROC curve of each class: the Mann-Whitney statistic with averaged ties.

    Pairs are counted as integers and divided once, so the value is exact.

    See Hanley and McNeil (1982), "The meaning and use of the area under a receiver operating characteristic curve".
    torchmetrics' ``multilabel_auroc`` is the same statistic, but it divides in float32, takes the sigmoid of logits, in
    which large ones become ties, and is 0 for a class without positives or without negatives.

    Args:
        scores: ``[N, C]`` floating point, of any monotone scale. Logits are best, because probabilities near 0 and 1
            round to equal values, which are ties.
        labels: ``[N, C]`` with 1 positive, 0 negative, NaN unlabelled (left out of its class).
        classes: Names of the C columns for error messages; by default columns are numbered.

    Returns:
        ``[C]`` float64 on the CPU; NaN for a class without positives or without negatives.

    Raises:
        ValueError: The shapes differ, a label is not 0, 1 or NaN, or a score is not finite.
    """
    return _auroc_of_codes(scores, label_codes(scores, labels, classes))


def class_auroc(scores: Tensor, labels: Tensor, classes: Sequence[str]) -> "ClassAUROC":
    """Return AUROC and support of each class; see ``auroc``."""
    codes = label_codes(scores, labels, classes)
    positives, negatives = ((codes == label).sum(0).cpu() for label in (1, 0))
    return ClassAUROC(tuple(classes), _auroc_of_codes(scores, codes), positives, negatives)


def grouped_auroc(groups: Sequence[tuple[Tensor, Tensor]], classes: Sequence[str]) -> list["ClassAUROC"]:
    """Return ``class_auroc`` of each of many sets of scores and labels, with one sort per class for all sets."""
    if not groups:
        return []
    scores, labels = (torch.cat(parts).cpu() for parts in zip(*groups, strict=True))
    sizes = torch.tensor([len(part) for part, _ in groups])
    codes, group = label_codes(scores, labels, classes), torch.arange(len(groups)).repeat_interleave(sizes)
    shape = len(groups), len(classes)
    values, support = torch.full(shape, torch.nan, dtype=torch.float64), torch.zeros(2, *shape, dtype=torch.int64)
    for column in range(len(classes)):
        rows = codes[:, column] >= 0
        owner, positive = group[rows], codes[rows, column] == 1
        # Ranks as integers, so that one stable sort by group keeps each group sorted by score.
        ranks = torch.unique(scores[rows, column], return_inverse=True)[1]
        order = ranks.argsort()
        order = order[owner[order].argsort(stable=True)]
        owner, ranks, positive = owner[order], ranks[order], positive[order].long()
        starts = torch.ones(len(owner), dtype=torch.bool)
        starts[1:] = (ranks[1:] != ranks[:-1]) | (owner[1:] != owner[:-1])
        tie = starts.cumsum(0) - 1
        ties = torch.zeros(2, int(starts.sum()), dtype=torch.int64)
        ties.index_add_(1, tie, torch.stack([positive, 1 - positive]))
        of_tie, below = owner[starts], ties[1].cumsum(0) - ties[1]
        support[:, :, column].index_add_(1, of_tie, ties)
        before = support[1, :, column].cumsum(0) - support[1, :, column]
        doubled = torch.zeros(len(groups), dtype=torch.int64)
        doubled.index_add_(0, of_tie, ties[0] * (2 * (below - before[of_tie]) + ties[1]))
        pairs = support[0, :, column] * support[1, :, column]
        values[:, column] = torch.where(pairs > 0, doubled.double() / (2 * pairs).double(), torch.nan)
    names = tuple(classes)
    return [ClassAUROC(names, *result) for result in zip(values, *support, strict=True)]


def label_codes(scores: Tensor, labels: Tensor, classes: Sequence[str] | None = None) -> Tensor:
    """Check scores and labels as ``auroc`` does, and return the labels as int8 ``[N, C]``: 1, 0 or -1 (unlabelled)."""
    expected = scores.shape[-1:] if classes is None else (len(classes),)
    if scores.ndim != 2 or scores.shape != labels.shape or scores.shape[1:] != expected:
        columns = "C" if classes is None else len(classes)
        found = f"{list(scores.shape)} and {list(labels.shape)}"
        raise ValueError(f"Expected scores and labels of the same shape [N, {columns}], found {found}.")
    if not scores.is_floating_point():
        raise ValueError(f"Expected floating-point scores, found {scores.dtype}. Pass logits, not decisions.")
    names = [f"number {column}" for column in range(*expected)] if classes is None else [*map(repr, classes)]
    unlabelled = labels.isnan()
    unknown = ~((labels == 0) | (labels == 1) | unlabelled)
    if unknown.any():
        column = int(unknown.any(0).nonzero()[0])
        value = labels[unknown[:, column], column][0].item()
        raise ValueError(
            f"Expected labels 0, 1 or NaN (unlabelled), found {value:g} for class {names[column]}. "
            "Map uncertain or missing labels to NaN, 0 or 1 first."
        )
    counts = (~scores.isfinite()).sum(0).tolist()
    if any(counts):
        bad = ", ".join(f"{count} for class {name}" for count, name in zip(counts, names, strict=True) if count)
        raise ValueError(
            f"Expected finite scores, found NaN or infinite ones: {bad} (of {len(scores)} each). "
            "They cannot be ranked; the model may have diverged."
        )
    return labels.masked_fill(unlabelled, -1).to(torch.int8)


def roc_counts(scores: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
    """Return false and true positives of one class at each distinct score, from the highest threshold down.

    Args:
        scores: ``[N]`` finite scores of the labelled images.
        positive: ``[N]`` bool.

    Returns:
        Two int64 tensors ``[T + 1]`` for T distinct scores, from (0, 0) to (negatives, positives).
    """
    ranked, order = scores.sort(descending=True)
    true = positive[order].cumsum(0)
    false = torch.arange(1, len(ranked) + 1, device=true.device) - true
    last_of_tie = torch.ones(len(ranked), dtype=torch.bool, device=true.device)
    last_of_tie[:-1] = ranked[1:] != ranked[:-1]
    origin = true.new_zeros(1)
    return torch.cat([origin, false[last_of_tie]]), torch.cat([origin, true[last_of_tie]])


def slug(name: str) -> str:
    """Return ``name`` as one level of an MLflow metric name: letters, digits, ``_``, ``.``, ``-`` and spaces.

    Every other character becomes ``_``, including "/", which would start a new level ("Nodule/Mass" is one class).
    """
    cleaned = re.sub(r"[^\w.\- ]", "_", name)
    # MLflow treats "." and ".." as directories and drops an empty level.
    return cleaned if cleaned.strip(".") else "_" * max(1, len(cleaned))


def slugs(names: Sequence[str]) -> tuple[str, ...]:
    """Return the slug of each name.

    Raises:
        ValueError: Two names have the same slug, so one metric would overwrite the other.
    """
    owner: dict[str, str] = {}
    for name in names:
        key = slug(name)
        if key in owner:
            raise ValueError(
                f"Expected class names with distinct metric names, found {owner[key]!r} and {name!r}, both logged as "
                f"{key!r}. Rename one of them."
            )
        owner[key] = name
    return tuple(owner)


@dataclass(eq=False)
class ClassAUROC:
    """AUROC of each class over one set of scores, with its support.

    Args:
        classes: Names of the C classes.
        auroc: ``[C]`` float64; NaN for classes without positives or without negatives.
        n_pos: ``[C]`` int64, number of images labelled positive.
        n_neg: ``[C]`` int64, number of images labelled negative.
    """

    classes: tuple[str, ...]
    auroc: Tensor
    n_pos: Tensor
    n_neg: Tensor

    @property
    def mean(self) -> float:
        """Macro AUROC: the mean over the classes where it is defined; NaN if there are none."""
        return self.auroc.nanmean().item()

    def as_metrics(self, prefix: str) -> dict[str, float]:
        """Return ``{prefix}/auroc/<class>``, ``n_pos``, ``n_neg`` and ``{prefix}/auroc_macro``, NaN included.

        The prefix names the scored data, such as "val", "test/nih" or "client/north".
        """
        values = {"auroc": self.auroc, "n_pos": self.n_pos, "n_neg": self.n_neg}
        keys = slugs(self.classes)
        return {
            f"{prefix}/{metric}/{key}": float(value)
            for metric, column in values.items()
            for key, value in zip(keys, column.tolist(), strict=True)
        } | {f"{prefix}/auroc_macro": self.mean}


def client_mean_auroc(results: Sequence[ClassAUROC]) -> float:
    """Return the mean over classes of the unweighted mean AUROC over clients, each where it is defined.

    Classes are matched by name, so clients may label different classes in different orders. The mean is NaN if AUROC is
    undefined for all classes and clients.
    """
    defined: dict[str, list[float]] = {}
    for result in results:
        for name, value in zip(result.classes, result.auroc.tolist(), strict=True):
            defined.setdefault(name, []).extend([value] * (not math.isnan(value)))
    means = [sum(values) / len(values) if values else math.nan for values in defined.values()]
    return torch.tensor(means, dtype=torch.float64).nanmean().item()


def _auroc_of_codes(scores: Tensor, codes: Tensor) -> Tensor:
    values = [float("nan")] * scores.shape[1]
    # Labelled subsets differ in length, so there is one vectorised sort per class.
    for column in range(scores.shape[1]):
        code = codes[:, column]
        labelled = code >= 0
        false, true = roc_counts(scores[labelled, column], code[labelled] == 1)
        pairs = int(false[-1]) * int(true[-1])
        if pairs:
            doubled_area = (false.diff() * (true[1:] + true[:-1])).sum()
            values[column] = int(doubled_area) / (2 * pairs)
    return torch.tensor(values, dtype=torch.float64)
