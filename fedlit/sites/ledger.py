"""What a site has really sent, kept at the site: ``leaves_a_site.txt`` for people, ``leaves_a_site.json`` for the site."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.filesize import decimal

from fedlit.core.files import whole
from fedlit.sites.envelope import Envelope
from fedlit.sites.messages import REPLY

TEXT, COUNTS = "leaves_a_site.txt", "leaves_a_site.json"

INTRODUCTION = (
    "What this site has sent, by run, phase and what was asked: number of messages, bytes of arrays, names of the numbers in the "
    "header, and each array with its number of values in the last message.\n"
)


@dataclass
class Entry:
    """Messages of one kind.

    Attributes:
        messages: How many.
        nbytes: Bytes of the arrays of all of them.
        header: Names of what the last one's header holds.
        arrays: The last one's arrays, with their numbers of values.
    """

    messages: int = 0
    nbytes: int = 0
    header: list[str] = field(default_factory=list)
    arrays: dict[str, int] = field(default_factory=dict)


class Ledger:
    """Count what leaves; it outlives the site's process.

    Args:
        folder: The site's folder of states.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._entries: dict[str, Entry] = {}
        self._rounds: dict[str, int] = {}
        try:
            held = json.loads((folder / COUNTS).read_text())
            self._entries = {key: Entry(**entry) for key, entry in held["sent"].items()}
            self._rounds = held["rounds"]
        except FileNotFoundError:
            pass
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{folder / COUNTS} cannot be read ({error}); move it away, and keep it") from error

    def trained(self, run: str, client: str) -> int:
        """Count the rounds of a run for which a client has trained, those that were repeated included."""
        return self._rounds.get(f"{run} {client}", 0)

    def note(self, run: str, phase: str, verb: str, client: str, sent: Envelope) -> None:
        """Write down a message before it leaves."""
        key = f"run {run or '(not begun)'}, {f'phase {phase!r}' if phase else 'main part'}, {verb}: {sent.verb}"
        entry = self._entries.setdefault(key, Entry())
        entry.messages, entry.nbytes = entry.messages + 1, entry.nbytes + sent.nbytes
        entry.header = sorted(_names(sent.content))
        entry.arrays = {name: vector.size for name, vector in sent.vectors.items()}
        if verb == "train" and sent.verb == REPLY:
            self._rounds[f"{run} {client}"] = self.trained(run, client) + 1
        self._write()

    def _write(self) -> None:
        told = {"sent": {key: asdict(entry) for key, entry in self._entries.items()}, "rounds": self._rounds}
        with whole(self.folder / COUNTS) as draft:
            draft.write_text(json.dumps(told, indent=1))
        lines = [INTRODUCTION]
        for key, entry in self._entries.items():
            arrays = ", ".join(f"{name} [{size:,}]" for name, size in entry.arrays.items()) or "no arrays"
            lines.append(
                f"{key}: {entry.messages:,} messages, {decimal(entry.nbytes)}; header: {', '.join(entry.header) or 'nothing'}; "
                f"arrays: {arrays}"
            )
        with whole(self.folder / TEXT) as draft:
            draft.write_text("\n".join(lines) + "\n")


def _names(content: dict) -> list[str]:
    """Names in a header, those of inner objects included."""
    inner = [f"{key}.{name}" for key, value in content.items() if isinstance(value, dict) for name in value]
    return [key for key, value in content.items() if not isinstance(value, dict)] + inner
