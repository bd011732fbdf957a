"""Surgical aggregation, Figures 5 to 7: simulated IID clients, by how many they are and by how many classes they share.

Kulkarni et al., arXiv:2301.06683, section 4.2.1. All federated methods have FedBN+, and all the same budget; the model of
all labels, one run, is what they try to come near. Methods are compared by paired t-tests over the settings.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pandas as pd

from fedlit.metrics.auroc import slug
from fedlit.metrics.paired import paired
from fedlit.reports.reproductions.base import Case, Part, Report, Reproduction, Scale, measured
from fedlit.reports.reproductions.published import grid
from fedlit.reports.reproductions.surgical import HERE, LAPTOP, MEAN, PAPER
from fedlit.reports.reproductions.surgical.figure import draw_simulation

AXES = {"clients": "clients", "shared": "shared classes"}
KEYS = {"clients": "data.partition.init_args.clients", "shared": "data.scheme.init_args.shared"}
SURGICAL, EVERYTHING = "SurgAgg", "All labels"


@dataclass(frozen=True)
class Simulation:
    """What is simulated at a scale.

    Attributes:
        config: YAML beside this file.
        usual: clients and shared classes where the other of the two varies.
        varied: the numbers of either.
        sets: test sets, by the name that tables give them.
        body: the run whose body all methods start from, or None.
        roots: keys of ``data``, and the path below ``--root`` that each names.
    """

    config: str
    usual: dict[str, int]
    varied: dict[str, tuple[int, ...]]
    sets: dict[str, str]
    body: Part | None
    roots: dict[str, str]

    @property
    def warm_up(self) -> bool:
        """Whether the config has a head-only phase; it has one where there is no body of ours."""
        return self.body is None

    def settings(self, axis: str) -> list[dict[str, int]]:
        """Clients and shared classes, one of them varied."""
        return [self.usual | {axis: number} for number in self.varied[axis]]


SIMULATED = {
    "laptop": Simulation(
        "simulation.yaml",
        {"clients": 4, "shared": 4},
        {"clients": (2, 4, 8), "shared": (0, 4, 8, 10)},
        {"home": "federation", "abroad": "abroad"},
        LAPTOP.body,
        {},
    ),
    "paper": Simulation(
        "simulation_paper.yaml",
        {"clients": 4, "shared": 6},
        {"clients": (2, 3, 4, 5, 6, 8, 10), "shared": (0, 2, 6, 10, 12, 13, 14)},
        {"NIH": "federation", "MIMIC-LT": "MIMIC-LT"},
        None,
        {key: path for key, path in PAPER.roots.items() if "CheXpert" not in key},
    ),
}
"""The paper does not say how many classes are shared where the number of clients varies."""


@dataclass
class SurgicalFigure5(Reproduction):
    """Surgical aggregation, Figure 5: AUROC by number of clients and by number of shared classes.

    One seed by default, as in the paper; of several the settings take the mean.
    """

    name = "surgical-fig5"
    paper = "surgical"
    tables = ("Figure 5",)
    shows = "AUROC of IID clients by their number and by the number of classes that they share"
    scales = {
        "laptop": Scale(
            "PhantomCXR: one hospital in IID parts, another as external test set, a body that was trained on a third; "
            "MobileNetV3, 48x48 pixels, 8 rounds",
            "17 minutes on two cores",
        ),
        "paper": Scale(
            "NIH in IID parts and MIMIC-CXR-LT (external), DenseNet121, 224x224 pixels",
            "weeks of a GPU, an estimate",
            "a folder with NIH, MIMIC-CXR-JPG and MIMIC-CXR-JPG/cxr-lt.csv, each as it is published",
        ),
    }
    usual_seeds = (0,)
    axes: ClassVar[tuple[str, ...]] = tuple(AXES)

    def parts(self) -> Sequence[Part]:
        simulated = self._simulated
        methods = _methods(simulated.warm_up)
        everything = _pooled(simulated.warm_up) | {"data.scheme": None}
        cases = {
            f"clients-{at['clients']}-shared-{at['shared']}-{method.lower()}": Case(
                keys | {KEYS[varied]: number for varied, number in at.items()}, {**at, "method": method}
            )
            for axis in self.axes
            for at in simulated.settings(axis)
            for method, keys in methods.items()
        } | {"all-labels": Case(everything, {"clients": 0, "shared": 0, "method": EVERYTHING})}
        return [Part("surgical-simulation", HERE / simulated.config, cases, body=simulated.body, roots=simulated.roots)]

    def report(self, runs: pd.DataFrame) -> Report:
        sets = self._simulated.sets
        found = pd.DataFrame(
            {
                "clients": run.clients,
                "shared": run.shared,
                "method": run.method,
                "set": title,
                "auroc": metrics[f"test/{slug(name)}/auroc_macro"],
            }
            for run in runs.itertuples()
            for metrics in [measured(run.directory)]
            for title, name in sets.items()
        )
        values = found.groupby([c for c in found if c != "auroc"], sort=False, as_index=False)["auroc"].mean()
        curves = pd.concat([self._along(axis, values) for axis in self.axes], ignore_index=True)
        texts = [_markdown(curves, axis, title) for axis in self.axes for title in sets]
        return Report("\n".join(texts), {"values": values}, {"figure": draw_simulation(curves, AXES)})

    def _along(self, axis: str, values: pd.DataFrame) -> pd.DataFrame:
        """The settings of an axis and the model of all labels, with the number that varies."""
        (other,) = AXES.keys() - {axis}
        chosen = values[(values[other] == self._simulated.usual[other]) & (values["method"] != EVERYTHING)]
        kept = pd.concat([chosen, values[values["method"] == EVERYTHING]])
        return kept.assign(axis=axis, number=kept[axis])[["axis", "number", "method", "set", "auroc"]]

    @property
    def _simulated(self) -> Simulation:
        return SIMULATED[self.scale]


class SurgicalFigure6(SurgicalFigure5):
    name = "surgical-fig6"
    tables = ("Figure 6",)
    shows = "AUROC of IID clients by their number"
    axes = ("clients",)


class SurgicalFigure7(SurgicalFigure5):
    name = "surgical-fig7"
    tables = ("Figure 7",)
    shows = "AUROC of IID clients by the number of classes that they share"
    axes = ("shared",)


def _methods(warm_up: bool) -> dict[str, dict[str, Any]]:
    """Keys of each method's runs."""
    return {
        "Central": _pooled(warm_up) | {"data.missing_classes": "negative"},
        "Vanilla": _aggregated([MEAN], "FedBNPlus", warm_up) | {"data.missing_classes": "negative"},
        "PartialLoss": _aggregated([MEAN], "FedBNPlus", warm_up),
        SURGICAL: _aggregated(["SurgicalHeads"], "FedBNPlus", warm_up),
    }


def _pooled(warm_up: bool) -> dict[str, Any]:
    return {"data.pooled": True} | _aggregated([MEAN], None, warm_up)


def _aggregated(head: list, strategy: str | None, warm_up: bool) -> dict[str, Any]:
    """Keys of the algorithm, which a head-only warm-up has for the head."""
    return {"federation.aggregators": [*head, *([strategy] if strategy else [])]} | (
        {"phases.aggregators": head} if warm_up else {}
    )


def _markdown(values: pd.DataFrame, axis: str, test_set: str) -> str:
    """A row a method, a column a setting; mean and standard deviation over settings, and the paired test against surgical."""
    chosen = values[(values["axis"] == axis) & (values["set"] == test_set)]
    everything = chosen.loc[chosen["method"] == EVERYTHING, "auroc"].item()
    chosen = chosen[chosen["method"] != EVERYTHING]
    rows = chosen.pivot(index="method", columns="number", values="auroc").loc[list(dict.fromkeys(chosen["method"]))]
    shown, odd = [], []
    for method, mine in rows.iterrows():
        mean = f"{mine.mean():.3f} ± {mine.std():.3f}"
        if method != SURGICAL:
            test = paired(rows.loc[SURGICAL], mine)
            mean += f" ({-test.difference:+.3f} {test.stars})"
            odd += [] if test.normal else [method]
        shown.append([method, *(f"{value:.3f}" for value in mine), mean, f"{everything - mine.mean():.3f}"])
    lines = [
        f"**{test_set}, by number of {AXES[axis]}**",
        "",
        *grid(["method", *map(str, rows.columns), "mean", "below all labels by"], shown),
        "",
        f"Mean test AUROC over classes; its mean ± standard deviation over the {rows.shape[1]} settings. In brackets the "
        f"difference to {SURGICAL} and its paired t-test over settings: ns p >= 0.05, * p < 0.05, ** p < 0.01, *** p < 0.001. "
        f"The model of all labels has {everything:.3f}.",
    ]
    if odd:
        lines.append(f"Shapiro-Wilk p < 0.05, so the t-test does not hold for {', '.join(odd)}.")
    return "\n".join([*lines, ""])
