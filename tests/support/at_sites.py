"""Federations whose clients are at sites: commands of fedlit, with the sites in this process."""

import json
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from runs import Kept

import fedlit
from fedlit.cli.main import main
from fedlit.core.aggregator import Aggregator
from fedlit.core.checkpoints.manifest import Manifest
from fedlit.core.flat import Layout
from fedlit.sites.envelope import Envelope
from fedlit.sites.messages import REPLY, ClientInfo, SiteInfo
from fedlit.sites.process import SiteCrashed, SitesInProcess, answering
from fedlit.sites.roster import gather

TOYS = (
    "fit --data toys.ToyData --model toys.ToyNet --federation.schedule.window 2 --federation.schedule.unit steps "
    "--federation.workers 1 --federation.checkpoint_every 1 --logger false --name one"
)


def classifier(objective: str | None = None, lr: float = 0.01) -> dict:
    """The configuration of a small network that SGD trains."""
    options = {"backbone": "small_cnn", "optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": lr}}}
    own = {"objective": {"class_path": objective}} if objective else {}
    return {"class_path": "ImageClassifier", "init_args": options | own}


Answer = Callable[[bytes], bytes]


@dataclass
class Sites:
    """Sites in this process.

    Attributes:
        between: Called with a site's name, a message and what answers it: what comes back, or a fault.
        rules: Policies in place of the loopback's own, by site.
        surviving: Whether they are those of the command before, as sites whose server has died.
        away: Names of sites that do not take part.
        files: Their own files.
        made: How often each has been started.
    """

    between: Callable[[str, Envelope, Answer], bytes] | None = None
    rules: dict[str, dict] = field(default_factory=dict)
    surviving: bool = False
    away: set[str] = field(default_factory=set)
    files: dict[str, Path] = field(default_factory=dict)
    made: dict[str, int] = field(default_factory=dict)
    _last: SitesInProcess | None = None

    def recorded(self) -> list[tuple[str, Envelope, Envelope]]:
        """A list of the messages to come: the site, the message, and its answer."""
        exchanged = []

        def between(name: str, envelope: Envelope, answer: Answer) -> bytes:
            reply = answer(envelope.to_bytes())
            exchanged.append((name, envelope, Envelope.from_bytes(reply)))
            return reply

        self.between = between
        return exchanged

    def transport(self, files: dict[str, Path]) -> SitesInProcess:
        if self.surviving and self._last is not None:
            return self._last
        files = {name: file for name, file in files.items() if name not in self.away}
        self.files = dict(files)
        for name, policy in self.rules.items():
            if name not in files:
                continue
            values = yaml.safe_load(files[name].read_text()) | {"policy": policy}
            files[name].write_text(yaml.safe_dump(values))
        self._last = Staying({name: partial(self.start, name) for name in files})
        return self._last

    def start(self, name: str) -> Answer:
        self.made[name] = self.made.get(name, 0) + 1
        answer = answering(self.files[name])
        return lambda content: (
            self.between(name, Envelope.from_bytes(content), answer) if self.between else answer(content)
        )

    def anew(self, envelope: Envelope, answer: Answer) -> bytes:
        """The answer of the second site's process after it was started again while nothing was asked of it."""
        return answering(self.files["site-2"])(envelope.to_bytes())


class BothSides(Aggregator):
    """An algorithm with something at the server that belongs to what clients keep, and no word on other clients."""

    def server_state(self, layout: Layout, w: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"sum": torch.zeros(1)}

    def client_state(self, layout: Layout) -> dict[str, torch.Tensor]:
        return {"own": torch.zeros(1)}


class Staying(SitesInProcess):
    """Sites that live longer than the command that has asked them."""

    def close(self) -> None:
        pass


@dataclass
class Ended:
    """What a run leaves, at the server and at its sites."""

    path: Path

    @property
    def kept(self) -> Kept:
        """The newest run that has ended: one that was killed before its first checkpoint stays behind."""
        return Kept(max((f.parent for f in self.path.glob("default/*/result.json")), key=lambda run: run.name))

    @property
    def server(self) -> dict[str, torch.Tensor]:
        return torch.load(self.kept.last / "server.pt", weights_only=True)

    def states(self) -> dict[str, dict[str, torch.Tensor]]:
        """The clients' states that belong to the last checkpoint, from its sites."""
        states, run = {}, json.loads((self.kept.path / "sites.json").read_text())["run"]
        for client, number in Manifest.read(self.kept.last).at_sites.items():
            if number is None:
                continue
            (folder,) = (self.path / "default" / "sites").glob(f"*/{run}/{client}")
            file = next(f for kind in ("round", "pending") if (f := folder / f"{kind}-{number:06d}.pt").exists())
            states[client] = torch.load(file, weights_only=True)
        return states


def finished(line: str) -> None:
    """Run a command line to its end."""
    with suppress(SystemExit):
        main(shlex.split(line))


def remembering(patch: pytest.MonkeyPatch, owner: object, name: str) -> None:
    """Call a function once for each last argument; later calls return copies of its first result."""
    function, results = getattr(owner, name), {}

    def remembered(*arguments):
        key = str(arguments[-1])
        if key not in results:
            results[key] = function(*arguments)
        return deepcopy(results[key])

    patch.setattr(owner, name, remembered)


def assert_same(at_sites: Ended, here: Ended, only_here: str = "-") -> None:
    """Compare tensors of server and clients, and metrics except those that begin with ``only_here``, bit for bit."""
    one, other = at_sites.server, here.server
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []
    assert at_sites.kept.metrics() == [row for row in here.kept.metrics() if not row[1].startswith(only_here)]
    states = at_sites.states()
    for name, tensor in here.kept.tensors().items():
        part, _, key = name.partition("/")
        if part != "server":
            assert torch.equal(states[part][key], tensor), name


def is_train(envelope: Envelope, index: int) -> bool:
    return envelope.verb == "train" and envelope.content["asked"]["index"] == index


def failing(name: str, index: int, times: int, how: Callable[[Envelope, Answer], bytes]) -> Callable:
    """A site whose part of a round goes wrong, so many times."""
    left = [times]

    def between(site_name: str, envelope: Envelope, answer: Answer) -> bytes:
        if site_name == name and is_train(envelope, index) and left[0]:
            left[0] -= 1
            return how(envelope, answer)
        return answer(envelope.to_bytes())

    return between


Change = Callable[[Envelope], Envelope]


def lying_in_turn(changes: Mapping[str, Sequence[Change | None]], name: str = "site-2") -> Callable:
    """A site whose answers to each verb are changed one after the other, or not for None, and honest after that."""
    left = {verb: list(each) for verb, each in changes.items()}

    def between(site: str, envelope: Envelope, answer: Answer) -> bytes:
        reply = Envelope.from_bytes(answer(envelope.to_bytes()))
        if site == name and reply.verb == REPLY and left.get(envelope.verb) and (change := left[envelope.verb].pop(0)):
            reply = replace(change(reply), sha256="")
        return reply.to_bytes()

    return between


def lying(verb: str, change: Change, times: int = 99, name: str = "site-2", after: int = 0) -> Callable:
    """A site whose answers to a verb are changed, from the ``after``-th on."""
    return lying_in_turn({verb: [None] * after + [change] * times}, name)


def array(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Change:
    """Change an array of an answer."""
    return lambda reply: replace(reply, vectors=reply.vectors | {name: change(reply.vectors[name])})


def said(**values) -> Change:
    """Change values of an answer's header, those of its report among them."""

    def changed(reply: Envelope) -> Envelope:
        content = dict(reply.content)
        for key, value in values.items():
            if key in content:
                content[key] = value
            else:
                content["report"] = content["report"] | {key: value}
        return replace(reply, content=content)

    return changed


def of_its_client(**changes) -> Change:
    """Change what a site reports about its client."""
    return lambda reply: said(clients=[reply.content["clients"][0] | changes])(reply)


def client_info(name: str = "north", **values) -> ClientInfo:
    """What an honest site reports about a client."""
    usual = {"classes": ["Edema", "Mass"], "scheme": None, "train": 20, "val": 5, "test": 5, "augmented": False}
    return ClientInfo(name, **usual | {"counts": {}, "organisations": {}, "data": "d"} | values)


def site_info(name: str, *clients: ClientInfo, **values) -> SiteInfo:
    """What an honest site reports about itself."""
    versions = {"fedlit": fedlit.__version__, "torch": torch.__version__, "python": "3.11", "device": "cpu"}
    usual = {"time": time.time(), "classes": ["Edema", "Mass"], "scores": False, "whole": True, "examples": 64}
    rules = {"batch": 8, "hides_below": 10, "privacy": None, "until": None, "ledger": ""}
    return SiteInfo(name, clients=list(clients), **versions | usual | rules | values)


def greeted(answers: Mapping[str, Envelope], classes: Sequence[str] = ()) -> None:
    """Ask sites who they are, which give these answers."""
    gather(SitesInProcess({name: lambda a=answer: lambda _: a.to_bytes() for name, answer in answers.items()}), classes)


def dying(envelope: Envelope, answer: Answer) -> bytes:
    answer(envelope.to_bytes())
    raise SiteCrashed
