"""The federations of the paper's section 6, and the laptop's."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent

ITERATIONS = {"laptop": 384, "paper": 20000}
"""Local steps of each client; the paper's number was in an appendix that was not at hand."""

CIFAR10 = "the folder of CIFAR-10, as torchvision or the Hugging Face hub lays it out"
FOLDERS = "a folder with CATvsDOG, CIFAR10, CIFAR100, STL10, FashionMNIST and Melanoma, each as it is published"


@dataclass(frozen=True)
class Data:
    """Four clients of one data set.

    Attributes:
        title: as tables call it.
        name: of its sweeps' experiments.
        config: YAML.
        iterations: local steps of each client.
        evaluations: in a run.
        settings: keys beside the YAML's.
        folder: of the data below ``--root``.
    """

    title: str
    name: str
    config: Path
    iterations: int
    evaluations: int
    settings: dict[str, Any] = field(default_factory=dict)
    folder: str = "."


LAPTOP = Data("CIFAR10", "localscgdam-cifar10-laptop", HERE / "cifar10.yaml", ITERATIONS["laptop"], 6)


def _paper(title: str, data: dict[str, Any], model: dict[str, Any] | None = None) -> Data:
    settings = {"data": {"class_path": title, "init_args": data}} | {
        f"model.{key}": v for key, v in (model or {}).items()
    }
    name = f"localscgdam-{title.lower()}"
    return Data(title, name, HERE / "paper.yaml", ITERATIONS["paper"], 40, settings, title)


def _halves(image_size: int, batch_size: int = 32) -> dict[str, Any]:
    """The first half of the categories positive, 10% of the training images, equal clients; the test set untouched."""
    partition = {"class_path": "IID", "init_args": {"clients": 4}}
    sizes = {"image_size": image_size, "batch_size": batch_size}
    return {"positives": "first_half", "imratio": 0.1, "partition": partition} | sizes


_BY_PATIENT = {"class_path": "ByPatient", "init_args": {"clients": 4}}

PAPER = (
    _paper("CATvsDOG", _halves(32)),
    _paper("CIFAR10", _halves(32)),
    _paper("CIFAR100", _halves(32)),
    _paper("STL10", _halves(96, 8)),
    _paper("FashionMNIST", _halves(28), {"backbone": "small_cnn", "in_chans": 1}),
    _paper("Melanoma", {"partition": _BY_PATIENT, "image_size": 224, "batch_size": 16}, {"backbone": "densenet121"}),
)
"""In the order of Table 1."""
