"""Lists of aggregators: what only one of a list may do, the name of a list, and the optimizers that do not fit it."""

from collections.abc import Sequence

from fedlit.core.aggregator import Aggregator
from fedlit.core.flat import SLICES

ALONE = {"compute_gradient": "compute the gradient", "reduce": "reduce the replies"}
"""Hooks that only one aggregator of a list may have, and their effect."""

ADAPTIVE = frozenset(
    ("Adam", "AdamW", "Adamax", "NAdam", "RAdam", "Adagrad", "Adadelta", "RMSprop", "Rprop", "AdaBelief", "Lion")
)
"""Optimizers that rescale each element of the gradient separately."""


def governed(aggregator: Aggregator) -> tuple[str, ...]:
    """Return all that only this aggregator of a list may decide."""
    things = aggregator.governs or ()
    return (things,) if isinstance(things, str) else tuple(things)


def governed_twice(aggregators: Sequence[Aggregator]) -> str:
    """Return which aggregators of a list govern the same thing or have a hook that only one may have; "" if none do."""
    for hook, what in ALONE.items():
        having = [type(a).__name__ for a in aggregators if a.implements(hook)]
        if len(having) > 1:
            return f"{' and '.join(having)} each {what}; keep one"
    owners: dict[str, str] = {}
    for aggregator in aggregators:
        name = type(aggregator).__name__
        for thing in governed(aggregator):
            if thing in owners:
                twice = f"bring the {thing}, which would act twice"
                what = f"decide how the {thing} is shared" if thing in SLICES else twice
                return f"{owners[thing]} and {name} each {what}; keep one"
            owners[thing] = name
    return ""


def composed_name(aggregators: Sequence[Aggregator]) -> str:
    """Return the name of a list of aggregators; an empty list is federated averaging."""
    return "+".join(type(a).__name__ for a in aggregators) or "FedAvg"


def control_variates_warning(aggregators: Sequence[str], optimizer: str) -> str:
    """Return a warning if the aggregators that add control variates do not fit an optimizer, otherwise ""."""
    if not aggregators or optimizer not in ADAPTIVE:
        return ""
    return (
        f"{' and '.join(aggregators)} corrects the gradients by control variates, and {optimizer} then rescales each "
        "element, so the corrections no longer cancel the drift between clients as they do with SGD steps, for which "
        "they are derived"
    )
