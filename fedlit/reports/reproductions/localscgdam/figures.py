"""LocalSCGDAM's figures: curves of Table 1, other shares of positives, other baselines (Zhang et al., NeurIPS 2023, 6.2)."""

from dataclasses import dataclass, replace

from fedlit.reports.reproductions.base import Scale
from fedlit.reports.reproductions.localscgdam.federations import CIFAR10, ITERATIONS, LAPTOP, PAPER, Data
from fedlit.reports.reproductions.localscgdam.methods import CORRECTED, METHODS
from fedlit.reports.reproductions.localscgdam.table1 import LocalSCGDAMTable1
from fedlit.reports.reproductions.localscgdam.tuned import Column, Tuned

STEPS = f"four clients, ResNet20, {ITERATIONS['paper']:,} local steps, rates chosen in validation"


class LocalSCGDAMFigure1(LocalSCGDAMTable1):
    name = "localscgdam-fig1"
    tables = ("Figure 1",)
    shows = "AUC against local steps at p = 4, the runs of Table 1"
    columns = {"p = 4": Column(4)}


class LocalSCGDAMFigure2(LocalSCGDAMTable1):
    name = "localscgdam-fig2"
    tables = ("Figure 2",)
    shows = "AUC against local steps at p = 8, the runs of Table 1"
    columns = {"p = 8": Column(8)}


class LocalSCGDAMFigure3(LocalSCGDAMTable1):
    name = "localscgdam-fig3"
    tables = ("Figure 3",)
    shows = "AUC against local steps at p = 16, the runs of Table 1"
    columns = {"p = 16": Column(16)}


@dataclass
class LocalSCGDAMFigure4(Tuned):
    """LocalSCGDAM, Figure 4: test AUC of five methods by share of positives; the paper does not say at which period."""

    name = experiment = "localscgdam-fig4"
    tables = ("Figure 4",)
    shows = "test AUC of five methods by share of positives in the training data"
    scales = {
        "laptop": Scale(
            "CIFAR-10 in place of CATvsDOG, as in localscgdam-table1, whose choice of rates is shared",
            "25 minutes on two cores, an estimate",
            CIFAR10,
        ),
        "paper": Scale(f"CATvsDOG, {STEPS}", "days of a GPU, an estimate", "the folder of CATvsDOG"),
    }
    methods = METHODS
    columns = {f"{ratio:g}": Column(4, {"data.imratio": ratio}) for ratio in (0.01, 0.05, 0.2)}

    @property
    def federations(self) -> tuple[Data, ...]:
        return (_alone("CATvsDOG") if self.scale == "paper" else LAPTOP,)


@dataclass
class LocalSCGDAMFigure5(Tuned):
    """LocalSCGDAM, Figure 5: LocalSCGDAM beside SCAFFOLD and FedProx with cross-entropy, p = 4."""

    name = experiment = "localscgdam-fig5"
    tables = ("Figure 5",)
    shows = "test AUC of LocalSCGDAM beside SCAFFOLD and FedProx"
    scales = {
        "laptop": Scale(
            "CIFAR-10 in place of STL10, as in localscgdam-table1", "12 minutes on two cores, an estimate", CIFAR10
        ),
        "paper": Scale(
            f"STL10, {STEPS}", "days of a GPU, an estimate", "the folder of STL10, as torchvision lays it out"
        ),
    }
    methods = {"LocalSCGDAM": METHODS["LocalSCGDAM"], **CORRECTED}
    columns = {"p = 4": Column(4)}

    @property
    def federations(self) -> tuple[Data, ...]:
        return (_alone("STL10") if self.scale == "paper" else LAPTOP,)


def _alone(title: str) -> Data:
    """A data set of Table 1 whose folder is ``--root`` itself."""
    return next(replace(data, folder=".") for data in PAPER if data.title == title)
