"""`fedlit reproduce`: what the comparison says of made-up runs, and a whole small reproduction."""

import re
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from refusals import refused
from reproduced import derived, evaluated, load_plan, shipped_plans, stages_of

from fedlit.core.errors import ConfigError
from fedlit.core.system import documents
from fedlit.core.system.shipped import CONFIGS, patched
from fedlit.experiment.grid import combinations_of
from fedlit.experiment.plan import layered
from fedlit.reports.reproductions import NAMES
from fedlit.reports.reproductions.means import compare, largest_windows, markdown
from fedlit.reports.reproductions.reproduction import Reproduction


def made_up(reference: list[float], method: list[float], column: str = "I = 64") -> pd.DataFrame:
    return pd.DataFrame(
        {"row": row, "column": column, "seed": seed, "auroc": value}
        for row, values in (("CODA+", reference), ("CODASCA", method))
        for seed, value in enumerate(values)
    )


AGAINST = {"CODASCA": "CODA+"}
CLAIMS = {
    "clear": ([0.70, 0.71, 0.72], [0.72, 0.733, 0.741], True),
    "the other way": ([0.72, 0.733, 0.741], [0.70, 0.71, 0.72], True),
    "small but clear": ([0.700, 0.710, 0.720], [0.704, 0.7145, 0.7241], True),
    "no spread": ([0.70, 0.71, 0.72], [0.72, 0.73, 0.74], False),
    "one seed against it": ([0.70, 0.71, 0.80], [0.75, 0.76, 0.79], False),
    "its own spread": ([0.70, 0.70, 0.70], [0.701, 0.701, 0.80], False),
    "one sign, interval has zero": ([0.70, 0.70, 0.70], [0.71, 0.72, 0.73], False),
    "the same with five seeds": ([0.70] * 5, [0.71, 0.72, 0.73, 0.71, 0.73], True),
    "one seed": ([0.70], [0.80], False),
}


class TestComparison:
    def test_differences_are_paired_by_seed(self):
        values = made_up([0.70, 0.80, 0.90], [0.72, 0.83, 0.91])
        table = compare(values.sample(frac=1, random_state=0), AGAINST).set_index("row")
        reference, row = table.loc[["CODA+", "CODASCA"]].itertuples()
        assert row.difference == pytest.approx(0.02)
        assert row.difference_std == pytest.approx(0.01)
        # Student's 97.5% point with two degrees of freedom
        assert row.within == pytest.approx(4.3027 * 0.01 / 3**0.5, rel=1e-4)
        assert reference.std == pytest.approx(0.1)
        assert reference.difference != reference.difference
        assert not reference.claimed

    @pytest.mark.parametrize(("reference", "method", "claimed"), CLAIMS.values(), ids=CLAIMS)
    def test_nothing_is_claimed_within_the_noise(self, reference, method, claimed):
        assert compare(made_up(reference, method), AGAINST)["claimed"].tolist() == [False, claimed]

    def test_claims_are_corrected_for_all_cells_of_the_table(self):
        clear = made_up([0.70, 0.71, 0.72], [0.72, 0.733, 0.741])  # p = 0.0022
        others = [made_up([0.70, 0.72, 0.71], [0.71, 0.70, 0.72], f"I = {window}") for window in range(30)]
        for number, claimed in ((10, True), (30, False)):
            table = compare(pd.concat([clear, *others[:number]]), AGAINST)
            assert table["claimed"].tolist() == [False, claimed] + [False] * 2 * number

    def test_few_null_tables_have_a_bold_cell(self):
        rng = np.random.default_rng(0)
        tables = [
            pd.concat([made_up(*rng.normal(0.8, 0.02, (2, 5)), f"I = {window}") for window in range(16)])
            for _ in range(20)
        ]
        assert sum(compare(table, AGAINST)["claimed"].any() for table in tables) <= 3

    def test_a_row_and_column_each_in_order(self):
        values = pd.concat([made_up([0.7, 0.7], [0.8, 0.802], f"I = {w}") for w in (8, 512)])
        text = markdown(compare(values, AGAINST), "Test AUROC", "CODA+")
        assert text.splitlines()[0] == "|  | I = 8 | I = 512 |"
        assert "| CODASCA | 0.8010 ± 0.0014 (**+0.1010 ± 0.0127**) | 0.8010 ± 0.0014 (**+0.1010 ± 0.0127**) |" in text
        assert "over 2 seeds" in text
        assert "correction for 2 differences" in text

    def test_one_seed_has_no_spread_and_an_undefined_value_no_mean(self):
        text = markdown(compare(made_up([0.7], [float("nan")]), AGAINST), "Test AUROC", "CODA+")
        assert "| CODA+ | 0.7000 |" in text
        assert "| CODASCA | - |" in text
        assert "one seed, which does not show the noise" in text


@pytest.mark.parametrize(
    ("words", "mistake"),
    [
        ("fdam-fig1", ("--root",)),
        ("fdam-fig1 --root nowhere", ("--root nowhere", "CIFAR-10")),
        ("surgical-tables --root .", ("--root", "laptop")),
        ("fdam-tabel4", ("'fdam-tabel4'", "did you mean fdam-table4")),
        ("mine", ("'mine'", "fdam-fig1, ")),
        ("none.yaml", ("none.yaml",)),
    ],
)
def test_mistakes_are_told(words, mistake, folder, fedlit_cli):
    fedlit_cli(f"reproduce {words}").refused(*mistake)
    assert not list(folder.iterdir())


def test_list_reproductions_has_each_name_below_its_paper(fedlit_cli):
    out = fedlit_cli("list reproductions").succeeded()
    lines = out.splitlines()
    heads = [line.split()[0] for line in lines if not line.startswith(" ")]
    assert heads == ["Yuan", "Zhang", "Kulkarni", "Ogier", "Of"]
    assert [line.split()[0] for line in lines if line.startswith("  ") and line[2] != " "] == list(NAMES)


def test_every_document_is_listed_and_no_name_lacks_one():
    documents = [file for file in CONFIGS.glob("*/*.yaml") if re.search("^(scales|base):", file.read_text(), re.M)]
    assert {file.stem for file in documents} == set(NAMES)


@pytest.mark.parametrize("paper", ["fdam", "scgdam"])
def test_all_windows_of_a_table_are_evaluated_after_the_same_iterations(paper):
    seen = set()  # of two plans with the same windows, rates and evaluations one is enough
    for file in (each for each in shipped_plans() if each.parents[1].name == paper):
        written = layered(file)
        of_set = {key: value for key, value in written.get("set", {}).items() if key.startswith("federation.")}
        in_config = documents.load(file.parent / written["config"][0])["federation"]
        keys = in_config, of_set, [written.get(key) for key in ("cases", "grid", "ranges", "rule", "tries")]
        if repr(keys) in seen:
            continue
        seen.add(repr(keys))
        whole = replace(load_plan(file), root=Path("ROOT"), starts=None)
        looks = defaultdict(set)
        for stage, planned in stages_of(whole):
            looks[stage] |= {tuple(evaluated(Path(whole.config[0]), e.settings)) for e in combinations_of(planned)}
        for at in looks.values():
            assert len(at) == 1, (file, at)
            assert len(at.pop()) >= 2


class TestDocument:
    def test_a_patch_changes_keys_adds_them_and_removes_them(self):
        base = {"a": {"b": 1, "c": [1, 2]}, "d": 4}
        assert patched(base, {"a": {"c": [3], "e": None}, "d": None}) == {"a": {"b": 1, "c": [3], "e": None}}

    def test_a_mistake_of_the_base_names_the_base(self, tmp_path):
        base = derived(tmp_path, "fdam-fig1", report={"colum": "x"})
        (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"base": base, "shows": "mine"}))
        with refused(ConfigError, f"{base}: report.colum", "mean column"):
            Reproduction(str(tmp_path / "mine.yaml"))


class TestLargestWindow:
    """I_max: the largest window that, with all smaller ones, loses little against the smallest."""

    def report(self, aurocs: dict[tuple[str, int], list[float]]) -> pd.DataFrame:
        keys = [(method, window, seed) for (method, window), each in aurocs.items() for seed in range(len(each))]
        runs = pd.DataFrame(keys, columns=["method", "window", "seed"]).assign(title="one")
        values = pd.DataFrame({"auroc": [value for each in aurocs.values() for value in each]})
        return largest_windows(runs.join(values), "window", 0.01).set_index("method")

    def test_it_is_of_means_over_seeds_and_ends_before_the_first_loss(self):
        by_window = {1: [0.80, 0.84], 8: [0.80, 0.83], 64: [0.78, 0.80], 512: [0.83] * 2}
        largest = self.report({("CODA+", window): values for window, values in by_window.items()})
        assert (largest.loc["CODA+", "window"], largest.loc["CODA+", "harmful"]) == (8, 64)

    def test_a_method_without_the_smallest_window_is_compared_with_the_other_there(self):
        one = {("CODA+", 1): [0.80], ("CODA+", 8): [0.70], ("CODASCA", 8): [0.795], ("CODASCA", 512): [0.792]}
        largest = self.report(one)
        assert largest["window"].to_dict() == {"CODA+": 1, "CODASCA": 512}
        assert pd.isna(largest.loc["CODASCA", "harmful"])
