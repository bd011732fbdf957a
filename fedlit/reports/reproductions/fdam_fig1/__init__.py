"""FDAM, Figure 1: AUC against the communication window, CODASCA beside CODA+ (Yuan et al., ICML 2021, section 6.1).

A *part* is one federation; on each part both algorithms run over a list of windows with the same seeds, hence the same
initial weights and batches, the same number of iterations and the same evaluations. The laptop's parts train a small head on
a fixed body: a network trained from scratch for a thousand steps is still in its transient, in which any large window
hurts, whatever corrects the drift.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

from fedlit.errors import ConfigError
from fedlit.grid import Sweep
from fedlit.reports.reproductions.base import Reproduction
from fedlit.reports.reproductions.fdam_fig1.figure import draw
from fedlit.sweep import run_sweep
from fedlit.tracking.base import MetricsFile

HERE = Path(__file__).parent
ARMS = {"codaplus": "CODAPlus", "codasca": "CODASCA"}
METRIC, CURVE = "test/federation/auroc_macro", "val/auroc_macro"
POINT = 0.01
"""No difference below a point of AUC is claimed."""


@dataclass(frozen=True)
class Part:
    """One federation of the figure.

    Attributes:
        config: YAML beside this file.
        windows: I.
        iterations: local steps of each client.
        evaluations: of each run.
        body: YAML of the run whose body is fixed, or None.
        settings: keys beside the YAML's.
        needs_root: whether its data are not built in.
    """

    name: str
    title: str
    config: str
    windows: tuple[int, ...]
    iterations: int
    evaluations: int = 16
    body: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    needs_root: bool = True


IID = {"data.partition": {"class_path": "IID", "init_args": {"clients": 5, "unit": "image"}}}

LAPTOP = (
    Part("cifar10-ih", "CIFAR-10-IH, K=5", "cifar10.yaml", (8, 64, 512), 4096, 8, "cifar10_body.yaml"),
    Part("cifar10-iid", "CIFAR-10, IID control", "cifar10.yaml", (512,), 4096, 8, "cifar10_body.yaml", IID),
    Part("phantom", "PhantomCXR, K=5", "phantom.yaml", (8, 512), 4096, 8, "phantom_body.yaml", needs_root=False),
)

PAPER = tuple(
    Part(
        f"imagenet-ih-k{clients}",
        f"ImageNet-IH (10%), K={clients}",
        "paper.yaml",
        (1, 32, 64, 128, 512, 1024),
        20000,
        20,
        settings={"data.partition.init_args.clients": clients},
    )
    for clients in (16, 8)
)


@dataclass
class FDAMFigure1(Reproduction):
    """FDAM, Figure 1: AUC against the communication window, CODASCA beside CODA+.

    Laptop scale: CIFAR-10 (its folder as --root) with one positive and one negative category a client, the same images
    IID as a control, and PhantomCXR. Paper scale: ImageNet (its folder as --root), K = 16 and 8, 20,000 iterations.
    """

    def run(self, console: Console) -> None:
        """Run what is missing, write figure and tables, and say where they are."""
        parts = PAPER if self.scale == "paper" else LAPTOP
        if self.root is None and any(part.needs_root for part in parts):
            raise ConfigError(
                f"--root is needed: the folder of {'ImageNet' if self.scale == 'paper' else 'CIFAR-10'}, as "
                "torchvision or the Hugging Face hub lays it out; nothing is downloaded"
            )
        runs = pd.concat([self._runs(part, console) for part in parts], ignore_index=True)
        table = compare(runs)
        folder = self.output / "fdam-fig1"
        folder.mkdir(parents=True, exist_ok=True)
        runs.drop(columns="curve").to_csv(folder / "runs.csv", index=False)
        table.to_csv(folder / "table.csv", index=False)
        text = markdown(table, {part.name: part.title for part in parts})
        (folder / "table.md").write_text(text)
        draw(runs, {part.name: part.title for part in parts}).savefig(folder / "figure.png", dpi=150)
        console.print(text)
        console.print(f"figure and tables: {folder}")

    def _runs(self, part: Part, console: Console) -> pd.DataFrame:
        """One row a run: part, arm, window, seed, test AUROC of its best model, last validation AUROC, and its curve."""
        settings = part.settings | ({"data.root": str(self.root)} if part.needs_root else {})
        if part.body is not None:
            body = f"fdam-fig1-{Path(part.body).stem.replace('_', '-')}"
            done = run_sweep(self._sweep(body, part.body, _only_root(settings), {}, [0]), 1, console)
            settings |= {"model.weights": str(Path(done["directory"].iloc[0]).absolute())}
        cases = {f"{arm}-{window}": _case(part, arm, window) for window in part.windows for arm in ARMS}
        sweep = self._sweep(f"fdam-fig1-{part.name}", part.config, settings, cases, self.seeds)
        table = run_sweep(sweep, self.jobs, console)
        missing = table.loc[table["status"] != "finished", "name"].tolist()
        if missing:
            raise ConfigError(
                f"{len(missing)} runs of {sweep.directory} are not finished: {', '.join(missing)}; run again"
            )
        rows = []
        for run in table.itertuples():
            arm, _, window = run.case.rpartition("-")
            curve = [(step * int(window), value) for step, value in _curve(Path(run.directory))]
            rows.append(
                {"part": part.name, "arm": arm, "window": int(window), "seed": run.seed}
                | {"test_auroc": float(table.loc[run.Index, METRIC])}
                | {"last_val_auroc": curve[-1][1], "best_round": run.best_round, "curve": curve}
            )
        return pd.DataFrame(rows)

    def _sweep(self, name: str, config: str, settings: dict, cases: dict, seeds: list[int]) -> Sweep:
        return Sweep(
            experiment=name,
            config=[str(HERE / config)],
            set=settings,
            cases=cases,
            seeds=seeds,
            metric=METRIC,
            run_dir=str(self.run_dir),
        )


def compare(runs: pd.DataFrame) -> pd.DataFrame:
    """One row a part and window: mean and standard deviation over seeds of both arms, and of their paired difference."""
    rows = []
    for (part, window), group in runs.groupby(["part", "window"], sort=False):
        by_arm = group.pivot(index="seed", columns="arm", values="test_auroc")
        difference = by_arm["codasca"] - by_arm["codaplus"]
        sure = abs(difference.mean()) >= POINT and (difference > 0).nunique() == 1
        better = "CODASCA" if difference.mean() > 0 else "CODA+"
        rows.append(
            {"part": part, "window": window, "seeds": len(difference)}
            | {f"{arm}_{what}": getattr(by_arm[arm], what)() for arm in ARMS for what in ("mean", "std")}
            | {"difference_mean": difference.mean(), "difference_std": difference.std()}
            | {"claim": better if sure else "none"}
        )
    return pd.DataFrame(rows)


def markdown(table: pd.DataFrame, titles: dict[str, str]) -> str:
    """The table as people read it."""
    lines = [
        "| federation | I | CODA+ | CODASCA | paired difference | better by a point or more |",
        "|---|---|---|---|---|---|",
    ]
    for row in table.itertuples():
        lines.append(
            f"| {titles[row.part]} | {row.window} | {row.codaplus_mean:.4f} ± {row.codaplus_std:.4f} "
            f"| {row.codasca_mean:.4f} ± {row.codasca_std:.4f} "
            f"| {row.difference_mean:+.4f} ± {row.difference_std:.4f} | {row.claim} |"
        )
    seeds = table["seeds"].min()
    lines += [
        "",
        f"Test AUROC of the model that is best in validation, mean ± standard deviation over {seeds} seeds; the difference is "
        "CODASCA - CODA+ with the same seed. A better one is named where the mean difference is at least a point and every "
        "seed has its sign.",
    ]
    return "\n".join(lines) + "\n"


def _case(part: Part, arm: str, window: int) -> dict[str, Any]:
    every = max(1, round(part.iterations / part.evaluations / window))
    return {
        "federation.aggregators": [ARMS[arm]],
        "federation.schedule.init_args.window": window,
        "federation.schedule.init_args.iterations": part.iterations,
        "federation.eval_every": every,
    }


def _only_root(settings: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key == "data.root"}


def _curve(run: Path) -> list[tuple[int, float]]:
    """(round, validation AUROC) at each evaluation."""
    return [(step, value) for step, key, value in MetricsFile(run / "metrics.csv").rows() if key == CURVE]
