"""Edits of files by which tests damage a small data set."""

from pathlib import Path


def replace_in(path: Path, old: str, new: str) -> None:
    """Replace the first occurrence of a text, which must be in the file."""
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
