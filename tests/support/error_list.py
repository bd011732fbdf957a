"""The list of fedlit's errors in ``tests/errors.md``; ``python tests/support/error_list.py`` writes it again."""

import ast
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILE = ROOT / "tests" / "errors.md"
HEAD = """# The errors of fedlit

Each mistake has one key, one class and one text; braces hold what differs. This file is written by
`python tests/support/error_list.py`, so that a change of a text is seen in a review.
"""


@dataclass(frozen=True)
class Entry:
    """One place where fedlit makes an error; ``key`` is None if it has none, and "" if it passes one on."""

    key: str | None
    kind: str
    text: str
    place: str


def error_classes(trees: dict[str, ast.Module]) -> set[str]:
    """Return the names of ``FedlitError`` and of all classes that derive from it."""
    bases = {
        node.name: {ast.unparse(base) for base in node.bases}
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    names = {"FedlitError"}
    while more := {name for name, of in bases.items() if of & names} - names:
        names |= more
    return names


@cache
def entries() -> list[Entry]:
    """Return all errors that fedlit makes on purpose, in the order of its files."""
    trees = {str(file.relative_to(ROOT)): ast.parse(file.read_text()) for file in sorted(ROOT.glob("fedlit/**/*.py"))}
    classes = error_classes(trees)
    return [entry for name, tree in trees.items() for entry in _of_file(name, tree, classes)]


def _of_file(name: str, tree: ast.Module, classes: set[str]) -> Iterator[Entry]:
    raised = {node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and any("Examination[" in ast.unparse(base) for base in node.bases):
            values = {ast.unparse(each.targets[0]): each.value for each in node.body if isinstance(each, ast.Assign)}
            key = f"check-{ast.literal_eval(values['name']).replace(' ', '-')}"
            yield Entry(key, "ConfigError", "... " + _text(values["advice"]), f"{name}:{node.lineno}")
        if not isinstance(node, ast.Call):
            continue
        kind, given = ast.unparse(node.func), {each.arg: each.value for each in node.keywords}
        kind = "ConfigError" if kind == "KeyedProblem" else kind
        if kind == "check_number":
            (where, number, allowed), advice = map(_text, node.args), _text(given.get("advice", ast.Constant("")))
            text = f"{where}: expected a number in {allowed}, found {number}{advice}"
            error = ast.unparse(given.get("error", ast.Name("ConfigError")))
            yield Entry(_key(given["key"]), error, text, f"{name}:{node.lineno}")
        if kind in classes or (node in raised and "key" in given):
            text = _text(node.args[0]) if node.args else ""
            yield Entry(_key(given.get("key")), kind, text, f"{name}:{node.lineno}")


def _key(given: ast.expr | None) -> str | None:
    if isinstance(given, ast.Call) and ast.unparse(given.func) == "key_of":
        given = given.args[1]
    if isinstance(given, ast.BoolOp):
        given = given.values[-1]
    if isinstance(given, ast.Constant):
        return given.value
    return "" if isinstance(given, ast.Attribute | ast.Name) and ast.unparse(given).split(".")[-1] == "key" else None


def _text(node: ast.expr) -> str:
    """Return a text with placeholders in the place of what is computed."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(map(_text, parts))
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _text(left) + _text(right)
        case ast.FormattedValue(value=inner):
            return _text(inner)
    simple = not any(isinstance(each, ast.Constant | ast.JoinedStr | ast.IfExp) for each in ast.walk(node))
    return f"{{{ast.unparse(node) if simple else '...'}}}"


def listed() -> str:
    """Return the content of ``tests/errors.md``."""
    lines, folder = [HEAD], ""
    for entry in sorted(filter(lambda each: each.key, entries()), key=lambda each: (_folder(each), each.key)):
        if _folder(entry) != folder:
            folder = _folder(entry)
            lines.append(f"## {folder}\n")
        text = textwrap.fill(" ".join(entry.text.split()), 116, initial_indent="  ", subsequent_indent="  ")
        lines.append(f"- `{entry.key}` ({entry.kind})\n{text}")
    return "\n".join(lines) + "\n"


def _folder(entry: Entry) -> str:
    parts = entry.place.split("/")[1:-1]
    return parts[0] if parts else "fedlit"


if __name__ == "__main__":
    FILE.write_text(listed())
