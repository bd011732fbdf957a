"""The text of ``fedlit reproduce --dry_run true``: runs, files and estimated times of a reproduction."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from fedlit.experiment.grid import Sweep
from fedlit.reports.reproductions.costs import Estimate
from fedlit.reports.reproductions.document import Scale, SweepPart
from fedlit.reports.reproductions.published import grid

GB = 1e9


def announced(
    scale: Scale, parts: Sequence[SweepPart], sweeps: Mapping[str, Sweep], root: Path | None, estimate: Estimate
) -> str:
    """Return the runs with their steps, the files that they need, hours and bytes, as Markdown.

    Args:
        scale: The scale of the reproduction.
        parts: Its sweeps, including bodies and sweeps whose rates are not chosen yet.
        sweeps: Sweep of each part, by its experiment.
        root: Folder of the data, which need not exist; None if the data are built in.
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
        rows.append(
            [
                part.experiment,
                str(len(costs)),
                str(len(costs) - len(waiting)),
                _span(clients),
                "?" if None in steps else f"{sum(steps):,}",
                "?" if None in steps else f"{sum(seconds) / 3600:,.2f}",
            ]
        )
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
    source = "as given" if estimate.given is not None else f"measured here, on {_device()}, fastest of two"
    lines += ["", f"Seconds of a local step, {source}:", ""]
    lines += [f"- {seconds:.3g} s: {step}" for step, seconds in known.items()]
    lines += ["", "On disk:", "", f"- runs: {disk / GB:.1f} GB (checkpoints, and the states of clients)"]
    if None not in caches.values() and caches:
        lines.append(f"- decoded images, at most: {sum(caches.values()) / GB:.1f} GB, kept for further runs")
    lines += [f"- {line}" for line in _files(scale, parts, root)]
    return "\n".join([*lines, ""])


def _files(scale: Scale, parts: Sequence[SweepPart], root: Path | None) -> list[str]:
    if scale.root is None:
        return ["no data: they are built in"]
    paths = list(dict.fromkeys(root / path for part in parts for path in part.roots.values()))
    return [f"--root: {scale.root}", *(f"{path}: {'there' if path.exists() else 'not there'}" for path in paths)]


def _span(numbers: Sequence[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"


def _device() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "the processor"
