"""FDAM, Tables 4 and 5: scores at one hospital, with the data of 1 to 5 (Yuan et al., ICML 2021, section 6.2).

A body is trained by cross-entropy on the target's images alone; CODASCA starts from it over the target, K = 1, and with
one organisation more at a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd

from fedlit.reports.reproductions.base import Case, Part, Report, Reproduction, Scale
from fedlit.reports.reproductions.comparison import compare, markdown
from fedlit.reports.reproductions.fdam.findings import by_finding
from fedlit.reports.reproductions.fdam.table3 import FOLDER, ROOTS

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Target:
    """Where the tables are made.

    Attributes:
        config: YAML beside this file.
        organisations: the target first, then in the order in which they join.
        body: keys of the run on the target alone, beside those that all such runs have.
        scored: prefix of the metrics that the tables show, and what they are in words.
        roots: keys of ``data``, and the path below ``--root`` that each names.
    """

    config: str
    organisations: tuple[str, ...]
    body: dict[str, Any]
    scored: tuple[str, str]
    roots: dict[str, str]


LAPTOP = Target(
    "target_phantom.yaml",
    ("target", "source-2", "source-3", "source-4", "source-5"),
    {"federation.rounds": 6, "model.optimizer.lr": 2e-3},
    ("test/held-out", "Test AUROC at the target hospital, other patients, of the model that is best in its validation"),
    {},
)

PAPER = Target(
    "target.yaml",
    ("CheXpert", "NIH", "PadChest", "MIMIC", "VinDr"),
    {"federation.rounds": 2, "model.optimizer.lr": 1e-5, "model.pretrained": True, "federation.eval_every": 1},
    (
        "client/CheXpert",
        "AUROC on CheXpert's validation set, of the round that is best there (the paper names no other)",
    ),
    ROOTS,
)


@dataclass
class FDAMTable4(Reproduction):
    """FDAM, Table 4: AUC at one hospital with the data of 1 to 5, DenseNet121."""

    name = "fdam-table4"
    paper = "fdam"
    tables = ("Table 4",)
    shows = "AUC at one hospital with the data of 1 to 5, DenseNet121"
    backbones: ClassVar[dict[str, str]] = {"laptop": "mobilenetv3_small_050", "paper": "densenet121"}
    scales = {
        "laptop": Scale(
            "PhantomCXR, five hospitals with the paper's imbalance ratios, MobileNetV3 of half width, 48x48 pixels, 256 iterations",
            "12 minutes on two cores",
        ),
        "paper": Scale(
            "CheXpert, then NIH, PadChest, MIMIC-CXR-JPG and VinDr-CXR, DenseNet121, 320x320 pixels, 20,000 iterations",
            "days of a GPU, an estimate",
            FOLDER,
        ),
    }

    def parts(self) -> Sequence[Part]:
        target = self._target
        backbone = {"model.backbone": self.backbones[self.scale]}
        alone = {
            "federation.clients": [target.organisations[0]],
            "federation.aggregators": ["FedAvg"],
            "federation.schedule": {"class_path": "ConstantSchedule", "init_args": {"window": 1, "unit": "epochs"}},
            "federation.optimizer_state": "keep",
            "model.objective": "BCE",
            "model.optimizer": "torch.optim.Adam",
        }
        name, config = f"{self.name}-{self.scale}", HERE / target.config
        shared = {"roots": target.roots, "metric": f"{target.scored[0]}/auroc_macro"}
        body = Part(f"{name}-body", config, settings=backbone | alone | target.body, seeds=(0,), **shared)
        cases = {
            f"k{k}": Case({"federation.clients": list(target.organisations[:k])}, {"K": k})
            for k in range(1, len(target.organisations) + 1)
        }
        return [Part(name, config, cases, settings=backbone, body=body, **shared)]

    def report(self, runs: pd.DataFrame) -> Report:
        prefix, what = self._target.scored
        values = by_finding(runs.assign(row=[f"K = {k}" for k in runs["K"]]), prefix)
        average = values.groupby(["row", "seed"], sort=False)["auroc"].agg(lambda found: found.mean(skipna=False))
        values = pd.concat([values, average.reset_index().assign(column="average")], ignore_index=True)
        table = compare(values, {f"K = {k}": "K = 1" for k in runs["K"] if k > 1})
        return Report(markdown(table, what, "the target alone, K = 1"), {"values": values, "table": table})

    @property
    def _target(self) -> Target:
        return PAPER if self.scale == "paper" else LAPTOP


@dataclass
class FDAMTable5(FDAMTable4):
    """FDAM, Table 5: as Table 4, with DenseNet161."""

    name = "fdam-table5"
    tables = ("Table 5",)
    shows = "AUC at one hospital with the data of 1 to 5, DenseNet161"
    backbones = {"laptop": "mobilenetv3_small_100", "paper": "densenet161"}
    scales = {
        "laptop": Scale(
            "PhantomCXR, five hospitals with the paper's imbalance ratios, MobileNetV3 of full width, 48x48 pixels, 256 iterations",
            "18 minutes on two cores",
        ),
        "paper": Scale(
            "CheXpert, then NIH, PadChest, MIMIC-CXR-JPG and VinDr-CXR, DenseNet161, 320x320 pixels, 20,000 iterations",
            "days of a GPU, an estimate",
            FOLDER,
        ),
    }
