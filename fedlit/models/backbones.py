"""Backbones of timm: pretrained weights from its hub or the cache of earlier downloads, and changes for federations."""

import math
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import timm
import torch
from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
from huggingface_hub.utils import EntryNotFoundError
from torch import nn

from fedlit.core.errors import ConfigError

SECONDS = 5
"""Longest wait for the first answer of a server. The hub itself would try again for a minute or two."""


def with_pretrained_weights(name: str, **options: object) -> nn.Module:
    """Return a timm model with its pretrained weights; without a network they are loaded from the cache.

    Raises:
        ConfigError: Its server does not answer, and the cache does not have the weights.
    """
    source = timm.get_pretrained_cfg(name)
    repository, _, revision = (source.hf_hub_id or "").partition("@")
    file = source.hf_hub_filename or "model.safetensors"
    address = hf_hub_url(repository, file, revision=revision or None) if repository else source.url
    silence = _silence(lambda: _ask(address, hub=bool(repository)))
    try:
        with _offline() if silence else nullcontext():
            return timm.create_model(name, pretrained=True, **options)
    except Exception as error:
        if not isinstance(error, OSError) and not type(error).__module__.startswith("http"):  # as in httpx
            raise
        raise ConfigError(
            f"model.pretrained: expected the weights of {name} at {address}, found no way to load them "
            f"({silence or _first_line(error)}); download the file elsewhere and set model.weights to it"
        ) from error


def _ask(address: str, hub: bool) -> None:
    try:  # the client waits longer than `_silence`, which then always says the same of a silent server
        if hub:  # through the hub's own client, which has the user's proxy, certificates and token
            get_hf_file_metadata(address, timeout=2 * SECONDS)
        else:
            urlopen(Request(address, method="HEAD"), timeout=2 * SECONDS).close()
    except (EntryNotFoundError, HTTPError):  # the server answers; older weights have another name
        pass


def _silence(ask: Callable[[], None]) -> str:
    """Return why a server does not answer, or ""; a name server, and each address, may take its own time to fail."""
    reasons = [f"no answer within {SECONDS} s"]

    def attempt() -> None:
        try:
            ask()
            reasons.append("")
        except Exception as error:  # each version of the hub's client has its own
            reasons.append(_first_line(error))

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(SECONDS)
    return reasons[-1]


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


@contextmanager
def _offline() -> Iterator[None]:
    """Context manager in which weights come from the cache, or not at all."""
    before, timeout = constants.HF_HUB_OFFLINE, socket.getdefaulttimeout()
    constants.HF_HUB_OFFLINE = True
    socket.setdefaulttimeout(1)  # of downloads by torch
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
        socket.setdefaulttimeout(timeout)


def group_normalised(body: nn.Module) -> nn.Module:
    """Replace every BatchNorm by a GroupNorm of up to 32 groups, keeping scale, shift, dropout and activation.

    A GroupNorm has no running statistics, so clients with different data cannot disagree on them.
    """
    for name, layer in list(body.named_modules()):
        if isinstance(layer, nn.BatchNorm2d):
            group = nn.GroupNorm(math.gcd(32, layer.num_features), layer.num_features, layer.eps)
            with torch.no_grad():
                group.weight.copy_(layer.weight)
                group.bias.copy_(layer.bias)
            # timm's BatchNormAct2d holds its dropout and its activation.
            rest = [getattr(layer, part) for part in ("drop", "act") if hasattr(layer, part)]
            _replace(body, name, nn.Sequential(group, *rest))
    return body


def small_stem(body: nn.Module, backbone: str) -> nn.Module:
    """Change the stem for images of about 32x32: a 3x3 first convolution of stride 1, and no first pooling.

    The usual stem of ImageNet models shrinks an image by four before the first block, and 32x32 to a single pixel in
    the last. This takes 16 times as long at the same image size.

    Raises:
        ConfigError: The backbone's stem is not one convolution with stride 2 and one pooling, as in DenseNet and
            ResNet.
    """
    first = getattr(body, "pretrained_cfg", {}).get("first_conv")
    conv = body.get_submodule(first) if isinstance(first, str) else None
    pools = [name for name, layer in body.named_modules() if isinstance(layer, nn.MaxPool2d)]
    if not isinstance(conv, nn.Conv2d) or conv.stride != (2, 2) or len(pools) != 1:
        raise ConfigError(
            f"model.stem: {backbone} does not begin with one convolution of stride 2 and one pooling as DenseNet and "
            "ResNet do; use stem: imagenet"
        )
    small = nn.Conv2d(conv.in_channels, conv.out_channels, 3, padding=1, bias=conv.bias is not None)
    nn.init.kaiming_normal_(small.weight)
    _replace(body, first, small)
    _replace(body, pools[0], nn.Identity())
    return body


def standardised(body: nn.Module, backbone: str, features: int) -> nn.Module:
    """Put a BatchNorm without scale and shift after the last layer, so that each of the features has about unit scale.

    While the body trains, it normalises by the batch and averages mean and deviation; in a frozen body these are fixed.
    He et al., CVPR 2022, arXiv:2111.06377, appendix A.1, train linear classifiers on frozen features in this way.

    Raises:
        ConfigError: The backbone has no single place for a classifier.
    """
    last = getattr(body, "pretrained_cfg", {}).get("classifier")
    if not isinstance(last, str) or not isinstance(body.get_submodule(last), nn.Identity):
        raise ConfigError(
            f"model.features: expected a backbone that ends in one classifier, found {backbone}; leave features out"
        )
    _replace(body, last, nn.BatchNorm1d(features, affine=False))
    return body


def _replace(body: nn.Module, name: str, layer: nn.Module) -> None:
    parent, _, leaf = name.rpartition(".")
    setattr(body.get_submodule(parent), leaf, layer)
