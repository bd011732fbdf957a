import torch

from fedlit.aggregators import Aggregator, Layout, Round, ServerState, State


class ServerMomentum(Aggregator):
    """FedAvgM (Hsu et al., 2019, arXiv:1909.06335): ``v = beta v + delta``, ``w += eta_g v``.

    ``delta`` is the weighted mean of the clients' changes of a round, so beta = 0 and eta_g = 1 reduce to FedAvg.
    """

    def __init__(self, beta: float = 0.9, eta_g: float = 1.0) -> None:
        if not 0 <= beta < 1 or not eta_g > 0:
            raise ValueError(f"ServerMomentum: expected 0 <= beta < 1 and eta_g > 0, found {beta} and {eta_g}")
        self.beta, self.eta_g = beta, eta_g

    def server_state(self, layout: Layout, w: torch.Tensor) -> State:
        return {"v": torch.zeros_like(w)}

    def on_aggregate_end(self, state: State, server: ServerState, mean: State, rnd: Round) -> None:
        state["v"] = self.beta * state["v"] + server.delta
        server.delta = self.eta_g * state["v"]
