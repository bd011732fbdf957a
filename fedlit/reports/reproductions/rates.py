"""The choice of rates: every method is tried at every rate of one grid, and takes its best one to all columns."""

from dataclasses import replace

import pandas as pd

from fedlit.core.errors import ConfigError
from fedlit.reports.reproductions.document import Case, Part, Rates, Scale, word
from fedlit.reports.reproductions.report import measured


def tried_parts(scale: Scale) -> list[Part]:
    """Return the runs from which rates are chosen, a part for each federation and method; reproductions share them."""
    rates = scale.rates
    return [
        replace(
            part,
            experiment=f"{part.grid}-{word(method)}",
            cases={
                f"rate-{rate:g}": Case(
                    scale.keys("method", method) | rates.settings | {rates.key: rates.of(method, rate)},
                    {"method": method, "rate": rate},
                )
                for rate in rates.grid
            },
            seeds=[rates.seed],
            metric=rates.metric,
            may_fail=True,
        )
        for part in scale.parts.values()
        for method in part.methods
    ]


def chosen_parts(runs: pd.DataFrame, scale: Scale) -> list[Part]:
    """Return the parts of a scale, with the rates that the runs have chosen.

    Raises:
        ConfigError: No run of a method has ended.
    """
    tried = with_validation(runs, scale.rates)
    return [_chosen(part, best(tried[tried["title"] == part.title]), scale.rates) for part in scale.parts.values()]


def with_validation(runs: pd.DataFrame, rates: Rates) -> pd.DataFrame:
    """Return the runs that were tried, with the validation metric of each one's best model."""
    return runs[["title", "method", "rate"]].assign(
        validation=[measured(run).get(rates.metric, float("nan")) for run in runs["directory"]]
    )


def best(tried: pd.DataFrame) -> dict[str, float]:
    """Return each method's rate with the best validation metric; of equals the smallest."""
    ordered = tried.sort_values(["validation", "rate"], ascending=[False, True])
    rates = ordered.groupby("method")["rate"].first()
    return {method: rates[method] for method in dict.fromkeys(tried["method"])}


def described(tried: pd.DataFrame, rates: Rates) -> str:
    """Return what the report says of the choice."""
    chosen = (
        f"{title}: " + ", ".join(f"{method} {rate:g}" for method, rate in best(of_title).items())
        for title, of_title in tried.groupby("title", sort=False)
    )
    return rates.text.format(rates=", ".join(f"{rate:g}" for rate in rates.grid), chosen="; ".join(chosen))


def _chosen(part: Part, best: dict[str, float], rates: Rates) -> Part:
    if diverged := [method for method in part.methods if method not in best]:
        raise ConfigError(
            f"no rate of {tuple(rates.grid)} trains {', '.join(diverged)} on {part.title}; the runs' console.log say why"
        )
    cases = {}
    for name, case in part.cases.items():
        method = case.labels["method"]
        rate = {rates.key: rates.of(method, best[method])}
        cases[name] = Case(case.keys | rate, case.labels | {"rate": best[method]})
    return replace(part, cases=cases)
