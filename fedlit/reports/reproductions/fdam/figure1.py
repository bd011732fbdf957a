"""FDAM, Figure 1: AUC against the communication window, CODASCA beside CODA+ (Yuan et al., ICML 2021, section 6.1).

A part is one federation; on each part both algorithms run over a list of windows with the same seeds, hence the same
initial weights and batches, the same number of iterations and the same evaluations. The laptop's parts train a small head on
a fixed body: a network trained from scratch for a thousand steps is still in its transient, in which any large window
hurts, whatever corrects the drift.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd

from fedlit.reports.reproductions.base import Case, Part, Report, Reproduction, Scale, curve, measured
from fedlit.reports.reproductions.comparison import compare, markdown
from fedlit.reports.reproductions.fdam.figure import draw

HERE = Path(__file__).parent
METHODS = {"CODA+": "CODAPlus", "CODASCA": "CODASCA"}
METRIC, CURVE = "test/federation/auroc_macro", "val/auroc_macro"
ITERATIONS = 4096
"""Local steps of each client at laptop scale."""


def cases(windows: Sequence[int], iterations: int, evaluations: int) -> dict[str, Case]:
    """Both algorithms at every window, with as many local steps and (but for rounding) evaluations."""
    return {
        f"{aggregator.lower()}-{window}": Case(
            {
                "federation.aggregators": [aggregator],
                "federation.schedule.init_args.window": window,
                "federation.schedule.init_args.iterations": iterations,
                "federation.eval_every": max(1, round(iterations / evaluations / window)),
            },
            {"method": method, "window": window},
        )
        for window in windows
        for method, aggregator in METHODS.items()
    }


def phantom(windows: Sequence[int]) -> Part:
    """Five hospitals of PhantomCXR; its runs are those of every reproduction that has it."""
    body = Part("fdam-fig1-phantom-body", HERE / "phantom_body.yaml", seeds=(0,))
    return Part(
        "fdam-fig1-phantom", HERE / "phantom.yaml", cases(windows, ITERATIONS, 8), "PhantomCXR, K = 5", body=body
    )


def cifar10(name: str, title: str, windows: Sequence[int], settings: dict[str, Any]) -> Part:
    """Five clients of CIFAR-10."""
    root = {"root": "."}
    body = Part("fdam-fig1-cifar10-body", HERE / "cifar10_body.yaml", roots=root, seeds=(0,))
    return Part(name, HERE / "cifar10.yaml", cases(windows, ITERATIONS, 8), title, settings, body, root)


def paper_scale(data: str, title: str, imratio: float) -> tuple[Part, ...]:
    """The paper's own federations of 16 and 8 clients; ``data`` names the YAML beside this file."""
    return tuple(
        Part(
            f"fdam-{data}-ih-{imratio:.0%}-k{clients}".replace("%", ""),
            HERE / f"{data}.yaml",
            cases((1, 32, 64, 128, 512, 1024), 20000, 20),
            f"{title} ({imratio:.0%}), K = {clients}",
            {"data.imratio": imratio, "data.partition.init_args.clients": clients},
            roots={"root": "."},
        )
        for clients in (16, 8)
    )


IID = {"data.partition": {"class_path": "IID", "init_args": {"clients": 5, "unit": "image"}}}

CIFAR10_IH = cifar10("fdam-fig1-cifar10-ih", "CIFAR-10-IH, K = 5", (8, 64, 512), {})
CIFAR10 = "the folder of CIFAR-10, as torchvision or the Hugging Face hub lays it out"


@dataclass
class FDAMFigure1(Reproduction):
    """FDAM, Figure 1: AUC against the communication window, CODASCA beside CODA+."""

    name = "fdam-fig1"
    paper = "fdam"
    tables = ("Figure 1",)
    shows = "AUC against the communication window, CODASCA beside CODA+"
    scales = {
        "laptop": Scale(
            "CIFAR-10 with one positive and one negative category a client, the same images IID, and PhantomCXR; small heads "
            f"on fixed bodies, {ITERATIONS:,} iterations",
            "25 minutes on two cores",
            CIFAR10,
        ),
        "paper": Scale(
            "ImageNet-IH with 10% positives, K = 16 and 8, DenseNet121, 20,000 iterations",
            "weeks of a GPU, an estimate",
            "the folder of ImageNet, as torchvision or the Hugging Face hub lays it out",
        ),
    }

    federations: ClassVar[dict[str, tuple[Part, ...]]] = {
        "laptop": (
            CIFAR10_IH,
            cifar10("fdam-fig1-cifar10-iid", "CIFAR-10, IID control", (512,), IID),
            phantom((8, 512)),
        ),
        "paper": paper_scale("imagenet", "ImageNet-IH", 0.1),
    }

    def parts(self) -> Sequence[Part]:
        return self.federations[self.scale]

    def report(self, runs: pd.DataFrame) -> Report:
        runs = runs.assign(
            auroc=[measured(run)[METRIC] for run in runs["directory"]],
            curve=[
                [(step * window, value) for step, value in curve(run, CURVE)]
                for run, window in zip(runs["directory"], runs["window"], strict=True)
            ],
        )
        values = pd.DataFrame(
            {
                "row": runs["title"] + ", " + runs["method"],
                "column": [f"I = {window}" for window in runs["window"]],
                "seed": runs["seed"],
                "auroc": runs["auroc"],
            }
        )
        against = {f"{title}, CODASCA": f"{title}, CODA+" for title in runs["title"]}
        table = compare(values, against)
        text = markdown(table, "Test AUROC of the model that is best in validation", "CODA+ with the same window")
        return Report(text, {"values": values, "table": table}, {"figure": draw(runs)})
