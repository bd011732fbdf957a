"""The ledger of a site: ``ledger.jsonl`` with one line per message, and the readable summary ``leaves_a_site.txt``.

Each line holds the hash of the one before it. Changing, removing or inserting a line therefore means rewriting all that
follow. The server remembers the last head that it has seen, and so notices a ledger that was restored from an older
copy.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.filesize import decimal

from fedlit.core.errors import ConfigError
from fedlit.core.system import documents
from fedlit.core.system.files import private, sync, whole
from fedlit.sites.messages import REPLY, printable

TEXT, LINES, BEGUN = "leaves_a_site.txt", "ledger.jsonl", "begun.json"

ENDED = "the site's process ended before it answered"

DAY = 86400.0

INTRODUCTION = (
    "What this site has sent, by run and question: number of messages, bytes of arrays, names of the numbers in "
    "the header, and each array with its number of values in the last message. ledger.jsonl has one line per message.\n"
)


@dataclass(frozen=True)
class LedgerEntry:
    """Ledger entry of an answered message."""

    time: float  # Seconds since 1970.
    lead: str = ""  # Name of the lead who asked for the run, if the site knows it.
    # run, verb, client: What was asked.
    run: str = ""
    verb: str = ""
    client: str = ""
    config: str = ""  # SHA-256 of the plan of the run; "" if it is not known.
    question: str = ""  # SHA-256 of the question, including the weights.
    view: str = ""  # The evaluated view, such as `north/val`.
    at: int = 0  # Number of rounds before it.
    # examples, steps: Numbers behind the answer.
    examples: int = 0
    steps: int = 0
    # noise, rate: Noise multiplier of private steps, and the probability of drawing a patient; 0 without noise.
    noise: float = 0.0
    rate: float = 0.0
    answer: str = ""  # `reply` or `failed`.
    refused: str = ""  # Why nothing was done; "" otherwise.
    header: list[str] = field(default_factory=list)  # Names in the header of the answer.
    arrays: dict[str, tuple[str, int]] = field(default_factory=dict)  # Type and number of values of each array.
    nbytes: int = 0  # Bytes of the arrays.
    touched: bool = False  # Whether images were read for it; then it counts even if it failed.

    @property
    def counts(self) -> bool:
        """True for an answer, and for a failure after images were read: that it failed says something about them."""
        return self.answer == REPLY or self.touched

    @property
    def trains(self) -> bool:
        """True for a round or measuring round that counts for the number of rounds."""
        return self.verb in ("train", "measure") and self.counts

    @property
    def evaluates(self) -> bool:
        """True for an evaluation that counts."""
        return self.verb == "evaluate" and self.counts

    @property
    def reads_training(self) -> bool:
        """True if training images are behind the answer."""
        return self.trains or (self.evaluates and self.view.endswith("/train"))


def read_ledger(folder: Path) -> Iterator[tuple[str, LedgerEntry]]:
    """Yield the hash and the entry of each line, without changing the file; an incomplete last line is ignored.

    Raises:
        ConfigError: If a line does not follow from the one before it.
    """
    file, before = folder / LINES, ""
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    for number, line in enumerate((line for line in lines if line.endswith("\n")), 1):
        try:
            held = json.loads(line)
            head = held.pop("head")
            entry = LedgerEntry(**{key: value for key, value in held.items() if key != "phase"})  # of earlier versions
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{file}, line {number}: cannot be read; move the file away, and keep it") from error
        if head != _next(before, held):
            raise ConfigError(
                f"{file}, line {number}: does not follow from the line before it: the file was edited; "
                "move it away, and keep it"
            )
        yield head, entry
        before = head


def _next(before: str, held: dict) -> str:
    text = json.dumps(held, sort_keys=True)
    return hashlib.sha256(f"{before}\n{text}".encode()).hexdigest()


class Ledger:
    """The ledger in a site's folder of states.

    Raises:
        ConfigError: If a line does not follow from the one before it.
    """

    def __init__(self, folder: Path, now: Callable[[], float] = time.time) -> None:
        self.folder, self.now = folder, now
        self.entries: list[LedgerEntry] = []
        self.leads: dict[str, str] = {}  # The lead of each run, who was the first to prepare it.
        self._heads = [""]
        self._sums: dict[str, tuple[int, int, LedgerEntry]] = {}
        self._drop_half_a_line()
        for head, entry in read_ledger(folder):
            self._take(head, entry)
        self.settle()

    @property
    def head(self) -> str:
        """The number of lines and the hash of the last one, such as ``57:9f2a...``; "" if there are none."""
        return self.head_after(len(self.entries))

    def head_after(self, lines: int) -> str:
        """Return the head after a number of lines; "" if there are fewer."""
        return f"{lines}:{self._heads[lines]}" if 0 < lines < len(self._heads) else ""

    def since(self, days: float) -> Iterator[LedgerEntry]:
        """Yield the entries of the last days, also if the clock was set in between."""
        start = self.now() - days * DAY
        return (entry for entry in self.entries if entry.time >= start)

    def count(self, days: float) -> int:
        """Return the number of entries of the last days."""
        return sum(1 for _ in self.since(days))

    def begin(self, entry: LedgerEntry) -> None:
        """Record a message for which images are read next: if the process dies meanwhile, it counts.

        Raises:
            OSError: If it cannot be written.
        """
        private(self.folder)
        with whole(self.folder / BEGUN, durable=True) as draft:
            draft.write_text(json.dumps(asdict(entry)))
            draft.chmod(0o600)

    def settle(self) -> None:
        """Record a message that has read images and has no line: its process died, or the line could not be written.

        Raises:
            OSError: If it cannot be written.
        """
        if (begun := self.folder / BEGUN).exists():
            with suppress(ValueError, TypeError):
                self.note(LedgerEntry(**documents.parse_json(begun.read_text())))

    def note(self, entry: LedgerEntry) -> None:
        """Record a message on disk, before its answer leaves.

        Raises:
            OSError: If it cannot be written.
        """
        held = asdict(entry)
        head = _next(self._heads[-1], held)
        file = self.folder / LINES
        private(self.folder)
        line = json.dumps({**held, "head": head}) + "\n"
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            before = os.fstat(descriptor).st_size
            try:
                if os.write(descriptor, line.encode()) < len(line.encode()):
                    raise OSError("only half of a line was written")
                os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, before)
                raise
        finally:
            os.close(descriptor)
        if not self.entries:
            sync(self.folder)
        if entry.touched:
            (self.folder / BEGUN).unlink(missing_ok=True)
        self._take(head, entry)
        self._write_text()

    def _take(self, head: str, entry: LedgerEntry) -> None:
        self._heads.append(head)
        self.entries.append(entry)
        if entry.verb == "prepare" and entry.answer == REPLY:
            self.leads.setdefault(entry.run, entry.lead)
        key = f"run {entry.run or '(not begun)'}, {entry.verb}: {entry.answer}"
        messages, nbytes, _ = self._sums.get(key, (0, 0, entry))
        self._sums[key] = messages + 1, nbytes + entry.nbytes, entry

    def _drop_half_a_line(self) -> None:
        """Remove the line of a process that died while writing it: its answer has not left."""
        file = self.folder / LINES
        content = file.read_bytes() if file.exists() else b""
        if content and not content.endswith(b"\n"):
            with file.open("r+b") as opened:
                opened.truncate(content.rfind(b"\n") + 1)

    def _write_text(self) -> None:
        lines = [INTRODUCTION]
        for key, (messages, nbytes, last) in self._sums.items():
            arrays = ", ".join(f"{name} [{size:,}]" for name, (_, size) in last.arrays.items()) or "no arrays"
            header = ", ".join(last.header) or "nothing"
            lines.append(
                printable(f"{key}: {messages:,} messages, {decimal(nbytes)}; header: {header}; arrays: {arrays}", 10**6)
            )
        with whole(self.folder / TEXT) as draft:
            draft.write_text("\n".join(lines) + "\n")
            draft.chmod(0o600)
