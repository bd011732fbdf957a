"""The commands of ``fedlit``, a file each: its DESCRIPTION, ``parser()`` and ``execute(args, parser)``."""

from fedlit.commands import compare, data, export, fit, listing, predict, reproduce, sweep, test

COMMANDS = {
    "fit": fit,
    "test": test,
    "predict": predict,
    "export": export,
    "sweep": sweep,
    "compare": compare,
    "reproduce": reproduce,
    "data": data,
    "list": listing,
}

__all__ = ["COMMANDS"]
