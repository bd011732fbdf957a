import base64
import re
from html.parser import HTMLParser

import pandas as pd
import pytest

from fedlit.reports.compare.figures import curves_figure, styles, svg
from fedlit.reports.compare.page import Cell, Chart, Facts, Note, Paragraph, Picture, Section, Table, page

EVIL = '<script>alert("x")</script> & co'
VOID = {"meta", "img", "br", "link", "input", "hr"}
METHODS = ["FedAvg", "CODASCA"]


class Tree(HTMLParser):
    """Collects tags, attributes and text; fails where a tag is closed that is not open."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.texts = [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    def of(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())


def figure(name="FedAvg"):
    curves = {name: [pd.Series([0.5, 0.6, 0.7], index=[0, 1, 2])], "CODASCA": [pd.Series([0.5, 0.8], index=[0, 1])]}
    return curves_figure(curves, "round", "AUROC", styles(list(curves)))


@pytest.fixture(scope="module")
def whole():
    looks = styles(METHODS)
    rows = [["Edema", "12", Cell("0.812", strong=True)], ["Mass", "3", "0.700"], ["mean", "", "0.756"]]
    sections = [
        Section("AUROC", [Table(["class", "support", "CODASCA"], rows, "Test set", styles=looks, summary=1)]),
        Section("Curves", [Chart(figure(), "rounds", "By round.", "Two curves"), Chart(figure(), "again", "", "Two")]),
        Section("Curves", [Picture(b"png", "partition", "Who holds what.", "clients by classes")]),
        Section("Keys", [Table(["key", "a"], [["model.lr", "0.1"]], "All keys", texts=(0, 1), folded=True)]),
    ]
    return page("A against B", sections, [Facts([("Seeds", "0, 1, 2")]), Paragraph("One.\n\nTwo.")], "fedlit")


def test_page_is_well_formed_and_reaches_for_nothing(whole):
    tree = Tree(whole)
    assert not tree.of("script")
    assert not tree.of("link")
    references = [a[key] for _, a in tree.tags for key in ("src", "href", "xlink:href", "srcset", "data") if a.get(key)]
    assert references
    assert all(reference.startswith(("#", "data:")) for reference in references)
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", whole))
    assert "@import" not in whole
    assert [a["content"] for a in tree.of("meta") if a.get("http-equiv") == "Content-Security-Policy"] == [
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    ]


def test_ids_are_unique_and_every_reference_has_its_own(whole):
    tree = Tree(whole)
    ids = [attributes["id"] for _, attributes in tree.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = [a["href"][1:] for _, a in tree.tags if a.get("href", "").startswith("#")]
    targets += re.findall(r"url\(#([^)]*)\)", whole)
    assert any(target.startswith("chart-again") for target in targets)
    assert set(targets) <= set(ids)
    contents = [a["href"] for a in tree.of("a") if not a.get("download")]
    assert contents == ["#auroc", "#curves", "#curves-2", "#keys"]


def test_names_are_text_everywhere():
    looks = styles([EVIL])
    blocks = [
        Paragraph(EVIL),
        Note(EVIL, EVIL),
        Facts([(EVIL, EVIL)]),
        Table([EVIL, "a"], [[EVIL, EVIL]], EVIL, styles=looks),
        Table([EVIL, "a"], [[EVIL, EVIL]], EVIL, folded=True),
        Chart(figure(EVIL), EVIL, EVIL, EVIL),
        Picture(b"png", EVIL, EVIL, EVIL),
    ]
    written = page(EVIL, [Section(EVIL, blocks)], footer=EVIL)
    tree = Tree(written)
    assert "<script" not in written
    assert tree.text.count(EVIL) >= 14
    assert tree.of("img")[0]["alt"] == EVIL
    assert EVIL in [a.get("aria-label") for a in tree.of("svg")]


def test_tables_are_read_by_row_and_column(whole):
    tree = Tree(whole)
    heads = tree.of("th")
    assert [a["scope"] for a in heads[:6]] == ["col", "col", "col", "row", "row", "row"]
    assert "class" not in heads[1]
    assert heads[0]["class"] == "text"
    assert whole.count("<tfoot>") == 1
    assert "<strong>0.812</strong>" in whole
    assert whole.count('<svg class="swatch"') == 1
    assert f'stroke="{styles(METHODS)["CODASCA"].colour}"' in whole
    assert "<summary>All keys</summary>" in whole
    with pytest.raises(ValueError, match="Expected 2 cells in each row, as the head has, found 1 in row 0"):
        Table(["a", "b"], [["1"]])


def test_every_style_has_its_own_swatch():
    looks = styles([f"method {number}" for number in range(25)])
    table = Table(["method", "n"], [[name, "1"] for name in looks], styles=looks)
    written = page("t", [Section("s", [table])])
    Tree(written)
    assert len(set(re.findall(r'<svg class="swatch".*?</svg>', written))) == 25


def test_a_chart_is_saved_as_it_was_drawn(whole):
    tree = Tree(whole)
    links = {a["download"]: a["href"] for a in tree.of("a") if a.get("download")}
    assert set(links) == {"rounds.svg", "again.svg", "partition.png"}
    data = links["rounds.svg"].removeprefix("data:image/svg+xml;base64,")
    assert base64.b64decode(data).decode() == svg(figure())
    charts = [a for a in tree.of("svg") if a.get("class") != "swatch"]
    assert [a["aria-label"] for a in charts] == ["Two curves", "Two"]
    assert all(a["role"] == "img" for a in charts)


def test_page_is_equal_every_time():
    written = {page("t", [Section("s", [Chart(figure(), "a", "b", "c")])]) for _ in range(2)}
    assert len(written) == 1
