"""Hook of MkDocs: collects the manuals where they lie, so that their links hold in the site as on GitHub.

A page has the path of its file in the repository. A notebook, and a file of code to which a manual links, is a page
too; its path ends in ``.md`` in addition.
"""

import json
import re
from inspect import isclass, ismodule
from pathlib import Path
from pkgutil import resolve_name
from types import GenericAlias

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
MANUALS = ("*.md", "docs/*.md", "configs/**/*.md", "fedlit/*/*.md", "tests/benchmarks/*.md")
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#]+)")
REFERENCE = {
    "fit": ["fedlit.fit"],
    "aggregators": ["fedlit.aggregators"],
    "objectives": ["fedlit.core.objective.Objective", "fedlit.objectives"],
    "models": ["fedlit.models"],
    "data": ["fedlit.data"],
    "schedules": ["fedlit.core.schedule.Schedule", "fedlit.core.schedule.Plan", "fedlit.schedules"],
    "participation": ["fedlit.federation.participation"],
    "callbacks": ["fedlit.federation.callbacks.Callback", "fedlit.federation.callbacks.FitState"],
    "metrics": [
        "fedlit.metrics.auroc.class_auroc", "fedlit.metrics.auroc.grouped_auroc", "fedlit.metrics.intervals.bootstrap",
        "fedlit.metrics.claim.holm",
    ],
    "testing": ["fedlit.testing.check_aggregator", "fedlit.testing.check_module", "fedlit.testing.check_data_module"],
    "errors": ["fedlit.core.errors"],
}  # fmt: skip
"""Pages of the reference, and what they describe: objects, or modules with all of their public classes."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Return the manuals, the files to which they link, the reference, and the files of the theme."""
    site = Files([file for file in files if not file.src_dir or Path(file.src_dir) != Path(config.docs_dir)])
    manuals = {file for pattern in MANUALS for file in ROOT.glob(pattern)} | set(ROOT.glob("docs/*.ipynb"))
    texts = {file: text(file) for file in sorted(manuals)}
    linked = {(file.parent / link).resolve() for file, content in texts.items() for link in LINK.findall(content)}
    for file, content in texts.items():
        add(site, config, file, content)
    for file in sorted(file for file in linked - manuals if file.is_file()):
        if file.suffix in (".png", ".svg"):
            site.append(File(str(file.relative_to(ROOT)), str(ROOT), config.site_dir, config.use_directory_urls))
        else:
            add(site, config, file, f"# {file.name}\n\n````{file.suffix[1:]}\n{file.read_text()}\n````\n")
    for page, names in REFERENCE.items():
        described = "\n\n".join(directive(name) for place in names for name in public(place))
        site.append(File.generated(config, f"reference/{page}.md", content=f"# {page.capitalize()}\n\n{described}\n"))
    return site


def on_page_markdown(markdown: str, page: Page, files: Files, **_: object) -> str:
    """Return a page whose links to notebooks and code lead to the pages of these."""
    folder = (ROOT / page.file.src_uri).parent

    def led(link: re.Match) -> str:
        target = (folder / link[1]).resolve()
        known = target.is_relative_to(ROOT) and files.get_file_from_path(f"{target.relative_to(ROOT)}.md")
        return f"{link[0]}.md" if known else link[0]

    return LINK.sub(led, markdown)


def on_page_content(html: str, **_: object) -> str:
    """Return the HTML of a page without the roles of docstrings, such as the first word of ``:meth:`reduce```."""
    return re.sub(r":(?:attr|class|data|func|meth|mod):(?=<code>)", "", html)


def add(site: Files, config: MkDocsConfig, file: Path, content: str) -> None:
    """Add a page with the path of its file."""
    path = str(file.relative_to(ROOT))
    page = File.generated(config, path if file.suffix == ".md" else f"{path}.md", content=content)
    if file.suffix not in (".md", ".ipynb"):
        page.inclusion = InclusionLevel.NOT_IN_NAV
    site.append(page)


def text(file: Path) -> str:
    """Return a manual, or the cells of a notebook, as Markdown."""
    if file.suffix == ".md":
        return file.read_text(encoding="utf-8")
    cells = ((cell["cell_type"], "".join(cell["source"])) for cell in json.loads(file.read_text())["cells"])
    return "\n\n".join(source if kind == "markdown" else f"````python\n{source}\n````" for kind, source in cells)


def public(place: str) -> list[str]:
    """Return the names of an object, or of the public classes of a module, by which a user imports them."""
    found = resolve_name(place)
    if not ismodule(found):
        return [place]
    own = [name for name, value in vars(found).items() if isclass(value) and value.__module__ == place]
    names = getattr(found, "__all__", own)
    described = [name for name in names if not isinstance(getattr(found, name), GenericAlias)]  # no alias of a type
    return [f"{place}.{name}" for name in described if not name.startswith("_")]


def directive(name: str) -> str:
    """Return the line of mkdocstrings that describes an object, which may be defined elsewhere."""
    found = resolve_name(name)
    return f"::: {found.__module__}.{found.__qualname__}\n    options: {{heading: {name}, toc_label: {found.__name__}}}"
