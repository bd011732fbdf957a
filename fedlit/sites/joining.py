"""``--sites``: an experiment whose clients are at sites of their own."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import yaml

from fedlit.core.errors import ConfigError
from fedlit.experiment.experiment import Experiment
from fedlit.sites.carrier import Carrier
from fedlit.sites.data import AtSites
from fedlit.sites.loopback import Processes
from fedlit.sites.recipe import texts_of
from fedlit.sites.roster import Roster, gather

LOOPBACK = "loopback:"


@contextmanager
def joined(experiment: Experiment, sites: str | None, fresh: Sequence[str] = ()) -> Iterator[Experiment]:
    """Give the experiment with its clients at sites.

    Args:
        experiment: What is to be trained.
        sites: Which sites, such as ``loopback:3``; None for clients that are here.
        fresh: Sites whose clients go on without a state that is missing.

    Raises:
        ConfigError: There are no such sites, or they do not fit the experiment.
    """
    if sites is None:
        if fresh:
            raise ConfigError("--fresh_state: it names sites, and there are none without --sites")
        yield experiment
        return
    if experiment.fabric.world_size > 1:
        raise ConfigError(
            "--sites: clients are at their sites or on ranks, not both; leave fabric.devices and num_nodes out"
        )
    number = sites.removeprefix(LOOPBACK)
    if not sites.startswith(LOOPBACK) or not number.isdecimal() or int(number) < 1:
        raise ConfigError(f"--sites: expected loopback: and a number of sites, such as loopback:3, found {sites!r}")
    with ExitStack() as open_things:
        carrier = _loopback(experiment, int(number), open_things)
        open_things.callback(carrier.close)
        yield with_sites(experiment, carrier, fresh)


def with_sites(experiment: Experiment, carrier: Carrier, fresh: Sequence[str] = ()) -> Experiment:
    """Give the experiment with its clients where a carrier leads to.

    Raises:
        ConfigError: The sites do not fit the experiment.
    """
    presences = gather(carrier, experiment.data.classes)
    sizes = experiment.data.batch_size, experiment.data.eval_batch_size
    data = AtSites(presences, *sizes, experiment.data.test_sets)
    return replace(experiment, data=data, roster=Roster(carrier, presences, texts_of(experiment.settings), list(fresh)))


def loopback_files(experiment: Experiment, number: int, folder: Path, state: Path) -> Mapping[str, Path]:
    """Write the own file of each site of a loopback: the data of the experiment, and which of its clients are the site's.

    Args:
        experiment: What is to be trained.
        number: How many sites.
        folder: Where the files go.
        state: Where the sites' folders of states go.
    """
    files = {}
    for position in range(1, number + 1):
        name = f"site-{position}"
        values = {
            "name": name,
            "data": experiment.settings["data"],
            "state": str((state / name).absolute()),
            "share": f"{position} of {number}",
            "accelerator": experiment.settings["fabric"]["accelerator"],
            "policy": {"modules": [], "leaves": {"scores": True, "counts_below": 0}},
        }
        files[name] = folder / f"{name}.yaml"
        files[name].write_text(yaml.safe_dump(values, sort_keys=False))
    return files


def _loopback(experiment: Experiment, number: int, open_things: ExitStack) -> Carrier:
    """Processes of this machine; the server reads the data for its own test sets, and the cache is there for all."""
    experiment.data.prepare_data()
    experiment.data.setup("fit")
    clients = len(experiment.data.clients)
    if number > clients:
        raise ConfigError(f"--sites: {number} sites for {clients} clients: expected at most one site a client")
    folder = open_things.enter_context(tempfile.TemporaryDirectory(prefix="fedlit-sites-"))
    state = Path(folder) if experiment.fast_dev_run else experiment.run_dir / experiment.experiment / "sites"
    return Processes(loopback_files(experiment, number, Path(folder), state))
