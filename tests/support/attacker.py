"""A server that asks a site for anything: a process of the loopback with a file of ``site init``."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import torch
import yaml
from at_sites import classifier
from torch import Tensor

import fedlit
from fedlit.core.fabric import make_fabric
from fedlit.core.flat import FlatModel
from fedlit.core.local_model import configured
from fedlit.data.phantom import FINDINGS
from fedlit.sites.envelope import Envelope
from fedlit.sites.folders import MemberFolder
from fedlit.sites.messages import FAILED, End, Hello, Look, Member, Prepare, SiteInfo, Task, Train, new_run  # fmt: skip
from fedlit.sites.payloads import module_tensors
from fedlit.sites.plan import RunPlan, read_plan, table_of
from fedlit.sites.process import SiteProcess, answering

HOSPITAL = {
    "class_path": "PhantomCXR",
    "init_args": {"hospitals": 1, "images": 300, "image_size": 16, "seed": 3, "augment": False},
}
"""A hospital of 300 images: 210 to train, 30 to validate, 60 to test."""

MODEL, MALLORY = classifier(), "mallory@example.org"
EPOCH = {"class_path": "ConstantSchedule", "init_args": {"window": 1, "unit": "epochs"}}
SHORT = {"class_path": "ConstantSchedule", "init_args": {"window": 4, "unit": "steps"}}
"""Four batches of 16 images, the fewest that a site's default floors allow."""


def a_plan(**changes: Any) -> dict[str, Any]:
    """A plan as JSON: three short rounds of FedAvg, with changes."""
    classes = list(FINDINGS)
    plan = RunPlan(
        MODEL, classes, [], SHORT, 3, 0, "", {}, "reset", None, None, 4, None, None, 1, 16, 64, None, "32-true"
    )
    return asdict(plan) | changes


def model_of(config: Mapping[str, Any], largest: float = 10**7) -> tuple[FlatModel, dict[str, Tensor]]:
    """Make the model of a plan as a server does; returns it with its tensors."""
    made = read_plan({**config, "schedule": None}, table_of(), largest)
    model = FlatModel(configured(make_fabric("cpu"), made.module, made.aggregators))
    return model, module_tensors(made.module.state_dict())


def submitted(**changes) -> str:
    """A lead's configuration as it comes to a server."""
    settings = {
        "seed": 0, "experiment": "x", "name": None, "tags": {}, "run_dir": "runs", "ckpt_path": None,
        "fast_dev_run": False,
        "logger": True, "phases": [], "phase": None, "callbacks": None, "fabric": {"precision": "32-true"},
        "model": MODEL, "data": {"class_path": "os.system"}, "federation": {"rounds": 2, "aggregators": []},
    }  # fmt: skip
    data = {"classes": ["Edema", "Mass"], "batch_size": 16, "eval_batch_size": 64}
    return json.dumps({"data": data, "settings": settings | changes})


def write_site(folder: Path, data: Mapping[str, Any] = HOSPITAL, **policy: Any) -> Path:
    """Write a site's folder as ``fedlit site init`` does, with changes of its policy, and return the site's file."""
    MemberFolder(
        folder,
        folder.name,
        "attacked",
        data=dict(data) | {"init_args": {**data["init_args"], "cache_dir": str(folder / "cache")}},
    ).write()
    file = folder / "local" / "fedlit-site.yaml"
    values = yaml.safe_load(file.read_text())
    for key, value in policy.items():
        merged = values["policy"].get(key, {}) | value if isinstance(value, dict) else value
        values["policy"][key] = merged
    file.write_text(yaml.safe_dump(values))
    return file


@dataclass
class Attacker:
    """A server that has one site's process at the other end of a pipe.

    Attributes:
        file: The site's own file.
        run: The run that it claims.
        config: The plan that it has sent last.
        lead: The lead whose job it is.
    """

    file: Path
    run: str = field(default_factory=new_run)
    config: dict[str, Any] = field(default_factory=a_plan)
    fingerprint: str = ""
    lead: str = MALLORY

    def __post_init__(self) -> None:
        self.site = SiteProcess("attacked", self.file, lead=self.lead)
        self.site.start()
        self.pid = self.site.process.pid
        self.client = ""

    def raw(self, content: bytes, seconds: float = 120) -> Envelope:
        """Send bytes, and return what comes back from the process that was there before."""
        self.site.connection.send_bytes(content)
        assert self.site.connection.poll(seconds), "the site's process hangs"
        answer = Envelope.from_bytes(self.site.connection.recv_bytes())
        assert self.site.process.is_alive()
        assert self.site.process.pid == self.pid
        return answer

    def ask(self, verb: str, message: Any, tensors: Mapping[str, Tensor] | None = None) -> Envelope:
        return self.raw(Envelope.of(verb, message, tensors).to_bytes())

    def content(self, verb: str, content: Any, tensors: Mapping[str, Tensor] | None = None) -> Envelope:
        """Send a message whose fields no dataclass has checked."""
        return self.raw(replace(Envelope.of(verb, End(""), tensors), content=content).to_bytes())

    def hello(self, needs: list[str] | None = None, lines: int = 0) -> Envelope:
        reply = self.ask("hello", Hello(fedlit.__version__, time.time(), needs or [], lines))
        if reply.verb != FAILED:
            info = reply.message(SiteInfo)
            self.client, self.classes = info.clients[0].name, info.classes
        return reply

    @property
    def site_info(self) -> SiteInfo:
        return self.hello().message(SiteInfo)

    def prepare(
        self,
        config: dict[str, Any] | None = None,
        run: str | None = None,
        tensors: dict[str, Tensor] | None = None,
        **changes: Any,
    ) -> Envelope:
        """Prepare a plan, with the tensors of the model that it describes where there is one."""
        if not self.client:
            self.hello()
        self.config = config if config is not None else a_plan(**{"classes": self.classes} | changes)
        self.run = run or self.run
        try:
            tensors = self.tensors() if tensors is None else tensors
        except Exception:  # a plan that is no plan
            tensors = {}
        members = [Member(self.client, 1.0)]
        return self.ask("prepare", Prepare(self.run, self.config, self.fingerprint, members), tensors)

    largest = 10**7
    """Largest number of weights of a model that it makes."""

    def tensors(self) -> dict[str, Tensor]:
        """Make the model as a server does, and take its layout's fingerprint."""
        self.model, tensors = self.made(self.config)
        self.fingerprint = self.model.layout.fingerprint
        return tensors

    def made(self, config: dict[str, Any]) -> tuple[FlatModel, dict[str, Tensor]]:
        return model_of(config, self.largest)

    @cached_property
    def classes(self) -> list[str]:
        return self.site_info.classes

    def down(self, **values: Tensor) -> dict[str, Tensor]:
        """The federation's vectors: those of the model as it is, or others."""
        stats = torch.nan_to_num(self.model.stats.clone(), nan=0.5)
        return {"w": self.model.w.clone(), "stats": stats} | values

    def task(self, asked: Train | Look, accepted: int | None = None, client: str | None = None) -> Task:
        return Task(self.run, self.fingerprint, client or self.client, accepted, [], False, asked)

    def train(self, index: int = 0, verb: str = "train", **given: Any) -> Envelope:
        accepted = given.pop("accepted", index or None)
        return self.ask(verb, self.task(Train(index, [self.client], True), accepted), self.down(**given))

    def evaluate(
        self, at: int = 0, part: str = "val", limit: int | None = None, accepted: int | None = None, **given: Any
    ) -> Envelope:
        look = Look(self.client, part, at, given.pop("method", "validation_step"), limit)
        return self.ask("evaluate", self.task(look, accepted), self.down(**given))

    @cached_property
    def state(self) -> Path:
        """The site's folder of states."""
        return Path(yaml.safe_load(self.file.read_text())["state"])

    def ledger(self) -> list[dict[str, Any]]:
        file = self.state / "ledger.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def close(self) -> None:
        self.site.close()

    def refuses(self, answer: Envelope, words: str, kind: str | None = None) -> None:
        """Assert that an answer is a refusal in words, that the process lives, and that the ledger has a line of it."""
        assert answer.verb == FAILED, answer.content
        assert words in answer.content["reason"], answer.content["reason"]
        assert kind is None or answer.content["kind"] == kind, answer.content
        assert not answer.vectors
        last = self.ledger()[-1]
        assert last["refused"] == answer.content["reason"]
        assert last["answer"] == "failed"
        assert last["lead"] == MALLORY


@lru_cache(16)
def _model_of_text(config: str) -> tuple[FlatModel, dict[str, Tensor]]:
    return model_of(json.loads(config))


class AttackerHere(Attacker):
    """A server whose site is in this process, without the limits of time and memory. It makes a plan's model once."""

    def made(self, config: dict[str, Any]) -> tuple[FlatModel, dict[str, Tensor]]:
        return _model_of_text(json.dumps(config))

    def __post_init__(self) -> None:
        self.answer, self.client = answering(self.file, self.lead), ""

    def raw(self, content: bytes, seconds: float = 120) -> Envelope:
        return Envelope.from_bytes(self.answer(content))

    def again(self, lead: str = MALLORY, change: Callable[[Path], None] = lambda state: None) -> None:
        """Start the site again, for a lead, and after a change of its folder of states."""
        change(self.state)
        self.lead = lead
        self.__post_init__()

    def rewrite(self, change: Callable[[dict], None]) -> None:
        """Change the site's file, and start the site again."""
        values = yaml.safe_load(self.file.read_text())
        change(values)
        self.file.write_text(yaml.safe_dump(values))
        self.again()

    def close(self) -> None:
        pass
