"""An experiment whose clients are at their own sites, and its data as the sites report them: without images."""

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import yaml
from torch.utils.data import Dataset

from fedlit.core.batches import PoissonStream
from fedlit.core.errors import ConfigError
from fedlit.core.messages import ClientData, State
from fedlit.core.system.typed import class_paths
from fedlit.data.clients import distinct_names
from fedlit.data.federated import FederatedDataModule
from fedlit.data.records import SPLITS
from fedlit.experiment.experiment import Experiment
from fedlit.federation.engines.base import patients_of
from fedlit.schedules import ConstantSchedule
from fedlit.sites.engine import Sites
from fedlit.sites.messages import ClientInfo, SiteInfo
from fedlit.sites.plan import lacking, parts_of
from fedlit.sites.process import Processes
from fedlit.sites.roster import Ledgers, gather
from fedlit.sites.transport import Transport

LARGE = 0.9
"""A client with more than this share of all training images is named."""


class RemoteDataset(Dataset):
    """Data set at a site, of which only the size is known here.

    Args:
        client: The client that has it.
        size: Number of examples.
        augmented: Whether they are augmented.
        sites: Organisation of each example, [size]; () if the site does not report it.
        groups: A map from names to the group of each example, [size]; {} if the site reports none.
    """

    def __init__(
        self, client: str, size: int, augmented: bool, sites: Sequence[str], groups: Mapping[str, np.ndarray]
    ) -> None:
        self.client, self.size, self.sites, self.groups = client, size, sites, groups
        self.augment = True if augmented else None

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> None:
        raise ConfigError(f"client {self.client!r}: its images are at its site, and only the site can read them")


class RemoteData(FederatedDataModule):
    """Data of the sites: what they report about their clients, and the server's own test sets.

    Clients come in the order of the sites: the first of each, then the second of each, and so on.

    Args:
        sites: What each site has reported, in the order of the sites.
        batch_size: Number of examples in a training batch of one client.
        eval_batch_size: Number of examples in a batch of an evaluation.
        test_sets: Test sets of the server.
        arrays: Indices of the organisations and groups of each site's images, by site.

    Raises:
        ConfigError: If two sites have a client with the same name.
    """

    def __init__(
        self,
        sites: Sequence[SiteInfo],
        batch_size: int = 32,
        eval_batch_size: int = 128,
        test_sets: Mapping[str, Dataset] | None = None,
        arrays: Mapping[str, State] | None = None,
    ) -> None:
        super().__init__(None, batch_size=batch_size, eval_batch_size=eval_batch_size)
        self.classes = tuple(sites[0].classes)
        rows = zip_longest(*([(site.name, info) for info in site.clients] for site in sites))
        self.infos: dict[str, ClientInfo] = {}
        self.site_of: dict[str, str] = {}
        for site, info in filter(None, chain.from_iterable(rows)):
            if info.name in self.site_of:
                raise ConfigError(
                    f"sites {self.site_of[info.name]!r} and {site!r} both have a client {info.name!r}; expected "
                    "different names. With ImageTable, clients have the names in the column that `site` names: write "
                    "the hospital's name into a column of its table, and `site: COLUMN` into the data of its file"
                )
            self.infos[info.name], self.site_of[info.name] = info, site
        distinct_names(self.infos)
        self.clients = {
            name: _without_images(info, (arrays or {}).get(self.site_of[name], {})) for name, info in self.infos.items()
        }
        self.schemes = {name: tuple(info.scheme) for name, info in self.infos.items() if info.scheme is not None}
        self.test_sets = dict(test_sets or {})
        if silent := [site.name for site in sites if not site.scores]:
            self.notes.append(
                f"{', '.join(silent)}: scores of single images do not leave, so AUROC over all clients is computed "
                "from histograms there; auroc_within bounds its error"
            )
        for site in sites:
            if not site.scores:
                self.notes += _hidden_classes(site)
            if (rule := site.privacy) is not None:
                self.notes.append(
                    f"{site.name} trains only with DPSGD, with {rule.patients:,} patients: epsilon {rule.spent:.3g} of "
                    f"{rule.epsilon:g} is spent, at delta {rule.delta:g} over all its runs"
                )
        self.notes += [*self._unknown(), *self._large(), *self._unranked()]

    def prepare_data(self) -> None:
        """Do nothing: the sites have prepared their data."""

    def setup(self, stage: str | None = None) -> None:
        """Do nothing: everything was set when this object was made."""

    def _unknown(self) -> Iterator[str]:
        labelled = {name for info in self.infos.values() for name in info.classes}
        if unknown := [name for name in self.classes if name not in labelled]:
            yield f"no site labels {', '.join(unknown)}: the model does not learn them"

    def _large(self) -> Iterator[str]:
        """Yield a note about a client that outweighs all others: a site may claim any number of images."""
        total = sum(info.train for info in self.infos.values())
        for name, info in self.infos.items():
            if len(self.infos) > 1 and info.train > LARGE * total:
                yield (
                    f"client {name!r} of {self.site_of[name]} reports {info.train:,} of the {total:,} training "
                    "images; with federation.weights: uniform each client counts the same"
                )

    def _unranked(self) -> Iterator[str]:
        """Yield a note if no class has a validation AUROC, because each site hides its own counts."""
        validation = [counts for each in self.infos.values() if (counts := each.counts.get("val"))]
        if validation and all(
            None in pair for counts in validation for pair in zip(*counts, strict=True) if any(n != 0 for n in pair)
        ):
            yield (
                "no site reports the AUROC of any class in validation, so val/auroc_macro is NaN and the model of "
                "the last round counts as the best; federation.monitor: train/loss selects by another metric"
            )

    def counts(self) -> pd.DataFrame:
        """Return the sites' reported numbers, in the columns of any data; hidden numbers are NaN."""
        rows = []
        for name, info in self.infos.items():
            for split in SPLITS:
                size = getattr(info, split)
                if size is None:
                    continue
                counts = info.counts.get(split) or [[None] * len(self.classes)] * 2
                for label, *both in zip(self.classes, *counts, strict=True):
                    numbers = [np.nan if number is None else number for number in both]
                    rows.append((name, split, label, size, *numbers, label in info.classes))
        columns = ["client", "split", "class", "images", "positives", "negatives", "labelled"]
        return pd.DataFrame(rows, columns=columns)


def _without_images(info: ClientInfo, arrays: State) -> ClientData:
    parts = []
    for part, size in zip(SPLITS, (info.train, info.val, info.test), strict=True):
        groups = _groups(info, arrays) if part == "test" else {}
        augmented, sites = info.augmented and part == "train", _sites(info, part, arrays)
        parts.append(None if size is None else RemoteDataset(info.name, size, augmented, sites, groups))
    return ClientData(info.name, tuple(info.classes), *parts)


def _sites(info: ClientInfo, part: str, arrays: State) -> Sequence[str]:
    """Return the organisation of each image of a part; () if they are not reported or do not fit."""
    numbers, names = arrays.get(f"organisation/{info.name}/{part}"), info.organisations.get(part, [])
    return np.asarray(names)[numbers.numpy()] if _fits(numbers, getattr(info, part), 0, len(names)) else ()


def _groups(info: ClientInfo, arrays: State) -> dict[str, np.ndarray]:
    """Return the groups of a client's test images; a group that does not fit them is left out."""
    groups = {}
    for name, values in info.groups.items():
        indices = arrays.get(f"group/{info.name}/{name}")
        if _fits(indices, info.test, -1, len(values)):
            groups[name] = np.asarray([*values, ""])[indices.numpy()]
    return groups


def _fits(indices: torch.Tensor | None, size: int | None, low: int, end: int) -> bool:
    """Return True if a site has sent an index from ``low`` to below ``end`` for each of ``size`` images."""
    if indices is None or indices.dtype not in (torch.int32, torch.int64) or indices.shape != (size,):
        return False
    return bool(((low <= indices) & (indices < end)).all())


def _hidden_classes(site: SiteInfo) -> Iterator[str]:
    """Yield notes about classes whose AUROC a site hides because few images are positive or negative."""
    for split in ("val", "test"):
        few = {
            name
            for info in site.clients
            for name, *numbers in zip(site.classes, *info.counts.get(split, ((), ())), strict=False)
            if None in numbers and name in info.classes
        }
        if few:
            named = ", ".join(name for name in site.classes if name in few)
            yield (
                f"{site.name} reports no AUROC of {named} in {split}: fewer than {site.hides_below} images there (its "
                "counts_below) are positive or negative; it reports no loss of that part either"
            )


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
    return [parts_of(each.settings) for each in experiment.runs]


def _loopback_files(experiment: Experiment, number: int, folder: Path) -> Mapping[str, Path]:
    """Write the file of each loopback site: the data of the experiment, and the site's share of its clients."""
    files, state = {}, folder if experiment.fast_dev_run else _states(experiment)
    for position in range(1, number + 1):
        name = f"site-{position}"
        policy = {
            "allow": lacking(_parts(experiment)),
            "leaves": {"scores": True, "counts_below": 0, "errors": True},
            "floors": None,
        }
        held = list(experiment.data.clients.values())[position - 1 :: number]
        for private in (each for each in experiment.federation.aggregators if each.private):
            patients = min(_declared(client) for client in held)
            policy["privacy"] = {"epsilon": math.inf, "delta": private.delta, "patients": patients}
        values = {
            "name": name,
            "data": experiment.settings["data"],
            "state": str((state / name).absolute()),
            "share": f"{position} of {number}",
            "accelerator": experiment.settings["fabric"]["accelerator"],
            "policy": policy,
        }
        files[name] = folder / f"{name}.yaml"
        files[name].write_text(yaml.safe_dump(values, sort_keys=False))
    return files


def _declared(client: ClientData) -> int:
    return PoissonStream(client.train, 1, patients_of(client.train), b"", client.name).declared


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
