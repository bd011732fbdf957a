"""Readable reports of a site's ledger: a table by run and question, and a file with one row per message."""

import csv
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.filesize import decimal

from fedlit.core.system.files import inert, whole
from fedlit.reports.table import Table
from fedlit.sites.ledger import LINES, LedgerEntry
from fedlit.sites.messages import printable

if TYPE_CHECKING:
    from fedlit.sites.budget import PrivacyRule

COLUMNS = (
    "time", "lead", "run", "verb", "client", "view", "at", "examples", "steps", "noise", "rate", "answer", "refused",
    "bytes", "arrays", "header", "config", "question", "hash",
)  # fmt: skip


@dataclass
class Asked:
    """Summary of the messages with the same question in a run."""

    # first, last: Times in seconds since 1970.
    first: float
    last: float
    messages: int = 0  # Number of answered messages.
    refused: int = 0  # Number of those that were refused or failed.
    examples: int = 0  # Largest number of examples behind one answer.
    nbytes: int = 0  # Bytes of all arrays that have left.
    # noise, rate: Those of the last private steps; 0 without noise.
    noise: float = 0.0
    rate: float = 0.0


def report(
    lines: Sequence[tuple[str, LedgerEntry]], folder: Path, console: Console, rule: "PrivacyRule | None" = None
) -> None:
    """Print who asked for what, when, how often, over how many examples, how many bytes have left, and epsilon."""
    if not lines:
        console.print(f"{folder / LINES}: no message was answered yet, and nothing has left")
        return
    rows = []
    for (run, lead, what), asked in summed(lines).items():
        times = (_day(asked.first), _day(asked.last))
        numbers = (f"{asked.messages:,}", f"{asked.refused:,}", f"{asked.examples:,}", decimal(asked.nbytes))
        steps = (f"{asked.noise:.4g}", f"{asked.rate:.3g}") if asked.noise else ("-", "-")
        rows.append((run[:8] or "-", lead or "not known", what, *times, *numbers, *steps * (rule is not None)))
    names = ("run", "asked for by", "what", "first (UTC)", "last (UTC)")
    numbers = ("messages", "refused", "examples", "sent", *("noise", "rate") * (rule is not None))
    console.print(Table("", names, numbers, rows).printed("narrow"))
    total = decimal(sum(entry.nbytes for _, entry in lines))
    console.print(
        f"{len(lines):,} messages, {total}; {folder / LINES} is complete; its last hash is {lines[-1][0][:16]}"
    )
    if rule is not None:
        spent = rule.spent(rule.recent((entry for _, entry in lines), time.time()))
        console.print(f"{spent:.2f} of {rule} is spent, over all runs and clients; a repeated question counts once")
    console.print("examples: the largest number behind one answer; leaves_a_site.txt and --csv list the arrays")


def summed(lines: Sequence[tuple[str, LedgerEntry]]) -> dict[tuple[str, str, str], Asked]:
    """Return what was asked by run, lead and question, in the order in which it began."""
    summaries: dict[tuple[str, str, str], Asked] = {}
    for _, entry in lines:
        what = " ".join(printable(part) for part in (entry.verb, entry.view or entry.client) if part)
        asked = summaries.setdefault((printable(entry.run), printable(entry.lead), what), Asked(entry.time, entry.time))
        asked.last = max(asked.last, entry.time)
        asked.messages += 1
        asked.refused += bool(entry.refused) or entry.answer == "failed"
        asked.examples = max(asked.examples, entry.examples)
        asked.nbytes += entry.nbytes
        asked.noise, asked.rate = (entry.noise, entry.rate) if entry.noise else (asked.noise, asked.rate)
    return summaries


def write_csv(lines: Sequence[tuple[str, LedgerEntry]], file: Path) -> None:
    """Write one row per message, with the hash of its line in the ledger."""
    with whole(file) as draft, draft.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.writer(opened)
        writer.writerow(COLUMNS)
        for head, entry in lines:
            when = datetime.fromtimestamp(entry.time, timezone.utc).isoformat(timespec="seconds")
            held = vars(entry) | {"time": when, "bytes": entry.nbytes, "hash": head, "header": " ".join(entry.header)}
            held["arrays"] = " ".join(f"{name}[{size}]" for name, (_, size) in entry.arrays.items())
            writer.writerow([inert(held[column]) for column in COLUMNS])


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M")
