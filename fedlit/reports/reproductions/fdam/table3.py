"""FDAM, Table 3: AUC per finding on chest X-rays of several organisations (Yuan et al., ICML 2021, section 6.1)."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from fedlit.reports.reproductions.base import Part, Report, Reproduction, Scale
from fedlit.reports.reproductions.comparison import compare, markdown
from fedlit.reports.reproductions.fdam.figure1 import ITERATIONS, cases, phantom
from fedlit.reports.reproductions.fdam.findings import by_finding

HERE = Path(__file__).parent

ROOTS = {
    "sources.CheXpert.root": "CheXpert",
    "sources.NIH.root": "NIH",
    "sources.PadChest.root": "PadChest",
    "sources.MIMIC.root": "MIMIC-CXR-JPG",
    "sources.VinDr.root": "VinDr-CXR",
}
FOLDER = "a folder with CheXpert, NIH, PadChest, MIMIC-CXR-JPG and VinDr-CXR, each as it is published"

LAPTOP = phantom((8, 512, 1024))

_WINDOWS = cases((1, 512, 1024), 20000, 20)
PAPER = Part(
    "fdam-table3-chestxray-ih",
    HERE / "chestxray.yaml",
    {name: case for name, case in _WINDOWS.items() if name != "codasca-1"},  # with I = 1 the two are one algorithm
    "ChestXray-IH, K = 16",
    roots=ROOTS,
)


@dataclass
class FDAMTable3(Reproduction):
    """FDAM, Table 3: AUC per finding against the communication window on chest X-rays, CODASCA beside CODA+."""

    name = "fdam-table3"
    paper = "fdam"
    tables = ("Table 3",)
    shows = "AUC per finding against the communication window on chest X-rays, CODASCA beside CODA+"
    scales = {
        "laptop": Scale(
            f"PhantomCXR, five very different hospitals, K = 5; small heads on a fixed body, {ITERATIONS:,} iterations, I = 8 "
            "in place of 1 (windows 8 and 512 are runs of fdam-fig1)",
            "15 minutes on two cores",
        ),
        "paper": Scale(
            "CheXpert, NIH, PadChest, MIMIC-CXR-JPG and VinDr-CXR, K = 16, DenseNet121, 20,000 iterations",
            "days of a GPU, an estimate",
            FOLDER,
        ),
    }

    def parts(self) -> Sequence[Part]:
        return [PAPER if self.scale == "paper" else LAPTOP]

    def report(self, runs: pd.DataFrame) -> Report:
        runs = runs.assign(row=[f"{run.method}, I = {run.window}" for run in runs.itertuples()])
        values = by_finding(runs, "test/federation")
        against = {f"CODASCA, I = {window}": f"CODA+, I = {window}" for window in runs["window"]}
        table = compare(values, against)
        text = markdown(table, "Test AUROC of the model that is best in validation", "CODA+ with the same window")
        return Report(text, {"values": values, "table": table})
