"""Plans without training: directories with the metrics that a report reads, documents with a base, one parser."""

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import accumulate
from pathlib import Path

import pandas as pd
import pytest
import yaml
from rich.console import Console

from fedlit import schedules
from fedlit.core.system import documents
from fedlit.core.system.shipped import CONFIGS
from fedlit.experiment import grid, tuning
from fedlit.experiment import plan as plans
from fedlit.experiment.grid import Combination, combinations_of, plan
from fedlit.experiment.options import experiment_parser
from fedlit.experiment.plan import Plan
from fedlit.experiment.planned_run import PlannedRun
from fedlit.experiment.tuning import Stage, first_points_of, plans_of
from fedlit.federation.settings import Settings
from fedlit.reports.reproductions import NAMES, costs, reproduction
from fedlit.reports.reproductions.document import find, read_document
from fedlit.reports.reproductions.reproduction import Reproduction
from fedlit.tracking.base import MetricsFile
from fedlit.tracking.run import Result

one_parser = cache(experiment_parser)
"""A function that returns the parser of all plans of the tests: to make one takes half a second."""


read_plan = plans.load_plan
shipped_plan = cache(read_plan)


def load_plan(file: Path, command: str = "reproduce") -> Plan:
    """Read a plan, and one that ships only once: reading plans takes most of the time of a ``Reproduction``."""
    return (shipped_plan if CONFIGS in Path(file).resolve().parents else read_plan)(file, command)


@contextmanager
def planning_with_one_parser() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in (grid, tuning, costs, reproduction):
            patch.setattr(module, "experiment_parser", one_parser)
        for module in (plans, reproduction):
            patch.setattr(module, "load_plan", load_plan)
        yield


@cache
def shipped_plans() -> dict[Path, tuple[str, str]]:
    """The plans of all documents by file, each with the first name and scale that have it."""
    plans: dict[Path, tuple[str, str]] = {}
    for name in NAMES:
        document = read_document(find(name))
        for scale, chosen in document.scales.items():
            for file in chosen.plans:
                plans.setdefault(document.file(file), (name, scale))
    return plans


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


def table_of_plans(
    plans: Mapping[str, Plan],
    folder: Path,
    measured: Callable[[Combination, int], tuple],
    seeds: Sequence[int] | None = None,
    tries: int | None = None,
) -> pd.DataFrame:
    """The runs of plans; ``measured`` gets the case and a seed for what ``measured_run`` takes.

    In a tuning, the first try of each method is the best; ``tries`` are fewer than those of the plan.
    """
    return pd.DataFrame(
        {"plan": name, "stage": stage, "case": each.case, **each.labels, "seed": seed, "best_round": 1}
        | {
            "directory": measured_run(
                folder / name / planned.experiment / f"{each.group}-{seed}", *measured(each, seed)
            )
        }
        | ({"score": 0.9 - number / 100, "chosen": number == 0} if stage == "try" else {})
        for name, whole in plans.items()
        for stage, planned in stages_of(whole, tries)
        for number, each in enumerate(combinations_of(planned))
        for seed in (None if stage == "try" else seeds) or planned.seeds
    )


def stages_of(planned: Plan, tries: int | None = None) -> Iterator[tuple[str, Plan]]:
    """A plan, or those of each method's tries, and of final runs with the settings of its first try."""
    if not planned.is_tuning:
        yield "", planned
        return
    points = drawn(planned)
    for stage, count in (("try", tries), ("final", 1)):
        some = {case: each[:count] for case, each in points.items()}
        yield from ((stage, of_case) for of_case in plans_of(planned, stage, some).values())


DRAWN: dict[str, dict] = {}


def drawn(planned: Plan) -> dict[str, list]:
    """The first tries of each method, drawn once for all plans with the same ranges."""
    key = repr((planned.sampler, planned.tries, planned.search_seed, planned.ranges_of))
    if key not in DRAWN:
        DRAWN[key] = first_points_of(planned)
    return DRAWN[key]


OF_EVALUATIONS = ("federation.schedule", "federation.eval_every")


def evaluated(config: Path, keys: Mapping[str, object]) -> list[int]:
    """The iterations after which a run on PracticeSchedule or TheorySchedule is evaluated, the last left out."""
    keys = {key.replace(".init_args", ""): value for key, value in keys.items()}
    return _evaluated(config, json.dumps({key: keys[key] for key in sorted(keys) if key.startswith(OF_EVALUATIONS)}))


@cache
def _evaluated(config: Path, text: str) -> list[int]:
    keys, federation = json.loads(text), documents.load(config)["federation"]
    written = keys.get("federation.schedule", federation.get("schedule"))
    of_keys = {k.removeprefix("federation.schedule."): v for k, v in keys.items() if "federation.schedule." in k}
    schedule = getattr(schedules, written["class_path"])(**written["init_args"] | of_keys)
    settings = Settings(
        schedule=schedule, eval_every=keys.get("federation.eval_every", federation.get("eval_every", 1))
    )
    iterations = list(accumulate(schedule.plan(index).window for index in range(settings.rounds)))
    return [iterations[done - 1] for done in settings.evaluated if done < settings.rounds]


def derived(folder: Path, base: str, **keys: object) -> str:
    """Write a document with the name of one that ships, which says what differs from it; return its path."""
    file = folder / f"{base}.yaml"
    file.write_text(yaml.safe_dump({"base": str(find(base)), **keys}))
    return str(file)


def derived_plan(folder: Path, base: str, **keys: object) -> str:
    """Write a plan with the name of one that ships, such as ``fdam/laptop/phantom``, and what differs from it."""
    name = f"{Path(base).name}.yaml"
    (folder / name).write_text(yaml.safe_dump({"base": str(CONFIGS / f"{base}.yaml"), **keys}))
    return name


def one_run(planned: Plan, stage: Stage = "try") -> PlannedRun:
    """The last run of a plan, or of a stage of a tuning, with one seed."""
    if planned.is_tuning:
        points = {case: each[-1:] for case, each in first_points_of(planned).items()}
        planned = [*plans_of(planned, stage, points).values()][-1]
    last = [*combinations_of(planned)][-1]
    alone = replace(
        planned, set=dict(last.settings), cases={}, grid={}, points=None, names="", leave_out=[], roots={}, starts=None,
        seeds=planned.seeds[:1],
    )  # fmt: skip
    return plan(alone)[0]


def printed(reproduction: Reproduction) -> str:
    """Run a reproduction and return what it prints."""
    text = io.StringIO()
    reproduction.run(Console(file=text, width=400))
    return text.getvalue()
