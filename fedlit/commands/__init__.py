"""The commands of ``fedlit``, a file each: its DESCRIPTION, ``parser()`` and ``execute(args, parser)``."""

from fedlit.commands import data, export, fit, listing, predict, reproduce, sweep, test

COMMANDS = {
    "fit": fit,
    "test": test,
    "predict": predict,
    "export": export,
    "sweep": sweep,
    "reproduce": reproduce,
    "data": data,
    "list": listing,
}

__all__ = ["COMMANDS"]
