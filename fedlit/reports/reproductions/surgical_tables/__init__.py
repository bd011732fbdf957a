"""Surgical aggregation, Tables 1 to 4: every method of the paper on sites with different label sets.

Kulkarni et al., arXiv:2301.06683, section 5.2. A *table* is one set of sites and classes; all of its methods have the same
initial weights, rounds, batches and stopping rule, and differ in a few keys of the configuration.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from rich.console import Console

from fedlit.data.labels import harmonised_names
from fedlit.data.schemes import by_sharing
from fedlit.errors import ConfigError
from fedlit.grid import Sweep
from fedlit.metrics.auroc import slug
from fedlit.reports.reproductions.base import Reproduction
from fedlit.reports.reproductions.surgical_tables.figure import draw, draw_dilution
from fedlit.reports.reproductions.surgical_tables.tables import (
    Column,
    Method,
    dilution_markdown,
    markdown,
    published,
    values,
)
from fedlit.run import Result
from fedlit.sweep import run_sweep
from fedlit.tracking.base import MetricsFile

HERE = Path(__file__).parent

MEAN = {"class_path": "FedAvg", "init_args": {"weights": "uniform"}}
STRATEGIES: dict[str, list] = {"FedAvg": [], "FedBN": ["FedBN"], "FedBN+": ["FedBNPlus"]}
REFERENCE = "SurgAgg FedBN+"
"""What others are compared with; the last words of its row."""


DILUTION, DILUTION_ROUNDS = ("Vanilla FedAvg", "PartialLoss FedAvg", "SurgAgg FedAvg"), 64


@dataclass(frozen=True)
class Setting:
    """Sites and what they label.

    Attributes:
        config: YAML beside this file.
        sites: site, and the classes that it labels.
        external: name of the external test set.
        body: YAML of the run whose body all methods start from, or None.
        truth: whether all sites know all classes in truth, so that a model of the full labels can be trained.
        warm_up: whether the config has a head-only phase, whose algorithm follows the method's.
        roots: keys of ``data``, and the path below ``--root`` that each names; empty where the data are built in.
    """

    config: str
    sites: dict[str, tuple[str, ...]]
    external: str
    body: str | None = None
    truth: bool = False
    warm_up: bool = False
    roots: dict[str, str] = field(default_factory=dict)

    @property
    def shared(self) -> tuple[str, ...]:
        """Classes that all sites label."""
        return tuple(c for c in next(iter(self.sites.values())) if all(c in own for own in self.sites.values()))

    @property
    def classes(self) -> tuple[str, ...]:
        """The union, in alphabetical order."""
        return tuple(sorted({c for own in self.sites.values() for c in own}))


COMMON = ("Atelectasis", "Consolidation", "Mass", "Nodule")
OWN = {
    "north": "Cardiomegaly",
    "south": "Edema",
    "east": "Effusion",
    "west": "Emphysema",
    "coast": "Pneumothorax",
    "hills": "Support Devices",
}

LAPTOP = Setting(
    "phantom.yaml",
    {site: tuple(sorted((*COMMON, own))) for site, own in OWN.items()},
    "abroad",
    "body.yaml",
    truth=True,
)

PAPER = Setting(
    "paper.yaml",
    {site: tuple(sorted(harmonised_names(site))) for site in ("NIH", "CheXpert")},
    "MIMIC-LT",
    warm_up=True,
    roots={
        "sources.NIH.root": "NIH",
        "sources.CheXpert.root": "CheXpert",
        "external.MIMIC-LT.root": "MIMIC-CXR-JPG",
        "external.MIMIC-LT.labels_file": "MIMIC-CXR-JPG/cxr-lt.csv",
    },
)


@dataclass
class SurgicalTables(Reproduction):
    """Surgical aggregation, Tables 1 to 4: individual, PFL, centralised, vanilla, partial loss and surgical heads.

    One seed by default, as in the paper; of several the tables take each class's mean.

    Laptop scale: six PhantomCXR hospitals that share four findings and have one more each, a body trained on a seventh,
    an eighth as external test set. Paper scale: NIH, CheXpert and MIMIC-CXR-JPG with the CXR-LT labels, as folders NIH,
    CheXpert and MIMIC-CXR-JPG (with cxr-lt.csv in it) of --root.
    """

    usual_seeds: ClassVar[tuple[int, ...]] = (0,)

    def run(self, console: Console) -> None:
        """Run what is missing, write tables and figure, and say where they are."""
        setting = PAPER if self.scale == "paper" else LAPTOP
        if self.root is not None and not setting.roots:
            raise ConfigError("--root: the data of the laptop's scale are built in; leave it out, or add --scale paper")
        if setting.roots and self.root is None:
            raise ConfigError(
                f"--root is needed: a folder with {', '.join(setting.roots.values())}, each as it is published; nothing is "
                "downloaded"
            )
        start = self._body(setting, console)
        one = self._table(setting, "table-1", setting.shared, start, console)
        two = self._table(setting, "table-2", setting.classes, start, console)
        folder = self.output / "surgical-tables"
        folder.mkdir(parents=True, exist_ok=True)
        text = []
        for name, title, table, columns, classes in self._tables(setting, one, two):
            found = values(table, columns, classes, setting.sites)
            found.to_csv(folder / f"{name}.csv", index=False)
            text.append(markdown(title, found, REFERENCE))
        if setting.truth:
            curves = self._dilution(setting, start, console)
            curves.to_csv(folder / "dilution.csv", index=False)
            draw_dilution(curves).savefig(folder / "dilution.png", dpi=150)
            text.append(dilution_markdown(curves))
        text.append(published())
        (folder / "tables.md").write_text("\n".join(text))
        draw(values(two, _columns(setting)[:1], setting.classes, setting.sites), by_sharing(setting.sites)).savefig(
            folder / "figure.png", dpi=150
        )
        console.print("\n".join(text))
        console.print(f"tables and figure: {folder}")

    def _tables(self, setting: Setting, one: list[Method], two: list[Method]) -> list[tuple]:
        """(name, title, methods, columns, classes) of each table."""
        columns, kinds = _columns(setting), by_sharing(setting.sites)
        apart = [
            Column(f"{column.title}, {kind} classes", column.sets, column.own, classes)
            for column in columns
            for kind, classes in kinds.items()
            if classes
        ]
        found = [
            ("table-1", "Table 1. Shared classes only: data heterogeneity alone", one, columns, setting.shared),
            ("table-2", "Table 2. All classes: each site labels its own", two, columns, setting.classes),
            ("table-3", "Table 3. The runs of Table 2, shared and unique classes apart", two, apart, setting.classes),
        ]
        if self.scale == "paper":
            by_site = [
                Column(f"{setting.external}, {s} classes", (setting.external,), False, c)
                for s, c in setting.sites.items()
            ]
            found.append(("table-4", "Table 4. External test set, by site's classes", two, by_site, setting.classes))
        return found

    def _body(self, setting: Setting, console: Console) -> dict[str, Any]:
        if setting.body is None:
            return {}
        done = run_sweep(self._sweep("surgical-body", setting.body, {}, {}, [0]), 1, console)
        self._complete(done, "surgical-body")
        return {"model.weights": str(Path(done["directory"].iloc[0]).absolute())}

    def _table(
        self, setting: Setting, name: str, classes: tuple[str, ...], start: dict[str, Any], console: Console
    ) -> list[Method]:
        """The methods of a table with what their runs measured: test metrics, means over seeds."""
        schemes = {site: [c for c in own if c in classes] for site, own in setting.sites.items()}
        settings = start | {"data.classes": list(classes)}
        settings |= {f"data.{key}": str(self.root / path) for key, path in setting.roots.items()}
        methods = _methods(setting, classes == setting.shared)
        cases = {case: keys for method in methods for case, keys in method.cases.items()}
        if setting.truth:
            declared = {"class_path": "DeclaredClasses", "init_args": {"clients": schemes}}
            cases = {
                case: keys if case.startswith("full") else {"data.scheme": declared} | keys
                for case, keys in cases.items()
            }
        sweep = self._sweep(f"surgical-{name}", setting.config, settings, cases, self.seeds)
        table = run_sweep(sweep, self.jobs, console)
        self._complete(table, sweep.experiment)
        for method in methods:
            for case in method.cases:
                runs = [Result.read(Path(d)).metrics for d in table.loc[table["case"] == case, "directory"]]
                keys = {key for metrics in runs for key in metrics if "/auroc/" in key}
                method.measured[case] = {
                    key: float(np.mean([m.get(key, np.nan) for m in runs])) for key in sorted(keys)
                }
        return methods

    def _dilution(self, setting: Setting, start: dict[str, Any], console: Console) -> pd.DataFrame:
        """Validation AUROC over the unique classes after each round, of heads trained on a fixed body, three seeds.

        Averaging gives a class that one of K sites labels 1/K of its update; AUROC does not see the size of a row, so what
        this costs is time. It is seen best where nothing but the head moves, in small steps.
        """
        declared = {
            "class_path": "DeclaredClasses",
            "init_args": {"clients": {s: list(c) for s, c in setting.sites.items()}},
        }
        settings = start | {
            "data.classes": list(setting.classes),
            "data.scheme": declared,
            "data.split": [0.45, 0.45, 0.1],
            "model.trainable": "head",
            "model.optimizer.lr": 1e-4,
            "federation.rounds": DILUTION_ROUNDS,
        }
        chosen = [m for m in _methods(setting, False) if m.title in DILUTION]
        cases = {case: keys for method in chosen for case, keys in method.cases.items()}
        sweep = self._sweep("surgical-dilution", setting.config, settings, cases, [0, 1, 2])
        table = run_sweep(sweep, self.jobs, console)
        self._complete(table, sweep.experiment)
        titles = {case: method.title.removesuffix(" FedAvg") for method in chosen for case in method.cases}
        return pd.DataFrame(
            {"method": titles[run.case], "seed": run.seed, "round": step, "auroc": value}
            for run in table.itertuples()
            for step, key, value in MetricsFile(Path(run.directory) / "metrics.csv").rows()
            if key == "val/auroc_unique"
        )

    def _complete(self, table: pd.DataFrame, name: str) -> None:
        missing = table.loc[table["status"] != "finished", "name"].tolist()
        if missing:
            raise ConfigError(f"{len(missing)} runs of {name} are not finished: {', '.join(missing)}; run again")

    def _sweep(self, name: str, config: str, settings: dict, cases: dict, seeds: list[int]) -> Sweep:
        return Sweep(name, [str(HERE / config)], settings, cases, seeds=seeds, run_dir=str(self.run_dir))


def _columns(setting: Setting) -> list[Column]:
    external = Column(f"external ({setting.external})", (setting.external,), False)
    if len(setting.sites) < 3:
        return [*(Column(site, (site,), True) for site in setting.sites), external]
    return [
        Column("every site, its own classes", tuple(setting.sites), True),
        Column("all sites, every class", ("federation",), False),
        external,
    ]


def _methods(setting: Setting, alike: bool) -> list[Method]:
    """The rows of a table.

    Args:
        alike: all sites label the same classes; vanilla, partial loss and surgical heads are one algorithm then.
    """
    pair = len(setting.sites) < 3

    def case(own: list[str], strategy: str, keys: dict[str, Any]) -> dict[str, Any]:
        """Keys of a run; a head-only warm-up has its algorithm for the task block."""
        found = {"federation.aggregators": [*(own or [MEAN]), *STRATEGIES[strategy]]} | keys
        return found | ({"phases.aggregators": own or [MEAN]} if setting.warm_up else {})

    def rows(title: str, own: list[str], strategies: tuple[str, ...], keys: dict[str, Any], personal: bool = False):
        for strategy in strategies:
            name = f"{title.rpartition(', ')[2]} {strategy}".lower().replace("+", "plus").replace(" ", "-")
            methods.append(Method(f"{title} {strategy}", {name: case(own, strategy, keys)}, personal))

    alone = {}
    for site in setting.sites:
        only = {"federation.clients": [site]} | ({"phases.clients": [site]} if setting.warm_up else {})
        alone[site] = {f"individual-{slug(site)}": case([], "FedAvg", only)}
    if pair:
        methods = [Method(f"{site} baseline", cases) for site, cases in alone.items()]
    else:
        methods = [Method("Individual", {k: v for cases in alone.values() for k, v in cases.items()}, personal=True)]
    negative, both = {"data.missing_classes": "negative"}, ("FedAvg", "FedBN+")
    rows("PFL", ["PersonalHeads"], ("FedAvg", "FedBN", "FedBN+"), {}, personal=True)
    methods.append(Method("Central", {"central": case([], "FedAvg", negative | {"data.pooled": True})}))
    if alike:
        rows("Vanilla, PartialLoss, SurgAgg", [], both, {})
        return methods
    rows("Vanilla", [], both, negative)
    rows("PartialLoss", [], both, {})
    rows("SurgAgg", ["SurgicalHeads"], both, {})
    if setting.truth:
        rows("Full labels", [], both, {})
    return methods
