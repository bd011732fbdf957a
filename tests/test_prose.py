"""The words of documents, docstrings, comments and messages: plain English, and lines of at most 120 columns."""

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_architecture import modules, nodes

ROOT = Path(__file__).parent.parent
FIRST = ("What", "Who", "Whether", "Within", "Of", "Where", "How", "Say", "Tell", "Give", "That", "Which")
"""Words with which no docstring of a public name begins."""

TICS = re.compile(
    r"\b(anew|whoever|somebody|of one's own|beside|is none of the|(is|was|are) told|mend(s|ed)?|linked code|"
    r"person at the keyboard)\b"
)
"""Turns of phrase that have a plainer one."""

TABLE = re.compile(r"^\s*\||https?://|\]\([^)]*\)|^!\[|^\s{4,}|^[-\w.]+:? .*[\[{]")


def tracked(pattern: str) -> list[Path]:
    """Files of the repository that match."""
    listed = subprocess.run(["git", "ls-files", pattern], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in listed.stdout.split() if (ROOT / name).exists()]


def docstrings() -> Iterator[tuple[str, ast.Module | ast.ClassDef | ast.FunctionDef, str]]:
    """Place, node and docstring of fedlit's modules, classes and functions."""
    for module, file in modules().items():
        for node in nodes(module):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
                yield f"{module}: {getattr(node, 'name', file.stem)}", node, text


def words(file: Path) -> Iterator[tuple[int, str]]:
    """Lines of prose with their numbers: comments and strings of Python, everything of Markdown."""
    if file.suffix == ".md":
        yield from enumerate(file.read_text().splitlines(), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(file.read_text()).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING) or tokenize.tok_name[token.type] == "FSTRING_MIDDLE":
            for offset, line in enumerate(token.string.splitlines()):
                yield token.start[0] + offset, line


def test_docstrings_begin_with_what_they_describe():
    found = [
        f"{place}: {text.split(chr(10))[0]}"
        for place, _, text in docstrings()
        if ": _" not in place and text.split(maxsplit=1)[0].rstrip(",:") in FIRST
    ]
    assert not found, "\n".join(found)


def test_docstrings_that_begin_with_return_are_of_functions_that_return_something():
    found = [
        place
        for place, node, text in docstrings()
        if isinstance(node, ast.FunctionDef)
        and text.startswith("Return")
        and ast.unparse(node.returns or ast.Name("unknown")) == "None"
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("pattern", ["fedlit/*.py", "*.md"])
def test_plain_words_in_place_of_odd_ones(pattern: str):
    found = [
        f"{file.relative_to(ROOT)}:{number}: {tic.group()!r} in {line.strip()}"
        for file in tracked(pattern)
        if TICS.search(file.read_text())  # else there is no need to tell prose from code
        for number, line in words(file)
        if (tic := TICS.search(line))
    ]
    assert not found, "\n".join(found)


def test_lines_of_documents_fit_into_120_columns():
    found = []
    for file in tracked("*.md"):
        code = False
        for number, line in enumerate(file.read_text().splitlines(), 1):
            code ^= line.startswith("```")
            if len(line) > 120 and not code and not TABLE.search(line):
                found.append(f"{file.relative_to(ROOT)}:{number}")
    assert not found, "\n".join(found)
