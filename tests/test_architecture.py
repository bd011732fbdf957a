"""Imports between packages lead one way, and the core names no algorithm."""

import ast
import io
import tokenize
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
from runs import PRELOADED, execute

import fedlit
from fedlit.core.system import processes
from fedlit.experiment import choices, jobs, parser

PACKAGE = Path(fedlit.__file__).parent
CORE = ("fedlit.core", "fedlit.federation")
ABOVE = tuple(
    f"fedlit.{room}"
    for room in ("aggregators", "objectives", "models", "reports", "sites", "experiment", "cli", "predictions",
        "data.phantom",
                 "data.xrays", "data.binary", "data.own", "data.flamby")
)  # fmt: skip


@cache
def modules() -> dict[str, Path]:
    """The file of every module of fedlit, by name."""
    named = {}
    for file in PACKAGE.rglob("*.py"):
        parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
        named[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return named


@cache
def nodes(name: str) -> tuple[ast.AST, ...]:
    """The syntax tree of a module, node by node; to parse all modules takes a second."""
    return tuple(ast.walk(ast.parse(modules()[name].read_text())))


@cache
def imports(name: str) -> frozenset[str]:
    """Modules of fedlit that a module imports anywhere, including inside functions and for types."""
    wanted: set[str] = set()
    for node in nodes(name):
        if isinstance(node, ast.Import):
            wanted |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name}: an import by a relative path"
            for alias in node.names:
                module = f"{node.module}.{alias.name}"
                wanted.add(module if module in modules() else node.module)
    return frozenset(each for each in wanted if each.partition(".")[0] == "fedlit") - {name}


def within(name: str, rooms: tuple[str, ...]) -> bool:
    return any(name == room or name.startswith(f"{room}.") for room in rooms)


def circle() -> list[str]:
    """Modules that import each other in a circle, if there are any."""
    done: set[str] = set()

    def search(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        for other in sorted(imports(name)):
            if other in modules() and (found := search(other, [*path, name])):
                return found
        done.add(name)
        return []

    return next(filter(None, (search(name, []) for name in sorted(modules()))), [])


def test_no_import_leads_in_a_circle():
    assert " -> ".join(circle()) == ""


def rooms_reached() -> dict[str, set[str]]:
    """The packages that each package imports, directly or through others."""
    direct: dict[str, set[str]] = {}
    for name in modules():
        room = name.split(".")[1:2]
        for there in (each.split(".")[1:2] for each in imports(name)):
            if room and there and room != there:
                direct.setdefault(room[0], set()).add(there[0])

    def reached(room: str, seen: set[str]) -> set[str]:
        for there in direct.get(room, set()) - seen:
            seen |= {there} | reached(there, seen | {there})
        return seen

    return {room: reached(room, set()) for room in direct}


def test_no_two_rooms_reach_each_other():
    reached = rooms_reached()
    both = sorted(
        f"{one} and {two}" for one in reached for two in reached[one] if one < two and one in reached.get(two, ())
    )
    assert both == []
    assert {"core", "federation", "experiment"} <= reached["sites"]


def test_core_and_federation_import_no_room_above_them():
    wrong = [f"{m} imports {i}" for m in modules() if within(m, CORE) for i in sorted(imports(m)) if within(i, ABOVE)]
    assert wrong == []


def test_core_imports_nothing_of_the_federation():
    wrong = [f"{m} imports {i}" for m in modules() if within(m, CORE[:1]) for i in imports(m) if within(i, CORE[1:])]
    assert wrong == []


def test_a_clients_round_knows_no_processes_and_no_documents():
    rooms = ("fedlit.core.system", "fedlit.core.checkpoints")
    apart = ("fedlit.core.system.processes", "fedlit.core.system.documents", "fedlit.core.system.typed")
    inside = [name for name in modules() if within(name, CORE[:1]) and not within(name, rooms)]
    assert [f"{m} imports {i}" for m in inside for i in imports(m) if within(i, apart)] == []
    assert len(inside) > 20


def test_nothing_imports_the_command_line():
    outside = [name for name in modules() if not within(name, ("fedlit.cli", "fedlit.__main__"))]
    assert [name for name in outside if any(within(i, ("fedlit.cli",)) for i in imports(name))] == []


def test_what_travels_between_sites_knows_the_core_alone():
    """To review what leaves a site, one reads four files."""
    below = [f"fedlit.sites.{name}" for name in ("envelope", "messages", "transport", "roster")]
    allowed = ("fedlit.core", "fedlit.__init__", *below)
    wrong = [f"{m} imports {i}" for m in below for i in imports(m) if i != "fedlit" and not within(i, allowed)]
    assert wrong == []


def test_nvflare_is_imported_by_three_modules_and_by_them_only_where_they_are_needed():
    """Without sites NVFlare need not be installed, and `fedlit --help` does not wait for it."""
    theirs = {f"fedlit.sites.{name}" for name in ("flare", "follower", "jobs")}
    asked, every = {}, {}
    for name in modules():
        top, *_ = nodes(name)
        asked[name] = {node.module or "" for node in top.body if isinstance(node, ast.ImportFrom)}
        every[name] = {node.name for node in nodes(name) if isinstance(node, ast.alias)}
        every[name] |= {node.module or "" for node in nodes(name) if isinstance(node, ast.ImportFrom)}
    assert {
        name for name, found in every.items() if any(word.partition(".")[0] == "nvflare" for word in found)
    } == theirs
    assert {name for name, found in asked.items() if found & theirs} <= theirs


def test_a_stranger_counts_at_most_18_entries():
    markers = ("__pycache__", "py.typed")  # which hold nothing to read, as stubs do
    entries = [path.name for path in PACKAGE.iterdir() if path.name not in markers and path.suffix != ".pyi"]
    assert len(entries) <= 18, sorted(entries)


def test_the_package_does_not_grow():
    """New code replaces other code; after a removal, lower the number."""
    lines = sum(file.read_text(encoding="utf-8").count("\n") for file in modules().values())
    assert lines <= 53_768, (
        f"fedlit/ has {lines:,} lines, more than 53,768: delete what the new code makes needless (an option nobody "
        "sets, a check that a library does, a helper with one caller), or use a library"
    )


def strings(name: str) -> set[str]:
    """Names of modules of fedlit that a file holds in strings."""
    constants = [n.value for n in nodes(name) if isinstance(n, ast.Constant)]
    words = {value for value in constants if isinstance(value, str) and value.startswith("fedlit.")}
    return {word for word in words if word.replace(".", "").replace("_", "").isalnum()}


def test_modules_that_are_named_in_strings_exist():
    named = [axis.home for axis in choices.AXES.values()] + [*jobs.PRELOADED, *processes.PRELOADED]
    named += [home for homes in parser.DELIBERATE.values() for home in homes if home.startswith("fedlit.")]
    for name in ("fedlit.federation.engines.pool", "fedlit.predictions.serving", "fedlit.cli.rehearsal"):
        named += [word for word in strings(name) if not word.endswith(".")]
    assert len(named) > 12
    assert [name for name in named if find_spec(name.rstrip(".")) is None] == []


def test_a_fork_server_imports_no_mlflow(tmp_path: Path):
    """Only a tracker of MLflow asks for it, which first configures its telemetry."""
    assert {*jobs.PRELOADED, *processes.PRELOADED} <= {*PRELOADED}  # the tests' fork server has imported what theirs do
    asked = execute("import sys; print(*sorted({'timm', 'mlflow'} & {*sys.modules}))", tmp_path)
    assert (asked.wait(), asked.output) == (0, "timm\n")


NEUTRAL = "FedAvg"
"""What an empty list of aggregators is called: the loop itself is federated averaging."""


@cache
def code_words(name: str) -> set[str]:
    """Words of a module outside of its comments and docstrings."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docstrings = {
        statement.lineno
        for node in nodes(name)
        if isinstance(node, documented)
        for statement in node.body
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    }
    tokens = tokenize.generate_tokens(io.StringIO(modules()[name].read_text()).readline)
    kept = [t for t in tokens if t.type in (tokenize.NAME, tokenize.STRING) and t.start[0] not in docstrings]
    return {word for token in kept for word in "".join(c if c.isalnum() else " " for c in token.string).split()}


@pytest.mark.parametrize("axis", ["aggregators", "objectives"])
def test_the_core_names_no_algorithm(axis: str):
    exported = vars(import_module(f"fedlit.{axis}"))
    names = {cls.__name__ for cls in exported.values() if f"fedlit.{axis}" in getattr(cls, "__module__", "")} - {
        NEUTRAL
    }
    named = {m: sorted(names & code_words(m)) for m in modules() if within(m, CORE)}
    assert {m: words for m, words in named.items() if words} == {}


def test_no_call_passes_more_than_six_arguments_by_position():
    many = [
        f"{name}:{node.lineno} {ast.unparse(node.func)}"
        for name in modules()
        for node in nodes(name)
        if isinstance(node, ast.Call) and len(node.args) > 6
    ]
    assert not many
