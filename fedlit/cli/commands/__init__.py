"""The commands of ``fedlit``. Each is a file with ``parser(argv)`` and ``execute(args, parser)``."""

from importlib import import_module
from types import ModuleType

from fedlit.federation.interrupts import exiting_on_ctrl_c

COMMANDS = {
    "fit": "Train a federation, test its best model, and log to MLflow.",
    "test": "Evaluate a checkpoint on the test sets.",
    "predict": "Write the probabilities of a checkpoint for every image to Parquet or CSV files.",
    "export": "Write the model of a checkpoint to one .safetensors file, which can be used elsewhere.",
    "sweep": "Run a grid of cases, values and seeds. A call after an interruption continues with what is left.",
    "compare": "Compare runs: AUROC with intervals and paired tests, cost, and settings, on the terminal and as a report.",
    "reproduce": "Run what a figure or table of a paper needs, and write it. A call after an interruption continues.",
    "data": "Look at data before training on it, and at the cache of decoded images.",
    "site": "Write the folder of a site, a server or a lead of a federation across sites, look at one before it joins, show what has left it, and bring a run's model out of it.",
    "list": "Show what ships by the short names that a YAML may use. Also the harmonised labels, the reproductions, and the checks of a model.",
}
"""What each command does. Its file is imported when it is called: the others would take seconds."""


def command(name: str) -> ModuleType:
    """Import the file of a command."""
    with exiting_on_ctrl_c():
        return import_module(f"{__name__}.{name}")
