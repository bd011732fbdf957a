"""Pretrained weights: loaded from a hub and from its cache, and refused at once without a network."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import constants
from refusals import raising, refused

from fedlit.core.errors import ConfigError
from fedlit.models import ImageClassifier, backbones

SCRIPT = """
import gc
gc.disable()
import hashlib, socket, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit
import timm, torch
from huggingface_hub import constants
from safetensors.torch import save
from fedlit.core.errors import ConfigError
from fedlit.models import ImageClassifier

LAYER = "layer4.0.conv2.weight"
torch.manual_seed(0)
weights = timm.create_model("resnet10t").state_dict()
content = save(weights)


class Hub(BaseHTTPRequestHandler):
    def do_HEAD(self):
        self.send_response(200)
        for name, value in (("X-Repo-Commit", "a" * 40), ("ETag", hashlib.sha256(content).hexdigest()),
                            ("Content-Length", str(len(content)))):
            self.send_header(name, value)
        self.end_headers()

    def do_GET(self):
        self.do_HEAD()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


def answer(backbone, **options):
    began = time.monotonic()
    try:
        body = ImageClassifier(("Edema",), backbone, in_chans=3, pretrained=True, **options).body
        text = "loaded" if torch.equal(body.state_dict()[LAYER], weights[LAYER]) else "random"
    except ConfigError as error:
        text = f"{type(error).__name__}: {error}"
    print(text, time.monotonic() - began < 10, sep="|")


address = urlsplit(constants.ENDPOINT)
answer("resnet10t")  # nobody listens
hub = ThreadingHTTPServer((address.hostname, address.port), Hub)
threading.Thread(target=hub.serve_forever, daemon=True).start()
answer("resnet10t")
hub.shutdown()
hub.server_close()
answer("resnet10t")  # from the cache
silent = socket.create_server((address.hostname, address.port))
answer("resnet14t")
answer("resnet10t")
"""


def test_without_a_network_and_without_a_cache_the_way_out_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(backbones, "get_hf_file_metadata", raising(ConnectionError("Name or service not known")))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(socket.socket, "connect", raising(AssertionError("somebody asks for the weights")))
    with refused(ConfigError, "resnet10t", "service not known", "model.weights"):
        ImageClassifier(("Edema",), "resnet10t", pretrained=True)
    assert not constants.HF_HUB_OFFLINE


@pytest.mark.slow
def test_weights_come_from_the_hub_or_its_cache_or_there_is_an_answer_at_once(tmp_path: Path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{probe.getsockname()[1]}"
    paths = {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    plain = {name: value for name, value in os.environ.items() if "proxy" not in name.lower() and name[:3] != "HF_"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=plain | paths, capture_output=True, text=True, timeout=200
    )
    refused, loaded, cached, silent, cached_again = done.stdout.splitlines()
    missing = "ConfigError: model.pretrained: expected the weights of {} at {}/timm/{}"
    assert refused.startswith(missing.format("resnet10t", address, "resnet10t.c3_in1k")), done.stderr
    assert silent.startswith(missing.format("resnet14t", address, "resnet14t.c3_in1k"))
    assert "(no answer within 5 s); download the file elsewhere and set model.weights to it" in silent
    assert [loaded, cached, cached_again] == ["loaded|True"] * 3
    assert refused.endswith("|True")
    assert silent.endswith("|True")
