"""Surgical aggregation, Tables 1 to 4: every method of the paper on sites with different label sets.

Kulkarni et al., arXiv:2301.06683, section 5.2. A *table* is one set of sites and classes; all of its methods have the same
initial weights, rounds, batches and stopping rule, and differ in a few keys of the configuration.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedlit.data.labels import harmonised_names
from fedlit.data.schemes import by_sharing
from fedlit.metrics.auroc import slug
from fedlit.reports.reproductions.base import Case, Part, Report, Reproduction, Scale, curve, measured
from fedlit.reports.reproductions.surgical.figure import draw, draw_dilution
from fedlit.reports.reproductions.surgical.tables import Column, Method, dilution_markdown, markdown, values

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
        body: the run whose body all methods start from, or None.
        truth: whether all sites know all classes in truth, so that a model of the full labels can be trained.
        warm_up: whether the config has a head-only phase, whose algorithm follows the method's.
        roots: keys of ``data``, and the path below ``--root`` that each names; empty where the data are built in.
    """

    config: str
    sites: dict[str, tuple[str, ...]]
    external: str
    body: Part | None = None
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

    def classes_of(self, part: str) -> tuple[str, ...]:
        """What the runs of a part are about."""
        return self.shared if part == "surgical-table-1" else self.classes


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
    Part("surgical-body", HERE / "body.yaml", seeds=(0,)),
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
    """

    name = "surgical-tables"
    paper = "surgical"
    tables = ("Table 1", "Table 2", "Table 3", "Table 4")
    shows = "every method of surgical aggregation on sites that label different findings, Tables 1 to 4"
    scales = {
        "laptop": Scale(
            "PhantomCXR: six hospitals that share four findings and have one more each, a body that was trained on a seventh, "
            "an eighth as external test set; MobileNetV3, 48x48 pixels, 8 rounds",
            "35 minutes on two cores; Table 1 or 2 alone, 10",
        ),
        "paper": Scale(
            "NIH, CheXpert and MIMIC-CXR-LT (external), DenseNet121, 224x224 pixels",
            "weeks of a GPU, an estimate",
            "a folder with NIH, CheXpert, MIMIC-CXR-JPG and MIMIC-CXR-JPG/cxr-lt.csv, each as it is published",
        ),
    }
    usual_seeds = (0,)

    def parts(self) -> Sequence[Part]:
        parts = [_part(self._setting, name) for name in self._runs_of]
        return [*parts, _dilution(self._setting)] if self._dilutes else parts

    def report(self, runs: pd.DataFrame) -> Report:
        setting = self._setting
        methods = {name: _measured(_methods(setting, name), runs[runs["part"] == name]) for name in self._runs_of}
        texts, tables, figures = [], {}, {}
        for title in self.tables:
            name, said, columns = _table(setting, title)
            found = values(methods[name], columns, setting.classes_of(name), setting.sites)
            tables[title.lower().replace(" ", "-")] = found
            texts.append(markdown(f"{title}. {said}", found, REFERENCE))
        if "surgical-table-2" in methods:
            found = values(methods["surgical-table-2"], _columns(setting)[:1], setting.classes, setting.sites)
            figures["figure"] = draw(found, by_sharing(setting.sites))
        if self._dilutes:
            curves = _curves(runs[runs["part"] == "surgical-dilution"])
            tables["dilution"], figures["dilution"] = curves, draw_dilution(curves)
            texts.append(dilution_markdown(curves))
        return Report("\n".join(texts), tables, figures)

    @property
    def _setting(self) -> Setting:
        return PAPER if self.scale == "paper" else LAPTOP

    @property
    def _runs_of(self) -> list[str]:
        """Names of the parts that the chosen tables are made of."""
        return list(dict.fromkeys(_table(self._setting, title)[0] for title in self.tables))

    @property
    def _dilutes(self) -> bool:
        return self._setting.truth and len(self.tables) > 1


class SurgicalTable1(SurgicalTables):
    name = "surgical-table1"
    tables = ("Table 1",)
    shows = "surgical aggregation, Table 1: shared classes only"


class SurgicalTable2(SurgicalTables):
    name = "surgical-table2"
    tables = ("Table 2",)
    shows = "surgical aggregation, Table 2: all classes, each site labels its own"


class SurgicalTable3(SurgicalTables):
    name = "surgical-table3"
    tables = ("Table 3",)
    shows = "surgical aggregation, Table 3: shared and unique classes apart"


class SurgicalTable4(SurgicalTables):
    name = "surgical-table4"
    tables = ("Table 4",)
    shows = "surgical aggregation, Table 4: the external test set, by each site's classes"


def _table(setting: Setting, title: str) -> tuple[str, str, list[Column]]:
    """Part, what is shown, and columns of a table."""
    columns = _columns(setting)
    if title == "Table 1":
        return "surgical-table-1", "Shared classes only: data heterogeneity alone", columns
    if title == "Table 2":
        return "surgical-table-2", "All classes: each site labels its own", columns
    if title == "Table 3":
        apart = [
            Column(f"{column.title}, {kind} classes", column.sets, column.own, classes)
            for column in columns
            for kind, classes in by_sharing(setting.sites).items()
            if classes
        ]
        return "surgical-table-2", "The runs of Table 2, shared and unique classes apart", apart
    by_site = [
        Column(f"{setting.external}, {site} classes", (setting.external,), False, own)
        for site, own in setting.sites.items()
    ]
    return "surgical-table-2", "The runs of Table 2, external test set, by site's classes", by_site


def _part(setting: Setting, name: str) -> Part:
    """The runs of a table, those that label the shared classes or all."""
    classes = setting.classes_of(name)
    cases = {case: keys for method in _methods(setting, name) for case, keys in method.cases.items()}
    if setting.truth:
        declared = _declared({site: [c for c in own if c in classes] for site, own in setting.sites.items()})
        cases = {case: keys if case.startswith("full") else declared | keys for case, keys in cases.items()}
    return _of(setting, name, cases, {"data.classes": list(classes)})


def _dilution(setting: Setting) -> Part:
    """Heads that are trained on a fixed body, three seeds.

    Averaging gives a class that one of K sites labels 1/K of its update; AUROC does not see the size of a row, so what
    this costs is time. It is seen best where nothing but the head moves, in small steps.
    """
    settings = {
        "data.classes": list(setting.classes),
        "data.split": [0.45, 0.45, 0.1],
        "model.trainable": "head",
        "model.optimizer.lr": 1e-4,
        "federation.rounds": DILUTION_ROUNDS,
    } | _declared({site: list(own) for site, own in setting.sites.items()})
    chosen = [m for m in _methods(setting, "surgical-table-2") if m.title in DILUTION]
    cases = {case: keys for method in chosen for case, keys in method.cases.items()}
    titles = {case: method.title.removesuffix(" FedAvg") for method in chosen for case in method.cases}
    return _of(setting, "surgical-dilution", cases, settings, titles, seeds=(0, 1, 2))


def _of(
    setting: Setting,
    name: str,
    cases: dict[str, dict[str, Any]],
    settings: dict[str, Any],
    titles: dict[str, str] | None = None,
    seeds: tuple[int, ...] | None = None,
) -> Part:
    labelled = {case: Case(keys, {"method": (titles or {}).get(case, case)}) for case, keys in cases.items()}
    config = HERE / setting.config
    return Part(name, config, labelled, settings=settings, body=setting.body, roots=setting.roots, seeds=seeds)


def _declared(labels: dict[str, list[str]]) -> dict[str, Any]:
    return {"data.scheme": {"class_path": "DeclaredClasses", "init_args": {"clients": labels}}}


def _measured(methods: list[Method], runs: pd.DataFrame) -> list[Method]:
    """The methods with what their runs measured: test metrics, means over seeds."""
    for method in methods:
        for case in method.cases:
            found = [measured(run) for run in runs.loc[runs["case"] == case, "directory"]]
            keys = {key for metrics in found for key in metrics if key.startswith("test/") and "/auroc/" in key}
            method.measured[case] = {key: float(np.mean([m.get(key, np.nan) for m in found])) for key in sorted(keys)}
    return methods


def _curves(runs: pd.DataFrame) -> pd.DataFrame:
    """Validation AUROC over the unique classes after each round: method, seed, round, auroc."""
    return pd.DataFrame(
        {"method": run.method, "seed": run.seed, "round": step, "auroc": value}
        for run in runs.itertuples()
        for step, value in curve(run.directory, "val/auroc_unique")
    )


def _columns(setting: Setting) -> list[Column]:
    external = Column(f"external ({setting.external})", (setting.external,), False)
    if len(setting.sites) < 3:
        return [*(Column(site, (site,), True) for site in setting.sites), external]
    return [
        Column("every site, its own classes", tuple(setting.sites), True),
        Column("all sites, every class", ("federation",), False),
        external,
    ]


def _methods(setting: Setting, part: str) -> list[Method]:
    """The rows of a table.

    Where all sites label the same classes, vanilla, partial loss and surgical heads are one algorithm.
    """
    pair, alike = len(setting.sites) < 3, setting.classes_of(part) == setting.shared

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
