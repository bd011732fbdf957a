"""The methods of the paper's section 6, and the grid that a rate is chosen from for each of them alike."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Method:
    """A row of the paper's tables.

    Attributes:
        aggregator: its class.
        objective: that its clients minimise.
        arguments: of the aggregator.
        gain: sum of the weights with which its momentum adds up gradients. Rates are divided by it, so that the same number
            is a step of the same length for all methods.
    """

    aggregator: str
    objective: str
    arguments: dict[str, Any] = field(default_factory=dict)
    gain: float = 1.0

    def keys(self, rate: float) -> dict[str, Any]:
        """Of the configuration, for a rate of the grid."""
        aggregator = {"class_path": self.aggregator} | ({"init_args": self.arguments} if self.arguments else {})
        return {
            "federation.aggregators": [aggregator],
            "model.objective": self.objective,
            "model.optimizer.lr": round(rate / self.gain, 6),
        }


METHODS = {
    "LocalSCGDAM": Method("LocalSCGDAM", "AUCSaddle", {"rho": 0.01, "alpha": 0.5, "beta_x": 0.1, "beta_y": 0.1}),
    "CoDA": Method("CODA", "AUCSaddle", {"gamma": 0.002}),
    "LocalSGDAM": Method("LocalSGDAM", "AUCSaddle", {"beta_x": 0.1, "beta_y": 0.1}),
    "LocalSGDM": Method("LocalSGDM", "BCE", {"momentum": 0.9}, gain=10.0),
    "LocalSGDM_RL": Method("LocalSGDM", "RatioLoss", {"momentum": 0.9}, gain=10.0),
}
"""Of Table 1."""

CORRECTED = {"SCAFFOLD": Method("Scaffold", "BCE"), "FedProx": Method("FedProx", "BCE", {"mu": 0.01})}
"""Of Figure 5, beside LocalSCGDAM."""

RATES = (0.3, 1.0, 3.0, 10.0)
"""The grid, the same for all methods."""
