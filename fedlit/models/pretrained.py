"""Pretrained weights of timm: from its hub, from the cache of earlier downloads, or an answer at once."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import timm
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
    try:
        if hub:  # through the hub's own client, which has the user's proxy, certificates and token
            get_hf_file_metadata(address, timeout=SECONDS)
        else:
            urlopen(Request(address, method="HEAD"), timeout=SECONDS).close()
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
