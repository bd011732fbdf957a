"""Frequency of checkpoints."""

from dataclasses import dataclass

from fedlit.core.errors import ConfigError

SHARE_OF_TIME = 0.02
"""Largest share of a run's time spent on checkpoints by default."""


@dataclass(frozen=True)
class Cadence:
    """Frequency of an action: every few rounds, every few seconds, or as often as time allows.

    Attributes:
        rounds: Rounds between two times, or None.
        seconds: Seconds between two times, or None; if both are None, as often as costs less than 2% of the time.
    """

    rounds: int | None = None
    seconds: float | None = None

    @classmethod
    def parse(cls, value: int | str) -> "Cadence":
        """Read ``5``, ``60s`` or ``auto``.

        Raises:
            ConfigError: The value is none of these.
        """
        text = str(value)
        if text == "auto":
            return cls()
        number = text.removesuffix("s")
        if number.isdecimal() and int(number) > 0:
            return cls(seconds=float(number)) if text.endswith("s") else cls(rounds=int(number))
        raise ConfigError(
            f"federation.checkpoint_every: expected rounds such as 5, seconds such as 60s, or auto; found {value!r}"
        )
