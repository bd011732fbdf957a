"""The warning about control variates with an optimizer for which they are not derived."""

from collections.abc import Sequence

ADAPTIVE = frozenset(
    ("Adam", "AdamW", "Adamax", "NAdam", "RAdam", "Adagrad", "Adadelta", "RMSprop", "Rprop", "AdaBelief", "Lion")
)
"""Optimizers that rescale each element of the gradient separately."""


def control_variates_warning(aggregators: Sequence[str], optimizer: str) -> str:
    """Return a warning if the aggregators that add control variates do not fit an optimizer, otherwise ""."""
    if not aggregators or optimizer not in ADAPTIVE:
        return ""
    return (
        f"{' and '.join(aggregators)} corrects the gradients by control variates, and {optimizer} then rescales each "
        "element, so the corrections no longer cancel the drift between clients as they do with SGD steps, for which "
        "they are derived"
    )
