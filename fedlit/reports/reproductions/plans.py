"""The plans of a scale: sweeps and tunings in YAML files next to the document, run by the planner's own functions."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from rich.console import Console

from fedlit.core.errors import ConfigError
from fedlit.core.system import documents
from fedlit.experiment.grid import plan
from fedlit.experiment.parser import Parser
from fedlit.experiment.plan import Plan
from fedlit.experiment.planned_run import LOG, PlannedRun
from fedlit.experiment.sweep import run_sweep
from fedlit.experiment.tuning import first_points_of, run_tuning, runs_of


def runs_of_plan(planned: Plan, parser: Parser) -> dict[str, list[PlannedRun]]:
    """Return the runs of a plan by experiment, its bodies first; of a tuning those that are tried first."""
    runs: dict[str, list[PlannedRun]] = {}
    if planned.bodies is not None:
        runs |= runs_of_plan(planned.bodies, parser)
    if planned.is_tuning:
        tries = runs_of(planned, "try", first_points_of(planned), parser)
        return runs | {planned.experiment: [run for of_case in tries.values() for run in of_case]}
    return runs | {planned.experiment: plan(planned, parser)}


def with_bodies(planned: Plan) -> list[Plan]:
    """Return a plan, and before it the plans from whose weights its runs start."""
    return [*(with_bodies(planned.bodies) if planned.bodies is not None else ()), planned]


def fetches(planned: Plan) -> bool:
    """Return whether runs of a plan start from pretrained weights of timm's hub and not from a body."""
    models = [documents.load_mapping(Path(file)).get("model") for file in planned.config if Path(file).is_file()]
    written = [(each.get("init_args") or {}).get("pretrained") for each in models if isinstance(each, dict)]
    asked = planned.set.get("model.pretrained", next((each for each in reversed(written) if each is not None), False))
    return bool(asked) and planned.starts is None


def run_plan(name: str, planned: Plan, jobs: int, console: Console) -> pd.DataFrame:
    """Run what is missing of a plan; return its table with the column ``plan``, in which failed tries are left out.

    Raises:
        ConfigError: A run has not finished; says where its output is.
    """
    if planned.is_tuning:
        run_tuning(planned, jobs, console)
    else:
        run_sweep(planned, jobs, console)
    table = pd.read_csv(planned.table, dtype={"case": str, "name": str}).assign(plan=name)
    table["case"] = table["case"].fillna("")
    table["stage"] = table.get("stage", "")
    missing = table[(table["status"] != "finished") & (table["stage"] != "try")]
    if len(missing):
        raise ConfigError(unfinished(planned.directory, missing))
    table = table[table["status"] == "finished"].astype({"best_round": int})
    table["directory"] = table["directory"].map(Path)
    first = ["plan", "stage"]
    return table[[*first, *(column for column in table if column not in (*first, "status"))]]


def unfinished(directory: Path, missing: pd.DataFrame) -> str:
    """Return which runs of a table have not finished, and what to do."""
    failed: Sequence[str] = missing.loc[missing["status"] == "failed", "directory"].tolist()
    why = f"the end of {Path(failed[0]) / LOG} says why; finished runs are kept" if failed else "run again"
    return f"{len(missing)} runs of {directory} are not finished: {', '.join(missing['name'])}; {why}"
