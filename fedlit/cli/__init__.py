"""What a user types: ``fedlit COMMAND``, where each command is a file in ``commands/``. Nothing imports it."""

from fedlit.federation.interrupts import exiting_on_ctrl_c

with exiting_on_ctrl_c():
    from fedlit.cli.main import main, run

__all__ = ["main", "run"]
