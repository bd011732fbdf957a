"""The text of ``fedlit reproduce --dry_run true``: runs, files and estimated times of a reproduction."""

import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import torch

from fedlit.core.system.processes import cores
from fedlit.experiment.plan import Plan
from fedlit.reports.reproductions.costs import Cost, Estimate
from fedlit.reports.reproductions.document import Scale
from fedlit.reports.reproductions.published import grid

GB = 1e9


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
