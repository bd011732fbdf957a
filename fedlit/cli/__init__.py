"""The command line: ``fedlit COMMAND``. Each command is a file in ``commands/``. No other package imports this one."""

from fedlit.federation.interrupts import exiting_on_ctrl_c

with exiting_on_ctrl_c():
    from fedlit.cli.main import main, run

__all__ = ["main", "run"]
