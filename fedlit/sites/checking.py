"""``fedlit site check``: what a site would do in a federation, tried at the site alone."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import yaml
from rich.filesize import decimal

from fedlit.core import documents
from fedlit.core.errors import ConfigError
from fedlit.core.fabric import make_fabric
from fedlit.federation.description import leaves_a_site
from fedlit.federation.evaluation import client_views, pooled_metrics
from fedlit.federation.federation import Federation
from fedlit.federation.session import Session
from fedlit.schedules import ConstantSchedule
from fedlit.sites import recipe
from fedlit.sites.data import AtSites
from fedlit.sites.ledger import TEXT
from fedlit.sites.loopback import InProcess
from fedlit.sites.messages import Told
from fedlit.sites.roster import Roster, gather
from fedlit.sites.settings import SiteSettings
from fedlit.sites.site import Site

TRIED = 2**20
"""Bytes that are written to the folder of states, and removed: on a full disk a file without content goes well."""


def check(settings: SiteSettings, config: Path | None = None) -> Iterator[str]:
    """Look at a site's data, its device and its folder, and try a round of one step with weights of no meaning.

    Nothing is kept, and nothing leaves this process.

    Args:
        settings: The site's own file.
        config: A whole configuration, such as ``config.yaml`` of a run. By default a small network is tried.

    Yields:
        A line for each thing that is well.

    Raises:
        ConfigError: Something is not, and what to do.
        TrainingError: The round fails, or the site's own policy refuses it.
    """
    yield _folder(settings.folder)
    with tempfile.TemporaryDirectory(prefix="fedlit-site-") as folder:
        trial = replace(settings, state=folder)
        carrier = InProcess({settings.name: partial(_made, trial)})
        presences = gather(carrier, ())
        (presence,) = presences
        yield f"site {presence.name!r}: fedlit {presence.fedlit}, torch {presence.torch}, trains on {presence.device}"
        data = AtSites(presences)
        for told in data.told.values():
            yield _client(told, presence.classes)
        yield from data.notes
        yield _rules(settings)
        text = recipe.texts_of(_settings(config))[""] if config else _small(settings.data.in_chans)
        settings.policy.check_config(text)
        made = recipe.read(text, presence.classes)
        federation = Federation(
            made.phase.aggregators, 1, ConstantSchedule(1, "steps"), workers=1, on_site_error="stop"
        )
        roster = Roster(carrier, presences, {"": text})
        session = Session(federation, made.module, data, make_fabric("cpu"), roster=roster)
        server, _, _ = session.restore(None)
        session.settle(server)
        rnd = session.round(0)
        down = federation.open_round(server, rnd, session)
        total, reports = session.engine.run(rnd.cohort, down, rnd)
        federation.close_round(server, total, rnd, session)
        seconds, losses = (", ".join(f"{getattr(r, name):.3g}" for r in reports) for name in ("seconds", "loss"))
        yield f"a round of one step: {seconds} s, loss {losses}; {leaves_a_site(total, federation.aggregators)}"
        scores = session.engine.evaluate(client_views(data, "val"), session.broadcast(server, rnd))
        if scores:
            auroc = pooled_metrics(scores, session.classes, "val").get("val/auroc_macro", float("nan"))
            yield f"an evaluation of {sum(s.examples for s in scores):,} images: mean AUROC {auroc:.3f}, which means nothing yet"
        yield (Path(folder) / TEXT).read_text().rstrip()


def _made(settings: SiteSettings) -> Callable[[bytes], bytes]:
    return Site(settings).answer_bytes


def _folder(folder: Path) -> str:
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=there, buffering=0) as file:
            file.write(bytes(TRIED))
    except OSError as error:
        raise ConfigError(
            f"state: nothing can be written in {there}: {error.strerror or error}; choose another folder"
        ) from error
    return f"state: {folder}, {decimal(shutil.disk_usage(there).free)} free"


def _client(told: Told, classes: list[str]) -> str:
    parts = [
        f"{size:,} {part}"
        for part, size in (("training", told.train), ("validation", told.val), ("test", told.test))
        if size
    ]
    counts = told.counts.get("train")
    shown = []
    for name, positives, negatives in zip(classes, *counts, strict=True) if counts else ():
        if name in told.classes:
            shown.append(f"{name} {_number(positives)}/{_number(negatives)}")
    labelled = f"; training positives/negatives as they are told: {', '.join(shown)}" if shown else ""
    return f"client {told.name!r}: {', '.join(parts)} images{labelled}"


def _number(count: int | None) -> str:
    return "few" if count is None else f"{count:,}"


def _rules(settings: SiteSettings) -> str:
    policy, leaves = settings.policy, settings.policy.leaves
    scores = "scores and labels of images leave" if leaves.scores else "no scores of images leave"
    return (
        f"policy: {', '.join(policy.verbs)}; code of {', '.join(policy.modules) or 'anything installed'}; vectors "
        f"{', '.join(leaves.vectors)}; {scores}; numbers of positives and negatives below "
        f"{leaves.counts_below} are not told, nor their AUROC; "
        f"{'any number of' if policy.rounds is None else f'at most {policy.rounds}'} rounds; "
        f"{'any configuration' if policy.configs is None else f'{len(policy.configs)} approved configurations'}"
    )


def _settings(config: Path) -> dict:
    """A whole configuration, of which nothing is imported."""
    settings = documents.load(config)
    if not isinstance(settings, dict) or not {"model", "federation"} <= settings.keys():
        raise ConfigError(
            f"{config}: expected a whole configuration, such as config.yaml of a run; it lacks model or federation"
        )
    if short := list(_short_names(settings)):
        raise ConfigError(
            f"{config}: expected classes with their modules, such as fedlit.models.ImageClassifier, found {short[0]!r}; "
            f"`fedlit fit --config {config} --print_config > whole.yaml` writes a configuration with whole names"
        )
    return settings


def _short_names(value: object) -> Iterator[str]:
    """Classes that are named without their module, which nothing but ``fedlit fit`` looks up."""
    if isinstance(value, dict):
        path = value.get("class_path")
        if isinstance(path, str) and "." not in path:
            yield path
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _short_names(part)


def _small(in_chans: int) -> str:
    options = {"backbone": "small_cnn", "in_chans": in_chans}
    model = {"class_path": "fedlit.models.ImageClassifier", "init_args": options}
    return yaml.safe_dump({"model": model, "phase": {"name": "main", "aggregators": []}})
