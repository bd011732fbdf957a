"""Pretrained weights: loaded from a hub and from its cache, and refused at once without a network."""

import hashlib
import os
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import timm
import torch
from huggingface_hub import constants
from refusals import refused
from safetensors.torch import save

from fedlit.core.errors import ConfigError
from fedlit.models import ImageClassifier

LAYER = "layer4.0.conv2.weight"


def hub(content: bytes) -> type[BaseHTTPRequestHandler]:
    """Return a hub that has one file under all names."""

    class Hub(BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.send_response(200)
            for name, value in (("X-Repo-Commit", "a" * 40), ("ETag", hashlib.sha256(content).hexdigest()),
                                ("Content-Length", str(len(content)))):  # fmt: skip
                self.send_header(name, value)
            self.end_headers()

        def do_GET(self):
            self.do_HEAD()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    return Hub


@pytest.fixture
def address(tmp_path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, int]:
    """A free address, where the hub is expected, and an empty cache."""
    for name in [name for name in os.environ if "proxy" in name.lower()]:
        monkeypatch.delenv(name)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        found = probe.getsockname()
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{found[1]}")
    template = f"{constants.ENDPOINT}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    return found


def test_without_a_network_and_without_a_cache_the_way_out_is_named(address: tuple[str, int]):
    with refused(ConfigError, "resnet10t", constants.ENDPOINT, "model.weights"):
        ImageClassifier(("Edema",), "resnet10t", pretrained=True)
    assert not constants.HF_HUB_OFFLINE


@pytest.mark.slow
def test_weights_come_from_the_hub_or_its_cache_or_there_is_an_answer_at_once(address: tuple[str, int]):
    torch.manual_seed(0)
    weights = timm.create_model("resnet10t").state_dict()

    def loaded() -> bool:
        body = ImageClassifier(("Edema",), "resnet10t", in_chans=3, pretrained=True).body
        return torch.equal(body.state_dict()[LAYER], weights[LAYER])

    began = time.monotonic()
    with ThreadingHTTPServer(address, hub(save(weights))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert loaded()
        server.shutdown()
    assert loaded()  # from the cache
    with socket.create_server(address):
        with refused(ConfigError, "resnet14t", "no answer within 5 s", "model.weights"):
            ImageClassifier(("Edema",), "resnet14t", pretrained=True)
        assert loaded()
    assert time.monotonic() - began < 30
