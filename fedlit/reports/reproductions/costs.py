"""Estimated cost of a reproduction before anything runs: runs, local steps, hours, bytes on disk; and its text.

Everything is computed from the configurations of the planned runs. The one measurement is the time of a local step: the
step of a federation's client, with its algorithms, on random images of the run's size.
"""

import math
import os
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from numpy.random import default_rng

from fedlit.core.aggregator import PrivateAggregator
from fedlit.core.batches import Drawn
from fedlit.core.fabric import FederationFabric, make_fabric
from fedlit.core.hooks import initial_client_state
from fedlit.core.local_model import LocalModel, LocalTraining
from fedlit.core.messages import Broadcast, Client, Round
from fedlit.core.parts import Parts
from fedlit.core.system import documents
from fedlit.core.system.fetching import without_fetching
from fedlit.core.system.processes import cores
from fedlit.data import FederatedDataModule, PhantomCXR
from fedlit.experiment.grid import combinations_of, plan
from fedlit.experiment.options import experiment_parser
from fedlit.experiment.plan import Plan
from fedlit.experiment.planned_run import PlannedRun
from fedlit.experiment.tuning import first_points_of, number_of_tries, plans_of
from fedlit.federation.federation import Federation
from fedlit.reports.reproductions.document import Scale
from fedlit.reports.reproductions.published import grid

SCHEDULE, EVERY = "federation.schedule.", "federation.eval_every"
CONSTANTS = ("federation.aggregators.", "model.optimizer.")
"""Keys, and beginnings of keys, that do not change a step; of the constants only numbers."""

GB = 1e9

TIMED = 2
"""Number of local steps that are timed; the fastest counts."""


@dataclass(frozen=True)
class Cost:
    """Cost of one run."""

    clients: int
    # Local steps of all clients together; None if epochs are counted and the number of images is unknown.
    steps: int | None
    step: str  # Description of a step: runs with the same one are timed once.
    disk: int  # Bytes of its checkpoints and of the states of its clients.
    images: int | None  # Number of decoded images that it reads; None if it is unknown.
    picture: int  # Bytes of a decoded image.
    numbers: Mapping[str, int]  # Number of images by client or source, as far as they are known.

    @property
    def cache(self) -> int | None:
        """Bytes of the decoded images; runs on the same data share them."""
        return None if self.images is None else self.images * self.picture


class Estimate:
    """Estimate of the steps and times of runs; what several of them share is computed once.

    Args:
        images: Number of images by client or source, if it is known without the data. The settings of built-in data
            give the numbers.
        seconds_per_step: Time of a local step; by default it is measured, on this machine's device.
    """

    def __init__(self, images: Mapping[str, int], seconds_per_step: float | None = None) -> None:
        self.images, self.given = dict(images), seconds_per_step
        self.measured: dict[str, float] = {}
        self.parser = experiment_parser()
        self._planned: dict[str, PlannedRun] = {}
        self._known: dict[str, tuple[Cost, list[Federation], Mapping[str, Any]]] = {}

    def costs(self, sweep: Plan) -> dict[tuple[str, int], tuple[Cost, bool]]:
        """Return the cost of each run of a sweep, by its case and seed, and whether the run is finished.

        If some runs exist, all runs are planned.
        """
        existing = plan(sweep, self.parser) if sweep.directory.exists() else []
        finished = {(run.group, run.seed) for run in existing if run.standing() == "finished"}
        return {name: (cost, name in finished) for name, cost in self._costs(sweep)}

    def costs_of_tuning(self, tuning: Plan) -> dict[tuple[str, int], tuple[Cost, bool]]:
        """Return the cost of each run of a tuning as `costs` does; final runs have their method's first settings."""
        points, counted = first_points_of(tuning), {}
        for case, tries in plans_of(tuning, "try", points).items():
            costs = {(f"{case}: {name}", seed): each for (name, seed), each in self.costs(tries).items()}
            cost, _ = next(iter(costs.values()))
            later = number_of_tries(tuning) * len(tuning.seeds_of_tries) - len(costs)  # that results suggest
            counted |= costs | {(case, number): (cost, False) for number in range(later)}
        if tuning.rule.by == "seed":  # tries are the final runs
            return counted
        first = {case: each[:1] for case, each in points.items()}
        finals = [each for of_case in plans_of(tuning, "final", first).values() for each in self._costs(of_case)]
        table = pd.read_csv(tuning.table) if tuning.table.exists() else pd.DataFrame({"stage": [], "status": []})
        finished = ((table["stage"] == "final") & (table["status"] == "finished")).sum()
        return counted | {name: (cost, number < finished) for number, (name, cost) in enumerate(finals)}

    def _costs(self, sweep: Plan) -> Iterator[tuple[tuple[str, int], Cost]]:
        """Yield case, seed and cost of each run.

        Cases are planned once if they differ only in the schedule, or in keys that do not change a step: how often the
        model is evaluated, and numbers of the optimizer and of algorithms.
        """
        for combination in combinations_of(sweep):
            keys = combination.settings
            schedule = {key.rpartition(".")[2]: value for key, value in keys.items() if key.startswith(SCHEDULE)}
            numbers = {key for key, value in keys.items() if key.startswith(CONSTANTS) and type(value) in (int, float)}
            without_effect = {EVERY, *numbers, *(key for key in keys if key.startswith(SCHEDULE))}
            other = {key: value for key, value in keys.items() if key not in without_effect}
            same = repr((sweep.config, other, sorted(schedule)))
            if same not in self._planned:
                one = replace(
                    sweep, set=dict(keys), cases={}, grid={}, names="", leave_out=[], roots={}, baselines=[],
                    starts=None, points=None, seeds=sweep.seeds[:1],
                )  # fmt: skip
                (self._planned[same],) = plan(one, self.parser)
            cost = self.cost(self._planned[same], schedule)
            yield from (((combination.group, seed), cost) for seed in sweep.seeds)

    def cost(self, run: PlannedRun, schedule: Mapping[str, Any] | None = None) -> Cost:
        """Return the cost of a run, or of one that differs from it only in these arguments of the schedule."""
        if run.config not in self._known:
            self._known[run.config] = self._counted(run)
        cost, parts, data = self._known[run.config]
        main = parts[-1]
        if schedule:
            written = documents.parse(run.config)["federation"]
            made = type(main.schedule)(**written["schedule"].get("init_args", {}) | schedule)
            main = replace(main, schedule=made, rounds=written.get("rounds"))
        steps = [_steps(federation, data, cost.numbers) for federation in (*parts[:-1], main)]
        return replace(cost, steps=None if None in steps else sum(steps))

    def _counted(self, run: PlannedRun) -> tuple[Cost, list[Federation], Mapping[str, Any]]:
        """Return the cost without steps, the settings of every part of the run, and those of its data."""
        keys = documents.parse(run.config)
        with without_fetching():
            objects = self.parser.instantiate(run.settings)
        data = keys["data"]["init_args"]
        parts = [*(phase.federation(objects.federation) for phase in objects.phases), objects.federation]
        numbers = _built_in(objects.data) or self.images
        local = _local(objects.model, objects.federation, make_fabric(accelerator="cpu", devices=1))
        clients = len(_clients(data, objects.federation, numbers))
        client_state = sum(_bytes(a.client_state(local.layout)) for a in objects.federation.aggregators)
        server = sum(_bytes(a.server_state(local.layout, local.flat.w)) for a in objects.federation.aggregators)
        model = (local.flat.w.numel() + local.flat.stats.numel()) * local.flat.w.element_size()
        model_keys = keys["model"]["init_args"]
        example, said = _example(data, model_keys)
        algorithm = "+".join(type(a).__name__ for a in objects.federation.aggregators) or "FedAvg"
        fixed = Parts.of(objects.model).fixed_features is not None and not data.get("augment", True)
        examples = f"features of {said}" if fixed else said
        network = model_keys.get("backbone", type(objects.model).__name__)
        step = f"{network}, {algorithm}, {data['batch_size']} {examples}"
        if self.given is None and step not in self.measured:
            with without_fetching():
                fresh = self.parser.instantiate(run.settings)
            fabric = make_fabric(**keys["fabric"] | {"devices": 1, "num_nodes": 1})
            generator, size = torch.Generator().manual_seed(0), data["batch_size"]
            images = torch.rand(size, *example, generator=generator)
            batch = images, torch.randint(2, (size, len(fresh.model.classes)), generator=generator).float()
            if fixed:  # they are computed once for all steps
                with torch.no_grad():
                    batch = Parts.of(fresh.model).fixed_features.eval()(batch[0]), batch[1]
            self.measured[step] = _seconds(_local(fresh.model, fresh.federation, fabric), fresh.federation, batch)
        images = sum(self.images.values()) if "image_size" in data else 0
        picture = data.get("image_size", 0) ** 2 * data.get("in_chans", model_keys.get("in_chans", 1))
        disk = 2 * (model + server) + clients * client_state
        cost = Cost(clients, None, step, disk, images or None, picture=picture, numbers=numbers)
        return cost, parts, data

    def seconds(self, cost: Cost) -> float | None:
        """Return the time of a run, all clients one after the other, or None if its steps are unknown."""
        if cost.steps is None:
            return None
        return cost.steps * (self.measured[cost.step] if self.given is None else self.given)


def announced(scale: Scale, plans: Sequence[Plan], folders: Sequence[Path], estimate: Estimate) -> str:
    """Return the runs with their steps, the files that they need, hours and bytes, as Markdown.

    Plans include bodies. Folders need not exist.
    """
    costs: dict[str, dict[tuple[str, int], tuple[Cost, bool]]] = defaultdict(dict)
    for each in plans:  # several may share an experiment and runs of it
        costs[each.experiment] |= estimate.costs_of_tuning(each) if each.is_tuning else estimate.costs(each)
    rows = [[experiment, *_row([*runs.values()], estimate)] for experiment, runs in costs.items()]
    runs = [run for of_part in costs.values() for run in of_part.values()]
    every, waiting = [cost for cost, _ in runs], [cost for cost, finished in runs if not finished]
    steps = sum(cost.steps or 0 for cost in every)
    hours = sum(estimate.seconds(cost) or 0.0 for cost in waiting) / 3600
    lines = [
        f"From {scale.data}.",
        "",
        *grid(["experiment", "runs", "finished", "clients", "local steps, all clients", "hours"], rows),
        "",
        f"{len(runs)} runs, {len(waiting)} of them to do; {steps:,} local steps of all clients in all; "
        f"{hours:,.1f} hours on one device, clients and runs one after the other, without evaluations.",
    ]
    if any(cost.steps is None for cost in every):
        lines.append(
            "The length of runs with ? is in epochs of missing data: their steps are known once --root has the data."
        )
    if estimate.given is None and (busy := _busy()):
        lines.append(busy)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "the processor"
    source = "as given" if estimate.given is not None else f"measured here, on {device}, fastest of two"
    lines += ["", f"Seconds of a local step, {source}:", ""]
    known = {cost.step: estimate.given or estimate.measured[cost.step] for cost in every}
    lines += [f"- {seconds:.3g} s: {step}" for step, seconds in known.items()]
    disk = sum(cost.disk for cost in every)
    lines += ["", "On disk:", "", f"- runs: {disk / GB:.1f} GB (checkpoints, and the states of clients)"]
    caches = {(cost.images, cost.picture): cost.cache for cost in every}
    if None not in caches.values() and caches:
        lines.append(f"- decoded images, at most: {sum(caches.values()) / GB:.1f} GB, kept for further runs")
    if scale.root is None:
        return "\n".join([*lines, "- no data: they are built in", ""])
    lines.append(f"- --root: {scale.root}")
    lines += [f"- {path}: {'there' if path.exists() else 'not there'}" for path in folders]
    return "\n".join([*lines, ""])


def _steps(federation: Federation, data: Mapping[str, Any], images: Mapping[str, int]) -> int | None:
    """Return the local steps of all clients together over the rounds of a part of the run."""
    clients = _clients(data, federation, images)
    share = federation.cohorts.share([*clients])
    total = 0.0
    for index in range(federation.rounds):
        plan = federation.schedule.plan(index)
        if plan.unit == "steps":
            total += plan.window * len(clients) * share
        elif not all(clients.values()):
            return None
        else:  # all images count if the data have a published split
            training = data["split"][0] if data.get("split") else 1.0
            epochs = (math.ceil(number * training / data["batch_size"]) for number in clients.values())
            total += plan.window * sum(epochs) * share
    return round(total)


def _built_in(data: FederatedDataModule) -> dict[str, int]:
    """Return the number of images by hospital or source of built-in data; empty for other data."""
    if isinstance(data, PhantomCXR):
        return {hospital.name: hospital.images for hospital in data.hospitals}
    numbers = {name: sum(_built_in(source).values()) for name, source in getattr(data, "sources", {}).items()}
    return numbers if all(numbers.values()) else {}


def _clients(data: Mapping[str, Any], federation: Federation, images: Mapping[str, int]) -> dict[str, int]:
    """Return the clients that take part, and the number of images of each, or 0 if it is unknown."""
    total = sum(images.values())
    if data.get("pooled"):
        return {"pooled": total}
    partition = ((data.get("partition") or {}).get("init_args") or {}).get("clients")
    if isinstance(partition, int):
        return {f"client-{i}": total // partition for i in range(partition)}
    named = federation.clients or list(data.get("sources") or {})
    names = named or list(images) or _hospitals(data.get("hospitals", 1))
    return {name: images.get(name, 0) for name in names}


def _hospitals(hospitals: Any) -> list[str]:
    if isinstance(hospitals, int):
        return [f"hospital-{i}" for i in range(hospitals)]
    return [hospital["name"] for hospital in hospitals]


def _local(model: Any, federation: Federation, fabric: FederationFabric) -> LocalModel:
    return LocalModel(fabric, model, federation.aggregators, LocalTraining())


def _bytes(state: Mapping[str, torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in state.values())


def _example(data: Mapping[str, Any], model: Mapping[str, Any]) -> tuple[tuple[int, ...], str]:
    if isinstance(model.get("features"), int):  # that of an ImageClassifier says how features are scaled
        return (model["features"],), f"rows of {model['features']} features"
    size, channels = data["image_size"], model.get("in_chans", 1)
    return (channels, size, size), f"images of {size}x{size}, {channels} channels"


def _seconds(local: LocalModel, federation: Federation, batch: tuple[torch.Tensor, torch.Tensor]) -> float:
    """Return the time of the fastest of some local steps of a client, with its algorithms."""
    rnd = Round(index=0, seed=0, cohort=("timed",), **vars(federation.schedule.plan(0)))
    client = Client("timed", tuple(local.layout.classes), len(batch[0]), 1.0)
    w, stats = local.flat.w.cpu().clone(), local.flat.stats.cpu().clone()
    states = [a.server_state(local.layout, w) for a in federation.aggregators]
    for aggregator, held in zip(federation.aggregators, states, strict=True):
        if isinstance(aggregator, PrivateAggregator):
            aggregator.plan(held, {client.name: (1.0, 1)}, len(batch[0]))
            batch = Drawn([(x[None], y[None]) for x, y in zip(*batch, strict=True)], len(batch[0]), default_rng(0))
    states = [a.broadcast(held, rnd) for a, held in zip(federation.aggregators, states, strict=True)]
    state = initial_client_state(federation.aggregators, local.layout)
    contexts = local.begin(client, state, Broadcast(w, stats, states), rnd, TIMED + 1, lambda: batch)
    times = []
    for step in range(TIMED + 1):
        began = time.perf_counter()
        local.step(contexts, [batch] * local.batches_per_step, step)
        if local.flat.w.is_cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return min(times[1:])


def _row(runs: Sequence[tuple[Cost, bool]], estimate: Estimate) -> list[str]:
    """Return the numbers of runs, of finished ones and of clients, all steps, and the hours of runs to do."""
    steps, waiting = [cost.steps for cost, _ in runs], [cost for cost, finished in runs if not finished]
    clients = sorted({cost.clients for cost, _ in runs})
    span = str(clients[0]) if len(clients) == 1 else f"{clients[0]} to {clients[-1]}"
    hours = sum(estimate.seconds(cost) or 0.0 for cost in waiting) / 3600
    takes = ["?", "?"] if None in steps else [f"{sum(steps):,}", f"{hours:,.2f}"]
    return [str(len(runs)), str(len(runs) - len(waiting)), span, *takes]


def _busy() -> str:
    """Return a warning if other processes keep the cores of this machine busy, or ""."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load <= cores() or torch.cuda.is_available():
        return ""
    return (
        f"This machine is busy: a load of {load:.1f} on {cores()} cores. The steps were timed while other work ran, so "
        "the hours may be many times too large. Repeat the command on an idle machine, or give --seconds_per_step."
    )
