"""``--sites``: an experiment whose clients are at their own sites."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from fedlit.core.errors import ConfigError
from fedlit.core.system.typed import class_paths
from fedlit.experiment.experiment import Experiment
from fedlit.schedules import ConstantSchedule
from fedlit.sites import recipe
from fedlit.sites.data import RemoteData
from fedlit.sites.engine import Sites
from fedlit.sites.loopback import Processes
from fedlit.sites.roster import Ledgers, gather
from fedlit.sites.table import lacking
from fedlit.sites.transport import Transport

LOOPBACK = "loopback:"


@contextmanager
def joined(experiment: Experiment, sites: str | None, fresh: Sequence[str] = ()) -> Iterator[Experiment]:
    """Context manager that gives the experiment with its clients at sites.

    Args:
        experiment: The experiment.
        sites: The sites, such as ``loopback:3``; None for clients on this machine.
        fresh: Sites whose clients start afresh if their state is missing.

    Raises:
        ConfigError: If the sites do not exist, or do not fit the experiment.
    """
    if sites is None:
        if fresh:
            raise ConfigError("--fresh_state: expected only with --sites; leave it out, or add --sites")
        yield experiment
        return
    if experiment.fabric.world_size > 1:
        raise ConfigError("--sites: expected one process, found several ranks; leave out fabric.devices and num_nodes")
    number = sites.removeprefix(LOOPBACK)
    if not sites.startswith(LOOPBACK) or not number.isdecimal() or int(number) < 1:
        raise ConfigError(f"--sites: expected loopback: and a number of sites, such as loopback:3, found {sites!r}")
    with ExitStack() as open_things:
        transport = _loopback(experiment, int(number), open_things)
        open_things.callback(transport.close)
        ledgers = None if experiment.fast_dev_run else _states(experiment) / "ledgers.json"
        yield with_sites(experiment, transport, fresh, ledgers)


def with_sites(
    experiment: Experiment,
    transport: Transport,
    fresh: Sequence[str] = (),
    ledgers: Path | None = None,
    models: bool = True,
) -> Experiment:
    """Return the experiment with its clients at the sites of a transport.

    Args:
        experiment: The experiment; of its data only the classes, the batch sizes and the server's own test sets count.
        transport: The transport to the sites.
        fresh: Sites whose clients start afresh if their state is missing.
        ledgers: File of the heads of the sites' ledgers.
        models: Whether sites get the best model when the run ends.

    Raises:
        ConfigError: If the sites do not fit the experiment.
    """
    heads = Ledgers(ledgers)
    site_infos, arrays = gather(transport, experiment.data.classes, class_paths(_parts(experiment)), heads)
    sizes = experiment.data.batch_size, experiment.data.eval_batch_size
    data = RemoteData(site_infos, *sizes, experiment.data.test_sets, arrays)
    sites = Sites(
        transport, site_infos, experiment.settings, list(fresh), ledgers=heads, models=models,
        trial=experiment.fast_dev_run,
    )  # fmt: skip
    if experiment.fast_dev_run:
        window = -(-sites.examples // experiment.data.batch_size)
        experiment.federation.schedule = ConstantSchedule(window, "steps")
    return replace(experiment, data=data, away=sites)


def _parts(experiment: Experiment) -> list[dict[str, Any]]:
    """Return what sites build of each run of an experiment."""
    return [recipe.parts_of(each.settings) for each in experiment.runs]


def _loopback_files(experiment: Experiment, number: int, folder: Path) -> Mapping[str, Path]:
    """Write the file of each loopback site: the data of the experiment, and the site's share of its clients."""
    files, state = {}, folder if experiment.fast_dev_run else _states(experiment)
    for position in range(1, number + 1):
        name = f"site-{position}"
        values = {
            "name": name,
            "data": experiment.settings["data"],
            "state": str((state / name).absolute()),
            "share": f"{position} of {number}",
            "accelerator": experiment.settings["fabric"]["accelerator"],
            "policy": {
                "allow": lacking(_parts(experiment)),
                "leaves": {"scores": True, "counts_below": 0, "errors": True},
                "floors": None,
            },
        }
        files[name] = folder / f"{name}.yaml"
        files[name].write_text(yaml.safe_dump(values, sort_keys=False))
    return files


def _loopback(experiment: Experiment, number: int, open_things: ExitStack) -> Transport:
    """Return loopback sites; the server reads the data first for its own test sets, which fills the cache for all."""
    experiment.data.prepare_data()
    experiment.data.setup("fit")
    clients = len(experiment.data.clients)
    if number > clients:
        raise ConfigError(
            f"--sites: expected at most one site per client, found {number} sites for {clients} clients; "
            "ask for fewer sites"
        )
    folder = open_things.enter_context(tempfile.TemporaryDirectory(prefix="fedlit-sites-"))
    return Processes(_loopback_files(experiment, number, Path(folder)))


def _states(experiment: Experiment) -> Path:
    return experiment.run_dir / experiment.experiment / "sites"
