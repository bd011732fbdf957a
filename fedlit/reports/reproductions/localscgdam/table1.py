"""LocalSCGDAM, Table 1: test AUC of five methods by communication period (Zhang et al., NeurIPS 2023, section 6.2)."""

from dataclasses import dataclass

from fedlit.reports.reproductions.base import Scale
from fedlit.reports.reproductions.localscgdam.federations import CIFAR10, FOLDERS, ITERATIONS, LAPTOP, PAPER, Data
from fedlit.reports.reproductions.localscgdam.methods import METHODS, RATES
from fedlit.reports.reproductions.localscgdam.tuned import Column, Tuned

PERIODS = (4, 8, 16)


@dataclass
class LocalSCGDAMTable1(Tuned):
    """LocalSCGDAM, Table 1: test AUC of five methods by communication period, with one budget of local steps."""

    name = experiment = "localscgdam-table1"
    tables = ("Table 1",)
    shows = "test AUC of LocalSCGDAM, CoDA, LocalSGDAM, LocalSGDM and LocalSGDM_RL by communication period"
    scales = {
        "laptop": Scale(
            "CIFAR-10 at 16 x 16 pixels, 10% positives, four clients, a network of three convolutions from scratch, "
            f"{ITERATIONS['laptop']} local steps; for each method the best of {len(RATES)} rates in validation",
            "39 minutes on two cores; a figure of one period alone, about 20",
            CIFAR10,
        ),
        "paper": Scale(
            f"the paper's six data sets, four clients, {ITERATIONS['paper']:,} local steps; for each method and data set the "
            f"best of {len(RATES)} rates in validation",
            "weeks of a GPU, an estimate",
            FOLDERS,
        ),
    }
    methods = METHODS
    columns = {f"p = {period}": Column(period) for period in PERIODS}

    @property
    def federations(self) -> tuple[Data, ...]:
        return PAPER if self.scale == "paper" else (LAPTOP,)
