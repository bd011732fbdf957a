"""The image classifier: a timm backbone, a linear head, an objective."""

import re
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Literal

import timm
import torch
from lightning.pytorch.cli import OptimizerCallable
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from fedlit.core.checkpoints import checkpoint
from fedlit.core.errors import CheckpointError, ConfigError, DataError
from fedlit.core.ranges import Count, Decay, Within
from fedlit.core.system.fetching import may_fetch
from fedlit.models.backbones import group_normalised, small_stem, standardised, with_pretrained_weights
from fedlit.models.steps import Classifier

TOO_SMALL = re.compile(r"[Oo]utput size is too small|[Kk]ernel size can't be greater|must be greater than zero")
"""Errors of torch if an image has no pixels left after some layers."""

Width = Annotated[int, Within("[0, inf)", "; use 0 for none")]
"""Width of an optional layer."""


class ImageClassifier(Classifier):
    """A multi-label classifier of images [B, in_chans, H, W] into logits [B, C].

    ``body`` (the papers' representation block, any timm backbone without its classifier) and ``head`` (the task block,
    one linear layer with one row per class) have names, so algorithms can share them differently.

    If only the head is trained, the body's features of an image never change: they are computed once and kept in the
    data's cache, and ``forward`` takes features [B, D] as well as images.

    Args:
        classes: Names of the classes, in the order of the head's rows; taken from the data by default.
        backbone: A timm model, for example densenet121 or densenet161, or one of fedlit's own, which have no pretrained
            weights: resnet20_cifar (He et al., 2016, for 32x32), small_cnn (three convolutions, for 28x28).
        in_chans: Number of channels of the images; pretrained weights are adapted to it.
        pretrained: Start the body from timm's pretrained weights, downloaded from its hub.
        weights: Start the body from a local file instead: a checkpoint of the same timm backbone, a model that fedlit
            exported, or the directory of a run, whose best model is taken. Heads are discarded.
        norm: Normalisation layers: ``batch``, or ``group``: GroupNorm instead of every BatchNorm, which has no
            statistics that clients of different classes would have to share.
        stem: First layers of the body: ``imagenet``, or ``small`` for images of about 32x32: a 3x3 convolution of
            stride 1 and no pooling, at 16 times the cost.
        features: ``standardised`` divides the body's features by a deviation after subtracting a mean, so that one
            learning rate fits the heads of any body; by default they stay as they are. A body that trains computes both
            from its batches; a frozen one has those of the run from which it is loaded (``weights``).
        hidden: Width of a hidden layer (ReLU) between body and head; 0 for none.
        projection: Width of the output of a projection head before ``head`` (two layers with a ReLU between them, as in
            MOON); 0 for none.
        trainable: Trained part: ``all``, or ``head``: then the body is frozen, in evaluation mode.
        drop_rate: Rate of dropout before the head.
        objective: The loss, called with (logits, labels); unknown labels are NaN.
        optimizer: Optimizer of every client's local steps.

    Raises:
        ConfigError: The backbone, its pretrained weights or the file do not exist, or the file is of another backbone;
            or the features of a frozen body should be standardised, and its weights have no mean and deviation.
    """

    any_memory_format = True
    """Backbones of timm compute on images of any memory format; see :class:`fedlit.core.parts.Parts`."""

    def __init__(
        self,
        classes: Sequence[str] = (),
        backbone: str = "densenet121",
        in_chans: Count = 1,
        pretrained: bool = False,
        weights: Path | None = None,
        norm: Literal["batch", "group"] = "batch",
        stem: Literal["imagenet", "small"] = "imagenet",
        features: Literal["standardised"] | None = None,
        hidden: Width = 0,
        projection: Width = 0,
        trainable: Literal["all", "head"] = "all",
        drop_rate: Decay = 0.0,
        objective: nn.Module | None = None,
        optimizer: OptimizerCallable = lambda p: torch.optim.SGD(p, lr=0.05),
    ) -> None:
        super().__init__(classes)
        trained = None if weights is None else _trained_body(Path(weights))
        if features and trainable == "head" and (pretrained or (weights is not None and trained is None)):
            raise ConfigError(
                "model.features: expected the weights of a run that trained with features: standardised, found "
                f"{'pretrained weights' if pretrained else weights}, which have no mean and deviation of the features; "
                "train such a run and set model.weights to it or to its exported model, or leave features out"
            )
        published = weights if trained is None else None
        self.body = _backbone(backbone, in_chans, pretrained, published, norm, stem, standard=bool(features))
        if trained is not None:
            _start(self.body, trained, weights, backbone)
        counted = next(self.body.parameters()).is_meta  # a site counts the weights of a model before it makes it
        self._drawn = None if pretrained or weights or counted else _sum_of(self.body)
        self.backbone, self.in_chans = backbone, in_chans
        width = _width(self.body)
        self.hidden = nn.Sequential(nn.Linear(width, hidden), nn.ReLU()) if hidden else nn.Identity()
        width = hidden or width
        layers = (nn.Linear(width, width), nn.ReLU(), nn.Linear(width, projection)) if projection else ()
        self.projection = nn.Sequential(*layers)
        self.drop = nn.Dropout(drop_rate)
        self.head = nn.Linear(projection or width, len(self.classes))
        self.train_with(objective, optimizer)
        self.train_only(trainable)

    def train_only(self, part: Literal["all", "head"]) -> None:
        """Train all of the model, or freeze the body."""
        self.frozen = part == "head"
        self.body.requires_grad_(not self.frozen)

    @property
    def fixed_features(self) -> nn.Module | None:
        """The layers from images to features that training never changes; None if the whole model is trained."""
        return self.body if self.frozen else None

    @property
    def random_features(self) -> bool:
        """True if the body is frozen with the weights with which it was drawn, neither trained nor loaded since."""
        return self.frozen and self._drawn == _sum_of(self.body)

    def train(self, mode: bool = True) -> "ImageClassifier":
        """Set the mode of all layers; a frozen body stays in evaluation mode."""
        super().train(mode)
        if self.frozen:
            self.body.eval()
        return self

    def forward(self, images: Tensor) -> Tensor:
        """Return logits [B, C] of images [B, in_chans, H, W], or of the body's features [B, D]."""
        if images.ndim not in (2, 4):
            raise DataError(
                f"images: expected [B, {self.in_chans}, H, W], found {list(images.shape)}; return images [channels, H, "
                "W] from the data set"
            )
        features = self._features(images) if images.ndim == 4 else images
        return self.head(self.drop(self.projection(self.hidden(features))))

    def _features(self, images: Tensor) -> Tensor:
        if images.shape[1] != self.in_chans:
            raise ConfigError(
                f"model.in_chans: expected images with {self.in_chans} channels, found {images.shape[1]}; set "
                "model.in_chans and data.in_chans to the same number"
            )
        try:
            return self.body(images)
        except (AssertionError, RuntimeError, ValueError) as error:
            reason, pixels = str(error), tuple(images.shape[2:])
            if "more than 1 value per channel" in reason:
                raise ConfigError(
                    f"data.batch_size: BatchNorm of {self.backbone} cannot normalise a batch of one image of {pixels} "
                    "pixels; use at least 2, or model.norm: group"
                ) from error
            if not isinstance(error, AssertionError) and not TOO_SMALL.search(reason):
                raise
            raise ConfigError(
                f"data.image_size: {self.backbone} cannot take images of {pixels} pixels: {reason.splitlines()[0]}"
            ) from error


def _width(body: nn.Module) -> int:
    return getattr(body, "head_hidden_size", body.num_features)  # some bodies widen at their end


def _backbone(
    name: str, in_chans: int, pretrained: bool, weights: Path | None, norm: str, stem: str, standard: bool
) -> nn.Module:
    body = _timm_model(name, in_chans, pretrained, weights)
    if stem == "small":
        body = small_stem(body, name)
    if norm == "group":
        body = group_normalised(body)
    return standardised(body, name, _width(body)) if standard else body


def _trained_body(weights: Path) -> dict[str, Tensor] | None:
    """Return the body of a run's best model or of an exported model; None if the file is not of fedlit."""
    if weights.is_dir():
        try:
            tensors = checkpoint.tensors(weights)
        except CheckpointError as error:
            raise CheckpointError(f"model.weights: {error}") from error
    elif weights.is_file():
        try:
            with safe_open(weights, "pt") as file:
                if "fedlit" not in (file.metadata() or {}):
                    return None
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        except SafetensorError:
            return None
    else:
        raise ConfigError(f"model.weights: no file or directory {weights}")
    return {key.removeprefix("body."): value for key, value in tensors.items() if key.startswith("body.")}


def _start(body: nn.Module, trained: dict[str, Tensor], weights: Path, name: str) -> None:
    """Give a body the weights and statistics of a trained one, which must have the same layers."""
    there, here = (
        {k: tuple(v.shape) for k, v in tensors.items() if v.is_floating_point()}
        for tensors in (trained, body.state_dict())
    )
    wrong = [k for k in {**here, **there} if here.get(k) != there.get(k)]
    if wrong:
        first = f"body.{wrong[0]} is {there.get(wrong[0], 'absent')} there, {here.get(wrong[0], 'absent')} here"
        raise ConfigError(
            f"model.weights: the body of the model in {weights} is not a {name} with this norm, stem and features: "
            f"{first} ({len(wrong)} of {len(here)} tensors differ)"
        )
    body.load_state_dict(trained, strict=False)


def _timm_model(name: str, in_chans: int, pretrained: bool, weights: Path | None) -> nn.Module:
    if not timm.is_model(name):
        similar = get_close_matches(name, timm.list_models(), n=4)
        hint = f"similar names are {', '.join(similar)}" if similar else "see timm.list_models()"
        raise ConfigError(f"model.backbone: timm has no {name!r}; {hint}")
    options = {"num_classes": 0, "in_chans": in_chans}
    if weights is None:
        if pretrained and not timm.is_model_pretrained(name):
            raise ConfigError(f"model.pretrained: {name} has no pretrained weights; leave it out, or set model.weights")
        fetches = pretrained and may_fetch()
        return with_pretrained_weights(name, **options) if fetches else timm.create_model(name, **options)
    try:
        stored = timm.models.load_state_dict(str(weights))
    except Exception as error:  # torch, pickle, zipfile and safetensors each raise their own
        raise ConfigError(
            f"model.weights: {weights} cannot be read as a checkpoint of torch or safetensors "
            f"({type(error).__name__}); is it complete?"
        ) from error
    try:
        body = timm.create_model(name, pretrained=True, pretrained_cfg_overlay={"file": str(weights)}, **options)
    except (RuntimeError, KeyError) as error:
        raise ConfigError(f"model.weights: {weights} does not fit {name}: {error}") from error
    # timm silently skips tensors that do not match, so a file of another model would give a random body. It renames
    # those of torchvision, so the check compares values; tensors of one dimension start at 0 or 1 in every model.
    wanted = {key: value for key, value in body.state_dict().items() if value.ndim > 1}
    values = {_fingerprint(value) for value in stored.values() if torch.is_tensor(value)}
    missing = [key for key, value in wanted.items() if _fingerprint(value) not in values]
    if len(missing) > len(wanted) // 2:
        raise ConfigError(
            f"model.weights: {weights} does not fit {name}: it lacks {len(missing)} of {len(wanted)} weights of "
            f"layers, among them {missing[0]}"
        )
    return body


def _sum_of(body: nn.Module) -> float:
    return sum(float(parameter.detach().double().sum()) for parameter in body.parameters())


def _fingerprint(value: Tensor) -> tuple[tuple[int, ...], float]:
    return tuple(value.shape), float(value.double().sum())
