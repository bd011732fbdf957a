"""Reproductions without training: directories with the metrics that a report reads, and documents with a base."""

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd
import yaml
from rich.console import Console

from fedlit import schedules
from fedlit.experiment.grid import Combination, combinations_of
from fedlit.experiment.plan import Plan
from fedlit.federation.settings import Settings
from fedlit.reports.reproductions.document import SweepPart, find
from fedlit.reports.reproductions.reproduction import Reproduction
from fedlit.tracking.base import MetricsFile
from fedlit.tracking.run import Result


def measured_run(
    directory: Path,
    tested: Mapping[str, float],
    by_round: Mapping[int, Mapping[str, float]] = {1: {"val/auroc_macro": 0.5}},
    best: int = 1,
) -> Path:
    """The directory of a finished run: test metrics of its best model, and metrics of rounds."""
    directory.mkdir(parents=True)
    Result(max(by_round), best, 1.0, dict(tested)).write(directory)
    file = MetricsFile(directory / "metrics.csv")
    for step, metrics in by_round.items():
        file.append(metrics, step)
    return directory


def table_of_runs(
    parts: Iterable[SweepPart],
    folder: Path,
    measured: Callable[[SweepPart, str, int], tuple],
    seeds: Sequence[int] = (0, 1),
) -> pd.DataFrame:
    """The runs of parts; ``measured`` gets the part, the name of a case and a seed for what ``measured_run`` takes."""
    return pd.DataFrame(
        {"part": part.experiment, "title": part.title, "case": name, **case.labels, "seed": seed, "best_round": 1}
        | {"directory": measured_run(folder / part.experiment / f"{name}-{seed}", *measured(part, name, seed))}
        for part in parts
        for name, case in part.cases.items()
        for seed in part.seeds or seeds
    )


def table_of_plans(
    plans: Mapping[str, Plan],
    folder: Path,
    measured: Callable[[Combination, int], tuple],
    seeds: Sequence[int] | None = None,
) -> pd.DataFrame:
    """The runs of plans; ``measured`` gets the case and a seed for what ``measured_run`` takes."""
    return pd.DataFrame(
        {"plan": name, "case": each.case, **each.labels, "seed": seed, "best_round": 1}
        | {"directory": measured_run(folder / name / f"{each.case}-{seed}", *measured(each, seed))}
        for name, planned in plans.items()
        for each in combinations_of(planned)
        for seed in seeds or planned.seeds
    )


def evaluated(config: Path, keys: Mapping[str, object]) -> list[int]:
    """The iterations after which a run on PracticeSchedule or TheorySchedule is evaluated, the last left out."""
    federation = yaml.safe_load(config.read_text())["federation"]
    keys = {key.replace(".init_args", ""): value for key, value in keys.items()}
    written = keys.get("federation.schedule", federation.get("schedule"))
    of_keys = {k.removeprefix("federation.schedule."): v for k, v in keys.items() if "federation.schedule." in k}
    schedule = getattr(schedules, written["class_path"])(**written["init_args"] | of_keys)
    settings = Settings(
        schedule=schedule, eval_every=keys.get("federation.eval_every", federation.get("eval_every", 1))
    )
    windows = [schedule.plan(index).window for index in range(settings.rounds)]
    return [sum(windows[:done]) for done in settings.evaluated if done < settings.rounds]


def derived(folder: Path, base: str, **keys: object) -> str:
    """Write a document with the name of one that ships, which says what differs from it; return its path."""
    file = folder / f"{base}.yaml"
    file.write_text(yaml.safe_dump({"base": str(find(base)), **keys}))
    return str(file)


def printed(reproduction: Reproduction) -> str:
    """Run a reproduction and return what it prints."""
    text = io.StringIO()
    reproduction.run(Console(file=text, width=400))
    return text.getvalue()
