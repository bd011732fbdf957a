"""The command line: ``fedlit COMMAND``. Each command is a file in ``commands/``. No other package imports this one."""

from fedlit.federation.interrupts import ending_at_once

with ending_at_once():
    from fedlit.cli.main import main, run

__all__ = ["main", "run"]
