"""A custom callback: stop once the federation has settled."""

from fedlit.federation.callbacks import Callback


class StopWhenSettled(Callback):
    """Stop once a round moves the server's weights by less than a tolerance, and log each round's move.

    Args:
        tolerance: Length of a round's update, in the units of the weights.
    """

    def __init__(self, tolerance: float) -> None:
        self.tolerance = tolerance

    def on_round_start(self, state):
        self.start = state.server.w.clone()

    def on_round_end(self, state):
        moved = float((state.server.w - self.start).norm())
        state.metrics["own/moved"] = moved
        if moved < self.tolerance:
            state.stop = f"the weights moved by {moved:.2g} only"
