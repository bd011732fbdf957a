"""What a user types: ``fedlit COMMAND``, where each command is a file in ``commands/``. Nothing imports it."""

from fedlit.federation.interrupts import ending_at_once

with ending_at_once():
    from fedlit.cli.main import main, run

__all__ = ["main", "run"]
