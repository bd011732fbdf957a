"""``fedlit site check``: a trial at a site of what it would do in a federation."""

import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

from rich.filesize import decimal

from fedlit.core.batches import BatchStream, PoissonStream
from fedlit.core.errors import ConfigError
from fedlit.core.fabric import make_fabric
from fedlit.core.system import documents
from fedlit.federation.assembly import assemble
from fedlit.federation.description import leaves_a_site
from fedlit.federation.engines.base import patients_of
from fedlit.federation.evaluation import client_views, pooled_metrics
from fedlit.federation.federation import Federation
from fedlit.federation.session import Session
from fedlit.schedules import ConstantSchedule
from fedlit.sites.engine import Sites
from fedlit.sites.experiment import RemoteData
from fedlit.sites.ledger import TEXT, LedgerEntry, read_ledger
from fedlit.sites.messages import ClientInfo, SiteInfo, Train
from fedlit.sites.own_data import OwnData, SiteSettings
from fedlit.sites.plan import OF_A_FEDERATION, Recipe, RunPlan, lacking, line_to_add, parts_of, read_plan, table_of
from fedlit.sites.policy import PolicyError
from fedlit.sites.process import SitesInProcess
from fedlit.sites.roster import gather, widen
from fedlit.sites.site import ResidentSite

BATCH = 32
"""Examples in a batch if a configuration does not set it: the default of all data."""

TRIED = 2**20
"""Bytes that are written to the folder of states and removed: on a full disk an empty file would succeed."""


def check(settings: SiteSettings, config: Path | None = None) -> Iterator[str]:
    """Check a site's data, device and folder, and try a short round with random weights.

    Nothing is kept, and nothing leaves this process.

    Args:
        settings: The site's own file.
        config: A whole configuration, such as ``config.yaml`` of a run. By default a small network is tried.

    Yields:
        A line for each check that has passed.

    Raises:
        ConfigError: If a check fails; names the fix.
        TrainingError: If the round fails, or the site's own policy refuses it.
    """
    yield _folder(settings.folder)
    table = table_of(settings.policy.allow)
    with tempfile.TemporaryDirectory(prefix="fedlit-site-") as folder:
        seen = replace(settings.policy.leaves, errors=True)  # only this process sees them
        trial = replace(settings, state=folder, policy=replace(settings.policy, configs=None, leaves=seen))
        OwnData(trial).infos()  # raises the data's own error if they cannot be read
        transport = SitesInProcess({settings.name: lambda: ResidentSite(trial).answer_bytes})
        (site_info,), _ = gather(transport, ())
        versions = f"fedlit {site_info.fedlit}, torch {site_info.torch}"
        yield f"site {site_info.name!r}: {versions}, trains on {site_info.device}"
        data = RemoteData([site_info])
        for info in data.infos.values():
            yield _client(info, site_info.classes)
        yield from data.notes
        yield _rules(settings)
        if config:
            whole = _settings(config)
        else:
            small = {"backbone": "small_cnn", "in_chans": settings.data.in_chans}
            network = {"class_path": "fedlit.models.ImageClassifier", "init_args": small}
            whole = {"model": network, "federation": {}}
            if (rule := settings.policy.privacy) is not None:
                small["norm"] = "group"
                steps = {"class_path": "fedlit.aggregators.DPSGD", "init_args": {"noise": 1.0, "delta": rule.delta}}
                whole["federation"]["aggregators"] = [steps]
        widen(site_info, _classes_of(whole, site_info))
        data = RemoteData([site_info])
        plan = _plan(whole, site_info, settings)
        if odd := lacking(asdict(plan), table):
            raise PolicyError(
                f"the configuration names {', '.join(map(repr, odd))}; to allow it, add {line_to_add(odd)} under policy"
            )
        try:
            made = read_plan(asdict(plan), table, settings.policy.limits.parameters)
        except ConfigError as error:
            advice = f"; `fedlit fit --config {config} --print_config > whole.yaml` writes a whole configuration"
            raise ConfigError(f"{error}{advice if config else ''}") from error
        yield from _floors(settings, plan, made, data) if config else ()
        window = -(-site_info.examples // plan.batch_size)
        options = {"workers": 1, "on_site_error": "stop"}
        options |= {name: getattr(plan, name) for name in OF_A_FEDERATION}
        federation = Federation(made.aggregators, 1, ConstantSchedule(window, "steps"), **options)
        data.batch_size, data.eval_batch_size = plan.batch_size, plan.eval_batch_size
        sites, fabric = Sites(transport, [site_info], whole, trial=True), make_fabric("cpu", precision=plan.precision)
        session = assemble(federation, made.module, data, fabric, plan.seed, away=sites)
        if config and session.account is not None and settings.policy.privacy is not None:
            yield _cost(settings, plan, made, session)
        server, _, _ = session.restore(None, training=True)
        session.initialise_objective(server)
        rnd = session.round(0)
        down = federation.open_round(server, rnd, session)
        total, reports = session.engine.run(rnd.cohort, down, rnd)
        federation.close_round(server, total, rnd, session)
        seconds, losses = (", ".join(f"{getattr(r, name):.3g}" for r in reports) for name in ("seconds", "loss"))
        steps, loss = f"{window} step{'s' * (window > 1)}", f", loss {losses}" if session.account is None else ""
        yield f"a round of {steps}: {seconds} s{loss}; {leaves_a_site(total, session)}"
        scores = session.engine.evaluate(client_views(data, "val"), session.broadcast(server, rnd))
        if scores:
            auroc = pooled_metrics(scores, session.classes, "val").get("val/auroc_macro", float("nan"))
            known = auroc == auroc
            shown = f"mean AUROC {auroc:.3f}, which means nothing yet" if known else "too few images for an AUROC"
            yield f"an evaluation of {sum(s.examples for s in scores):,} images: {shown}"
        yield (Path(folder) / TEXT).read_text().rstrip()


def _classes_of(whole: dict, site_info: SiteInfo) -> list[str]:
    """Return the classes of a configuration; by default the site's own.

    Raises:
        ConfigError: If they lack a class of the site.
    """
    options = (whole.get("data") or {}).get("init_args") or {}
    classes = options.get("classes") or ([] if options.get("names") else options.get("labels")) or site_info.classes
    if unknown := [name for name in site_info.classes if name not in classes]:
        raise ConfigError(
            f"data: expected classes among the configuration's {', '.join(classes)}, found {unknown[0]!r}; remove it "
            "from the classes of your data, or correct its name, for example with names"
        )
    return list(classes)


def _plan(settings: dict, site_info: SiteInfo, own: SiteSettings) -> RunPlan:
    """Return the plan of a configuration, as a server would send it."""
    federation = settings["federation"]
    options = (settings.get("data") or {}).get("init_args") or {}
    batch_size = max(options.get("batch_size", BATCH), 1)
    seed = settings.get("seed", 0)
    return RunPlan(
        **parts_of(settings), classes=site_info.classes, rounds=federation.get("rounds") or 10,
        seed=seed if isinstance(seed, int) else 0, weights="", lr_factors=federation.get("lr_factors") or {},
        **{name: federation.get(name, getattr(Federation, name)) for name in OF_A_FEDERATION},
        batch_size=batch_size,
        eval_batch_size=options.get("eval_batch_size", 128), limit_eval_batches=None,
        precision=(settings.get("fabric") or {}).get("precision", "32-true"),
    )  # fmt: skip


def _cost(settings: SiteSettings, plan: RunPlan, made: Recipe, session: Session) -> str:
    """Return what the whole run would add to the epsilon of the site's ledger."""
    rule, account = settings.policy.privacy, session.account
    rounds = [plan.round(Train(index, [], True), made.schedule) for index in range(plan.rounds)]
    planned = {
        name: (stream.rate, sum(r.window * (stream.steps_per_epoch if r.unit == "epochs" else 1) for r in rounds))
        for name, stream in account.streams.items()
    }
    state = dict(session.initial.aggregators[account.number])
    account.aggregator.plan(state, planned, plan.batch_size)
    kinds = {"verb": "train", "touched": True, "noise": float(state["noise"])}
    new = [LedgerEntry(0.0, question=n, rate=rate, steps=steps, **kinds) for n, (rate, steps) in planned.items()]
    entries = rule.recent((entry for _, entry in read_ledger(settings.folder)), time.time())
    before, after = rule.spent(entries), rule.spent([*entries, *new])
    return f"privacy: the whole run would bring epsilon from {before:.3g} to {after:.3g}, of {rule}"


def _floors(settings: SiteSettings, plan: RunPlan, made: Recipe, data: RemoteData) -> Iterator[str]:
    """Compare the rounds of a configuration with the policy's floors, and name the nearest."""
    floors, sizes = settings.policy.floors, {info.name: info.train for info in data.infos.values()}
    settings.policy.check_plan(plan.batch_size, sizes, plan.threads, False)
    ratios = []
    for name, size in sizes.items():
        for index in (0, plan.rounds - 1):
            rnd = plan.round(Train(index, [name], True), made.schedule)
            train, smallest = data.clients[name].train, floors.batch_size if floors else 2
            stream = BatchStream(train, plan.batch_size, 0, name, smallest=smallest)
            if settings.policy.privacy is not None:
                patients, declared = patients_of(train), settings.policy.privacy.patients
                stream = PoissonStream(train, plan.batch_size, patients, b"", name, declared=declared)
            steps = rnd.window * (stream.steps_per_epoch if rnd.unit == "epochs" else 1)
            seen = min(
                steps * max([1, *(a.batches_per_step for a in made.aggregators)]) * plan.batch_size,
                stream.examples_per_epoch,
            )
            settings.policy.check_steps(steps)
            settings.policy.check_examples(seen, stream.examples_per_epoch)
            if floors is not None:
                least, fewest, batch = (
                    min(floors.examples, stream.examples_per_epoch),
                    min(floors.batch_size, size),
                    plan.batch_size,
                )
                what = f"client {name!r}: a round uses {seen} examples, floors.examples requires {least}"
                ratios.append((seen / least, what))
                what = f"a batch has {batch} examples, floors.batch_size requires {fewest}"
                ratios.append((batch / fewest, what))
    if settings.policy.rounds is not None:
        most = settings.policy.rounds
        ratios.append(
            (most / plan.rounds, f"{plan.rounds} rounds; rounds allows {most} in {settings.policy.days} days")
        )
    if ratios:
        yield f"the nearest floor: {min(ratios)[1]}"


def _folder(folder: Path) -> str:
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=there) as file:  # buffered: it completes a short write, or fails
            file.write(bytes(TRIED))
            file.flush()
    except OSError as error:
        raise ConfigError(
            f"state: cannot write to {there}: {error.strerror or error}; choose another folder"
        ) from error
    return f"state: {folder}, {decimal(shutil.disk_usage(there).free)} free"


def _client(info: ClientInfo, classes: list[str]) -> str:
    sizes = {"training": info.train, "validation": info.val, "test": info.test}
    parts = [f"{size:,} {part}" for part, size in sizes.items() if size]
    shown, counts = [], info.counts.get("train") or [[], []]
    for name, *both in zip(classes, *counts, strict=bool(counts[0])):
        if name in info.classes:
            shown.append(f"{name} {'/'.join('few' if count is None else f'{count:,}' for count in both)}")
    labelled = f"; training positives/negatives as they are reported: {', '.join(shown)}" if shown else ""
    groups = ", ".join(f"{name} ({', '.join(values)})" for name, values in info.groups.items())
    grouped = f"; groups of test images that leave: {groups}" if groups else ""
    return f"client {info.name!r}: {', '.join(parts)} images{labelled}{grouped}"


def _rules(settings: SiteSettings) -> str:
    policy, leaves, floors = settings.policy, settings.policy.leaves, settings.policy.floors
    least, rounds, configs = "no floors", "any number of rounds", "any configuration"
    if floors:
        least = f"batches of at least {floors.batch_size} and rounds of at least {floors.examples} examples"
    if policy.rounds is not None:
        rounds = f"at most {policy.rounds} rounds in {policy.days} days"
    if policy.configs is not None:
        configs = f"{len(policy.configs)} approved configurations"
    scores = "scores and labels of images leave" if leaves.scores else "no scores of images leave"
    allowed = "".join(f", {path}" for path in policy.allow)
    private = ""
    if (rule := policy.privacy) is not None:
        private = f"; privacy: trains only with DPSGD, up to {rule}, {rule.patients:,} patients"
    return (
        f"policy: {', '.join(policy.verbs)}; classes of fedlit and torch.optim{allowed}; vectors "
        f"{', '.join(leaves.vectors)}; {scores}; numbers of positives and negatives below {leaves.counts_below} are "
        f"not reported, nor their AUROC; {least}; {rounds}; {configs}{private}"
    )


def _settings(config: Path) -> dict:
    """Read a whole configuration; imports nothing that it names."""
    settings = documents.load(config)
    if not isinstance(settings, dict) or not {"model", "federation"} <= settings.keys():
        raise ConfigError(
            f"{config}: expected a whole configuration, such as a run's config.yaml, found no model or no federation; "
            "`fedlit fit --print_config` writes one"
        )
    return settings
