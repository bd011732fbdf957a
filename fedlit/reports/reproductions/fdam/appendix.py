"""FDAM, Figures 2 to 4: Figure 1 on CIFAR100-IH, and with 30% positives (Yuan et al., ICML 2021, appendix F)."""

from fedlit.reports.reproductions.base import Scale
from fedlit.reports.reproductions.fdam.figure1 import CIFAR10, CIFAR10_IH, ITERATIONS, FDAMFigure1, cifar10, paper_scale

CIFAR10_IH_30 = cifar10("fdam-fig3-cifar10-ih", "CIFAR-10-IH (30%), K = 5", (8, 64, 512), {"data.imratio": 0.3})


def _scales(laptop: str, minutes: str, data: str, folder: str) -> dict[str, Scale]:
    return {
        "laptop": Scale(f"{laptop}, a small head on a fixed body, {ITERATIONS:,} iterations", minutes, CIFAR10),
        "paper": Scale(
            f"{data} positives, K = 16 and 8, DenseNet121, 20,000 iterations",
            "weeks of a GPU, an estimate",
            f"the folder of {folder}, as torchvision or the Hugging Face hub lays it out",
        ),
    }


class FDAMFigure2(FDAMFigure1):
    name = "fdam-fig2"
    tables = ("Figure 2",)
    shows = "Figure 1 on CIFAR100-IH"
    scales = _scales(
        "CIFAR-10 with one positive and one negative category a client, runs of fdam-fig1",
        "11 minutes on two cores, an estimate",
        "CIFAR100-IH with 10%",
        "CIFAR-100",
    )
    federations = {"laptop": (CIFAR10_IH,), "paper": paper_scale("cifar100", "CIFAR100-IH", 0.1)}


class FDAMFigure3(FDAMFigure1):
    name = "fdam-fig3"
    tables = ("Figure 3",)
    shows = "Figure 1 with 30% positives, ImageNet-IH"
    scales = _scales(
        "CIFAR-10 with one positive and one negative category a client and 30% positives",
        "11 minutes on two cores, an estimate",
        "ImageNet-IH with 30%",
        "ImageNet",
    )
    federations = {"laptop": (CIFAR10_IH_30,), "paper": paper_scale("imagenet", "ImageNet-IH", 0.3)}


class FDAMFigure4(FDAMFigure1):
    name = "fdam-fig4"
    tables = ("Figure 4",)
    shows = "Figure 1 with 30% positives, CIFAR100-IH"
    scales = _scales(
        "CIFAR-10 with one positive and one negative category a client and 30% positives, runs of fdam-fig3",
        "11 minutes on two cores, an estimate",
        "CIFAR100-IH with 30%",
        "CIFAR-100",
    )
    federations = {"laptop": (CIFAR10_IH_30,), "paper": paper_scale("cifar100", "CIFAR100-IH", 0.3)}
