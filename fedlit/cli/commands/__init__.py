"""The commands of ``fedlit``. Each is a file with ``parser(argv)`` and ``execute(args, parser)``."""

from importlib import import_module
from types import ModuleType

from fedlit.federation.interrupts import exiting_on_ctrl_c

COMMANDS = {
    "fit": "Train a federation, test its best model, and log the run to MLflow.",
    "test": "Evaluate a checkpoint on the test sets.",
    "predict": "Write the probabilities that a trained model gives to every image, as Parquet or CSV files.",
    "export": "Write the model of a checkpoint to one .safetensors file, to use it elsewhere.",
    "sweep": "Run all combinations of cases, values and seeds. Repeat the command to continue after an interruption.",
    "tune": (
        "Choose the settings of several methods with the same number of tries, and run the best with other seeds. "
        "Repeat the command to continue after an interruption."
    ),
    "compare": "Compare runs on the terminal and in a report: AUROC with intervals and paired tests, costs, settings.",
    "evaluate": "Evaluate runs of one method in depth: calibration, groups of patients, operating points, usefulness.",
    "audit": (
        "Report how well a run's model tells its training patients from other patients, before the model leaves this "
        "machine. Nothing is sent."
    ),
    "card": "Write the model card of a run as Markdown: data, settings, AUROC with intervals, and blanks to fill in.",
    "reproduce": "Make a figure or table of a paper, with its runs. Repeat the command after an interruption.",
    "runs": "List and rank runs, and remove them together with their runs in MLflow.",
    "data": "Check data before training on it, and manage the cache of decoded images.",
    "site": (
        "Prepare a federation across sites: write the folders of its sites, server and lead, check a site before it "
        "joins, show what has left it, and fetch the model of a run."
    ),
    "job": "Train one run of a submission; the scripts of --on and the lines of --print_jobs call it.",
    "list": (
        "List the built-in classes by the short names that a YAML may use, the harmonised labels, the reproductions, "
        "or the checks before training."
    ),
}
"""The help of each command. The file of a command is imported only when it is called, which saves seconds."""


def command(name: str) -> ModuleType:
    """Import the file of a command."""
    with exiting_on_ctrl_c():
        return import_module(f"{__name__}.{name}")
