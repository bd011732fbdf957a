"""`fedlit reproduce`: what the comparison says of made-up runs, and a whole small reproduction."""

import pandas as pd
import pytest
from rich.console import Console

from fedlit.cli import main
from fedlit.errors import ConfigError
from fedlit.grid import plan
from fedlit.reports.reproductions import REPRODUCTIONS, fdam_fig1
from fedlit.reports.reproductions.fdam_fig1 import LAPTOP, PAPER, FDAMFigure1, Part, compare, markdown


def made_up(codaplus: list[float], codasca: list[float], window: int = 64) -> pd.DataFrame:
    return pd.DataFrame(
        {"part": "p", "arm": arm, "window": window, "seed": seed, "test_auroc": value}
        for arm, values in (("codaplus", codaplus), ("codasca", codasca))
        for seed, value in enumerate(values)
    )


class TestComparison:
    def test_differences_are_paired_by_seed(self):
        row = compare(made_up([0.70, 0.80, 0.90], [0.72, 0.83, 0.91])).iloc[0]
        assert row["difference_mean"] == pytest.approx(0.02)
        assert row["difference_std"] == pytest.approx(0.01)
        assert row["codaplus_std"] == pytest.approx(0.1)

    @pytest.mark.parametrize(
        ("codaplus", "codasca", "claim"),
        [
            ([0.70, 0.71, 0.72], [0.72, 0.73, 0.74], "CODASCA"),
            ([0.72, 0.73, 0.74], [0.70, 0.71, 0.72], "CODA+"),
            ([0.700, 0.710, 0.720], [0.709, 0.719, 0.729], "none"),
            ([0.70, 0.71, 0.80], [0.75, 0.76, 0.79], "none"),
        ],
        ids=["a point", "the other way", "below a point", "one seed against it"],
    )
    def test_nothing_is_claimed_below_a_point_or_against_a_seed(self, codaplus, codasca, claim):
        assert compare(made_up(codaplus, codasca)).iloc[0]["claim"] == claim

    def test_one_row_a_window_in_order(self):
        runs = pd.concat([made_up([0.7, 0.7], [0.8, 0.8], w) for w in (8, 512)])
        table = compare(runs)
        assert table["window"].tolist() == [8, 512]
        text = markdown(table, {"p": "A federation"})
        assert "| A federation | 512 | 0.7000 ± 0.0000 | 0.8000 ± 0.0000 | +0.1000 ± 0.0000 | CODASCA |" in text
        assert "over 2 seeds" in text


def test_a_small_one_runs_is_not_run_again_and_writes_its_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = {"data.images": 240, "data.image_size": 32, "model.backbone": "resnet10t", "federation.workers": 1}
    part = Part("phantom", "Phantoms", "phantom.yaml", (2, 4), 8, 2, "phantom_body.yaml", small, needs_root=False)
    monkeypatch.setattr(fdam_fig1, "LAPTOP", (part,))
    monkeypatch.setattr(fdam_fig1, "_only_root", lambda settings: small | {"federation.rounds": 1})
    with (tmp_path / "said.txt").open("w") as said:
        for _ in range(2):
            FDAMFigure1(seeds=[0, 1], jobs=2).run(Console(file=said, width=200))
    said = (tmp_path / "said.txt").read_text()
    assert "8 runs, 0 finished before" in said
    assert "8 runs, 8 finished before" in said
    folder = tmp_path / "reproductions" / "fdam-fig1"
    assert {p.name for p in folder.iterdir()} == {"figure.png", "runs.csv", "table.csv", "table.md"}
    runs = pd.read_csv(folder / "runs.csv")
    assert sorted(map(tuple, runs[["arm", "window", "seed"]].to_numpy().tolist())) == sorted(
        (arm, window, seed) for arm in ("codaplus", "codasca") for window in (2, 4) for seed in (0, 1)
    )
    assert runs["test_auroc"].between(0, 1).all()


def test_parts_of_both_scales_are_valid_runs(tmp_path):
    """Every run of every part parses and its classes accept their arguments; nothing is trained."""
    for part in (*LAPTOP, *PAPER):
        settings = part.settings | ({"data.root": str(tmp_path)} if part.needs_root else {})
        cases = {f"{arm}-{w}": fdam_fig1._case(part, arm, w) for w in part.windows[-1:] for arm in fdam_fig1.ARMS}
        sweep = FDAMFigure1(run_dir=tmp_path)._sweep("s", part.config, settings, cases, [0])
        assert [run.rounds for run in plan(sweep)] == [-(-part.iterations // part.windows[-1])] * 2


def test_mistakes_are_told(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert set(REPRODUCTIONS) == {"fdam-fig1", "surgical-tables"}
    with pytest.raises(ConfigError, match="--root is needed: the folder of CIFAR-10"):
        FDAMFigure1().run(Console())
    for words, said in ((["fdam-fig2"], "there is no 'fdam-fig2'; there are fdam-fig1"), (["fdam-fig1"], "--root")):
        with pytest.raises(SystemExit) as stopped:
            main(["reproduce", *words])
        assert stopped.value.code == 1
        assert said in capsys.readouterr().err
