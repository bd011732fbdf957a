"""`fedlit reproduce`: what the comparison says of made-up runs, and a whole small reproduction."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from refusals import refused
from reproduced import derived, evaluated, printed
from rich.console import Console

from fedlit.core.errors import ConfigError
from fedlit.core.system.layers import patched
from fedlit.core.system.shipped import CONFIGS
from fedlit.reports.reproductions import NAMES, rates, reproduction
from fedlit.reports.reproductions.comparison import compare, markdown
from fedlit.reports.reproductions.document import Rates, find, read_document
from fedlit.reports.reproductions.reproduction import Reproduction
from fedlit.reports.reproductions.seeds import SeedsReport


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
            for _ in range(100)
        ]
        assert sum(compare(table, AGAINST)["claimed"].any() for table in tables) <= 12

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


def small_figure(tmp_path: Path) -> str:
    """Figure 1 on few and small images of PhantomCXR, four local steps."""
    small = {"data.images": 240, "data.image_size": 32, "model.backbone": "resnet10t", "federation.workers": 1}
    part = {"settings": small, "cases": {"{method}-{window}": {"labels": {"window": [2]}, "leave_out": []}}}
    part["body"] = {"settings": small | {"federation.rounds": 1}}
    parts = {"fdam-fig1-cifar10-ih": None, "fdam-fig1-cifar10-iid": None, "fdam-fig1-phantom": part}
    settings = {"federation.schedule.init_args.iterations": 4, "federation.eval_every": 1}
    laptop = {"settings": settings, "parts": parts}
    return derived(tmp_path, "fdam-fig1", scales={"laptop": laptop})


@pytest.mark.slow
def test_a_small_one_runs_is_not_run_again_and_writes_its_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = Reproduction(small_figure(tmp_path), root=tmp_path, seeds=[0, 1], jobs=2)
    assert "4 runs, 0 finished before" in printed(made)
    assert "4 runs, 4 finished before" in printed(made)
    folder = tmp_path / "reproductions" / "fdam-fig1"
    names = {"figure.png", "figure.svg", "runs.csv", "table.csv", "values.csv", "largest-windows.csv", "report.md"}
    assert {p.name for p in folder.iterdir()} == names
    runs = pd.read_csv(folder / "runs.csv")
    assert sorted(map(tuple, runs[["method", "window", "seed"]].to_numpy().tolist())) == sorted(
        (method, 2, seed) for method in ("CODA+", "CODASCA") for seed in (0, 1)
    )
    assert pd.read_csv(folder / "values.csv")["auroc"].between(0, 1).all()
    ours, published = (folder / "report.md").read_text().split("## Published")
    assert "| PhantomCXR, K = 5, CODASCA |" in ours
    assert "Seeds: 0, 1, " in ours
    assert "| 16 | 32 | 128 | 4 |" in published
    assert "PhantomCXR" not in published


@pytest.mark.parametrize(
    ("status", "may_fail", "left"), [("failed", True, 1), ("failed", False, 0), ("stopped", True, 0)]
)
def test_only_runs_that_may_fail_are_left_out(status, may_fail, left, tmp_path, monkeypatch):
    table = pd.DataFrame(
        {"name": name, "case": "", "seed": seed, "status": status, "best_round": 1, "directory": name}
        for seed, (name, status) in enumerate((("a", "finished"), ("b", status)))
    )
    monkeypatch.setattr(reproduction, "run_sweep", lambda *_: table)
    figure = Reproduction("fdam-fig1", root=tmp_path)
    part = replace(figure.parts()[-1], body=None, may_fail=may_fail, cases={})
    if left:
        assert figure._runs(part, Console())["directory"].tolist() == [Path("a")]
    else:
        told = "the end of b/console.log says why" if status == "failed" else "run again"
        with refused(ConfigError, "1 runs", told):
            figure._runs(part, Console())


@pytest.mark.parametrize("scale", ["laptop", "paper"])
@pytest.mark.parametrize("name", ["fdam-fig1", "fdam-fig3", "fdam-fig4"])
@pytest.mark.slow
def test_runs_of_the_figures_are_valid(name, scale, tmp_path, plan_some):
    """Their configuration parses and its classes accept their arguments; nothing is trained."""
    planned = plan_some(Reproduction(name, root=tmp_path, scale=scale, seeds=[0], run_dir=tmp_path))
    for part, runs in planned.items():
        if "body" not in part:
            iterations = 4096 if scale == "laptop" else 20000
            windows = [int(run.case.rpartition("-")[2]) if scale == "laptop" else 32 for run in runs]
            assert [run.rounds for run in runs] == [-(-iterations // window) for window in windows]
            data = [yaml.safe_load(run.config)["data"]["init_args"] for run in runs if "phantom" not in part]
            assert {each["imratio"] for each in data} <= {0.1 if name == "fdam-fig1" else 0.3}


def test_figures_of_the_appendix_share_their_runs_with_others(tmp_path):
    names = ("fdam-fig1", "fdam-fig2", "fdam-fig3", "fdam-fig4")
    first, second, third, fourth = (Reproduction(name, root=tmp_path).parts() for name in names)
    assert second == first[:1]
    assert third == fourth
    assert third[0].experiment not in {part.experiment for part in first}
    own = [part.experiment for name in names for part in Reproduction(name, scale="paper").chosen.parts.values()]
    assert len(set(own)) == 8


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


def test_list_reproductions_says_what_each_takes(fedlit_cli):
    out = fedlit_cli("list reproductions").succeeded()
    lines = out.splitlines()
    heads = [line.split()[0] for line in lines if not line.startswith(" ")]
    assert heads == ["Yuan", "Zhang", "Kulkarni", "Ogier", "Of"]
    assert [line.split()[0] for line in lines if line.startswith("  ") and line[2] != " "] == list(NAMES)
    name, laptop, paper, linked = out[out.index("  fdam-table4") : out.index("  fdam-table5")].splitlines()
    assert name == f"  fdam-table4  {read_document(find('fdam-table4')).shows}"
    assert laptop.startswith("    laptop  PhantomCXR, five hospitals")
    assert laptop.endswith("no --root")
    assert "--root: a folder with CheXpert, NIH, PadChest" in paper
    assert linked.startswith("    linked ")
    assert "    as surgical-fig5" in lines


def test_every_document_is_listed_and_no_name_lacks_one():
    assert {file.stem for file in CONFIGS.glob("*/*.yaml") if "\nscales:" in file.read_text()} == set(NAMES)


def test_every_row_of_every_document_is_of_one_run_a_seed():
    seen = set()
    for name in NAMES:
        document = read_document(find(name))
        for scale, chosen in document.scales.items():
            reproduced = Reproduction(name, scale=scale)
            if chosen.plans:
                continue
            reporter = reproduced._reporter()
            if not isinstance(reporter, SeedsReport):
                continue
            labels = [{"title": p.title} | case.labels for p in chosen.parts.values() for case in p.cases.values()]
            cells = [(reporter.row.format(**each), reporter.column.format(**each)) for each in labels]
            assert len(cells) == len(set(cells)), (name, scale)
            seen.add(name)
    assert {"fdam-fig1", "surgical-sites", "localscgdam-table1"} <= seen


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith(("fdam", "localscgdam"))])
def test_all_windows_of_a_table_are_evaluated_after_the_same_iterations(name):
    for scale in read_document(find(name)).scales:
        made = Reproduction(name, scale=scale)
        for part in (*made.chosen.parts.values(), *made.parts()):
            config = made.document.file(part.config)
            looks = {tuple(evaluated(config, part.settings | case.keys)) for case in part.cases.values()}
            assert len(looks) == 1, (scale, part.experiment, looks)
            assert len(looks.pop()) >= 2


def test_the_test_set_does_not_choose_rates():
    with refused(ConfigError, "rates.metric"):
        Rates("model.optimizer.lr", [0.1], {}, 9, {}, "test/federation/auroc_macro", "")


def test_listing_them_needs_neither_torch_nor_matplotlib():
    code = "import sys; from fedlit.reports.reproductions.listing import list_reproductions; "
    code += "from rich.console import Console; list_reproductions(Console()); "
    code += "print([m for m in ('torch', 'pandas', 'matplotlib', 'mlflow') if m in sys.modules])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.splitlines()[-1] == "[]"


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
        made = SeedsReport(row="{method}", against={"method": "CODA+"}, what="", versus="", within=0.01)
        largest = made._largest(runs, values)
        assert "I_max" in made._largest_text(largest)
        return largest.set_index("method")

    def test_it_is_of_means_over_seeds_and_ends_before_the_first_loss(self):
        by_window = {1: [0.80, 0.84], 8: [0.80, 0.83], 64: [0.78, 0.80], 512: [0.83] * 2}
        largest = self.report({("CODA+", window): values for window, values in by_window.items()})
        assert (largest.loc["CODA+", "window"], largest.loc["CODA+", "harmful"]) == (8, 64)

    def test_a_method_without_the_smallest_window_is_compared_with_the_other_there(self):
        one = {("CODA+", 1): [0.80], ("CODA+", 8): [0.70], ("CODASCA", 8): [0.795], ("CODASCA", 512): [0.792]}
        largest = self.report(one)
        assert largest["window"].to_dict() == {"CODA+": 1, "CODASCA": 512}
        assert pd.isna(largest.loc["CODASCA", "harmful"])


class TestGrid:
    """FDAM's grids: eta, gamma, T0, and eta_g of CODASCA."""

    def test_every_method_has_the_same_number_of_tries_and_settings_of_its_own(self):
        scale = read_document(find("fdam-fig1")).scales["paper"]
        of_coda, of_codasca = (rates.tries(scale.rates, method) for method in ("CODA+", "CODASCA"))
        assert len(of_coda) == len(of_codasca) == 27
        assert "eta_g" not in of_coda[0]
        assert {settings["eta_g"] for settings in of_codasca} == {1.1, 1.0, 0.99, 0.999}
        assert len({tuple(settings.items()) for settings in of_codasca}) == 27
        assert of_codasca == rates.tries(scale.rates, "CODASCA")
        with refused(ConfigError, "rates.tries", "most 27", "CODA+", "found 28"):
            rates.tries(replace(scale.rates, tries=28), "CODA+")

    @pytest.mark.slow
    def test_what_is_tried_reaches_the_algorithm_and_the_schedule(self, tmp_path, plan_some):
        figure = Reproduction("fdam-fig1", root=tmp_path, scale="paper", seeds=[0], run_dir=tmp_path)
        run = plan_some(figure)["fdam-imagenet-ih-10-k16-grid-codasca"][-1]
        federation = yaml.safe_load(run.config)["federation"]
        settings = rates.tries(figure.chosen.rates, "CODASCA")[-1]
        codasca, schedule = federation["aggregators"][0]["init_args"], federation["schedule"]["init_args"]
        assert (codasca["gamma"], codasca["eta_g"]) == (settings["gamma"], settings["eta_g"])
        assert schedule["decay_every"] == settings["T0"]
        assert run.seed == 1000


def test_bodies_have_the_draw_of_their_seed_unless_one_draw_is_kept():
    """A body of another draw has trained on images that a run tests."""
    part = Reproduction("fdam-table3").parts()[0]
    seeds = {}
    for name, given in (("own", {}), ("one", {"data.seed": 0})):
        reproduction = Reproduction("fdam-table3", seeds=[0, 4], set=given)
        body = reproduction._body(replace(part, seeds=None))
        seeds[name] = reproduction.sweep(body).seeds
    assert seeds == {"own": [0, 4], "one": [0]}
    starts = {0: Path("a"), 4: Path("b")}
    sweep = Reproduction("fdam-table3", seeds=[0, 4]).sweep(replace(part, seeds=None), starts)
    assert {seed: Path(start).name for seed, start in sweep.weights.items()} == {0: "a", 4: "b"}
