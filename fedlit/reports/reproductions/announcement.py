"""The text of ``fedlit reproduce --dry_run true``: runs, files and estimated times of a reproduction."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from fedlit.core.system.processes import cores
from fedlit.experiment.grid import Sweep
from fedlit.reports.reproductions.costs import Estimate
from fedlit.reports.reproductions.document import Scale, SweepPart
from fedlit.reports.reproductions.published import grid

GB = 1e9


def announced(
    scale: Scale, parts: Sequence[SweepPart], sweeps: Mapping[str, Sweep], folders: Sequence[Path], estimate: Estimate
) -> str:
    """Return the runs with their steps, the files that they need, hours and bytes, as Markdown.

    Args:
        scale: The scale of the reproduction.
        parts: Its sweeps, including bodies and sweeps whose rates are not chosen yet.
        sweeps: Sweep of each part, by its experiment.
        folders: Folders of the data, which need not exist.
        estimate: Estimate of steps and times.
    """
    rows, number, total_steps, hours, disk, todo, caches = [], 0, 0, 0.0, 0, 0, {}
    constants = scale.rates.constants if scale.rates else ()
    unknown, known = False, {}
    for part in parts:
        costs = estimate.costs(sweeps[part.experiment], constants)
        steps = [cost.steps for cost, _ in costs]
        waiting = [cost for cost, finished in costs if not finished]
        todo += len(waiting)
        unknown = unknown or None in steps
        seconds = [estimate.seconds(cost) or 0.0 for cost in waiting]
        hours += sum(seconds) / 3600
        total_steps += sum(step or 0 for step in steps)
        disk += sum(cost.disk for cost, _ in costs)
        number += len(costs)
        for cost, _ in costs:
            caches[(cost.images, cost.picture)] = cost.cache
            known[cost.step] = estimate.given or estimate.measured[cost.step]
        clients = sorted({cost.clients for cost, _ in costs})
        span = str(clients[0]) if len(clients) == 1 else f"{clients[0]} to {clients[-1]}"
        takes = ["?", "?"] if None in steps else [f"{sum(steps):,}", f"{sum(seconds) / 3600:,.2f}"]
        rows.append([part.experiment, str(len(costs)), str(len(costs) - len(waiting)), span, *takes])
    lines = [
        f"From {scale.data}.",
        "",
        *grid(["experiment", "runs", "finished", "clients", "local steps, all clients", "hours"], rows),
        "",
        f"{number} runs, {todo} of them to do; {total_steps:,} local steps of all "
        f"clients in all; {hours:,.1f} hours on one device, clients and runs one after the other, without evaluations.",
    ]
    if unknown:
        lines.append(
            "The length of runs with ? is in epochs of missing data: their steps are known once --root has the data."
        )
    if estimate.given is None and (busy := _busy()):
        lines.append(busy)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "the processor"
    source = "as given" if estimate.given is not None else f"measured here, on {device}, fastest of two"
    lines += ["", f"Seconds of a local step, {source}:", ""]
    lines += [f"- {seconds:.3g} s: {step}" for step, seconds in known.items()]
    lines += ["", "On disk:", "", f"- runs: {disk / GB:.1f} GB (checkpoints, and the states of clients)"]
    if None not in caches.values() and caches:
        lines.append(f"- decoded images, at most: {sum(caches.values()) / GB:.1f} GB, kept for further runs")
    if scale.root is None:
        return "\n".join([*lines, "- no data: they are built in", ""])
    lines.append(f"- --root: {scale.root}")
    lines += [f"- {path}: {'there' if path.exists() else 'not there'}" for path in folders]
    return "\n".join([*lines, ""])


def _busy() -> str:
    """Return a warning if other processes keep the cores of this machine busy, or ""."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load <= cores() or torch.cuda.is_available():
        return ""
    return (
        f"This machine is busy: a load of {load:.1f} on {cores()} cores. The steps were timed while other work ran, so "
        "the hours may be many times too large. Repeat the command on an idle machine, or give --seconds_per_step."
    )
