"""Scores of classes: whether a module's classes exclude each other, and its scores if they do.

This is the only place that decides it. Predictions of :class:`fedlit.models.steps.Classifier`, every evaluation, here
and at sites, and served models ask it.
"""

import copy
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.data import Dataset

from fedlit.core.examples import LABEL, are_indices, fetch, part_of
from fedlit.core.fabric import FederationFabric
from fedlit.core.module import collect_logs, copy_of, step_of
from fedlit.core.objective import Loss
from fedlit.core.parts import Parts

Link = Callable[[Tensor], Tensor]
"""From logits [N, C] of classes that exclude each other to probabilities, whose rows sum to one."""

Taken = Literal["own", "softmax", "probabilities"]
"""What scores are made from: a step's output as it is, for classes of their own; if classes exclude each other, the
probabilities of its logits (as by a softmax), or the probabilities that it returns."""

OVER_CLASSES = {F.cross_entropy, F.nll_loss, F.log_softmax, torch.log_softmax, Tensor.log_softmax}
EACH_CLASS = {F.binary_cross_entropy, F.binary_cross_entropy_with_logits, F.multilabel_soft_margin_loss, F.logsigmoid}
"""Functions of torch from which losses of one class per image, and losses of classes of their own, are made."""

OFF = 5e-3
"""Largest difference of a sum of probabilities to one: those of bfloat16 are rounded."""


def softmax(logits: Tensor) -> Tensor:
    """Return the softmax of logits [N, C]."""
    return logits.softmax(1)


def probabilities(loss: nn.Module, logits: Tensor) -> Tensor:
    """Return the probabilities [B, C] of a model that was trained with a loss of (logits, labels)."""
    own = getattr(loss, "probabilities", None) or link_of_loss(loss, logits.shape[1])
    return own(logits) if own else logits.sigmoid()


def link_of_loss(loss: nn.Module, classes: int) -> Link | None:
    """Return the link if classes exclude each other under a loss of (logits [B, C], labels [B, C]), else None.

    Its ``probabilities`` say so, or that it computes a cross-entropy over the classes.
    """
    if classes < 2:
        return None
    like = next((tensor for tensor in (*loss.parameters(), *loss.buffers())), torch.empty(0))
    logits = torch.linspace(-1, 2, 2 * classes, device=like.device).view(2, classes)
    own = getattr(loss, "probabilities", None)
    if own is not None:
        with torch.no_grad():
            return own if are_probabilities(own(logits)) else None
    labels = torch.eye(classes, device=like.device)[:2]
    return softmax if _excludes(lambda: copy.deepcopy(loss)(logits, labels), classes) else None


def link_of(module: LightningModule, fabric: FederationFabric, dataset: Dataset | None) -> Link | None:
    """Return the link of a module whose classes exclude each other, and None for classes of their own.

    Its ``objective`` says so. Without one, a copy takes a training step on two examples of a data set, and computes a
    cross-entropy over the classes or one of each class. If it computes neither, a loss of fedlit in it says so, or
    labels that are class indices.
    """
    parts = Parts.of(module)
    classes = len(parts.classes)
    if classes < 2:
        return None
    if parts.objective is not None:
        return link_of_loss(parts.objective, classes)
    batch = None
    with suppress(Exception):  # data at sites, or data that cannot be read, which the first round explains
        batch = fetch(dataset, torch.arange(2))
    if batch is None:
        return None
    excludes = _excludes(lambda: _trial(module, fabric, batch), classes)
    if excludes is not None:
        return softmax if excludes else None
    if loss := next((part for part in module.modules() if isinstance(part, Loss)), None):
        return link_of_loss(loss, classes)
    labels = part_of(batch, 1, LABEL)
    return softmax if torch.is_tensor(labels) and are_indices(labels, classes) else None


def are_probabilities(rows: Tensor) -> bool:
    """Return whether all rows are not negative and sum to one."""
    return bool((rows >= 0).all() and ((rows.sum(1) - 1).abs() < OFF).all())


def log_odds(shares: Tensor) -> Tensor:
    """Return the logits [N, C] of probabilities whose rows sum to one, which the sigmoid turns back into them.

    They rank images as the probabilities do. The rest of the largest share is the sum of the others, because 1 minus a
    share near 1 would have no digits left.
    """
    shares = shares.clamp(min=torch.finfo(shares.dtype).tiny)
    top = shares.argmax(1, keepdim=True)
    rest = (1 - shares).scatter(1, top, shares.scatter(1, top, 0).sum(1, keepdim=True))
    return shares.log() - rest.log()


def exclusive_scores(link: Link, output: Tensor, method: str) -> tuple[Tensor, Taken]:
    """Return scores [N, C] of classes that exclude each other, from the outputs of a step for all examples."""
    given = are_probabilities(output)
    shares = output if given else link(output)
    return shares if method == "predict_step" else log_odds(shares), "probabilities" if given else "softmax"


class _Watch(TorchFunctionMode):
    """Watch for the functions that losses of C classes are made from."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes, self.over, self.each = classes, False, False

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in OVER_CLASSES:
            logits = args[0] if args else kwargs["input"]
            self.over = self.over or (logits.ndim == 2 and logits.shape[1] == self.classes)
        self.each = self.each or function in EACH_CLASS
        return function(*args, **kwargs)


def _excludes(compute_loss: Callable[[], Any], classes: int) -> bool | None:
    """Return whether a loss is one over the classes; None if it computes both kinds of loss, or neither."""
    with _Watch(classes) as watch, warnings.catch_warnings(), suppress(Exception, SystemExit):
        warnings.simplefilter("ignore")
        compute_loss()
    return watch.over if watch.over != watch.each else None


def _trial(module: LightningModule, fabric: FederationFabric, batch: Any) -> None:
    """Take a training step of a copy, up to its loss."""
    precision, twin = fabric.strategy.precision, copy_of(module)
    collect_logs(twin, fabric)
    try:
        with fabric.autocast():
            moved = fabric.to_device(precision.convert_input(batch))
            step_of(fabric.to_device(precision.convert_module(twin)), "training_step")(moved, 0)
    finally:
        fabric.begin()
