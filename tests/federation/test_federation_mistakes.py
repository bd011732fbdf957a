"""The table of what a federation refuses: its settings, its monitor, and who takes part."""

import random
from functools import partial
from itertools import cycle

import torch
from refusals import refused, table
from simulation import federated, simulate
from torch.utils.data import TensorDataset
from toys import ToyData, ToyNet

from fedlit.aggregators import CoordinateMedian
from fedlit.core.errors import ConfigError, DataError
from fedlit.core.fabric import make_fabric
from fedlit.core.messages import ClientData
from fedlit.core.schedule import Plan
from fedlit.data.in_memory import GivenClients
from fedlit.federation.assembly import assemble
from fedlit.federation.callbacks import Callback, Callbacks
from fedlit.federation.federation import Federation
from fedlit.federation.monitor import Monitor
from fedlit.federation.participation import Availability, Cohorts, Cyclic, Participation, Timetable
from fedlit.models import ImageClassifier

SITES = [f"site-{k}" for k in range(5)]
LOGGED = {"val/loss": 1.0, "val/auroc_macro": 0.5, "client/a/loss": 1.0}
DRAWS = random.Random(0)
ONLY = {"first_of_stage": True, "last_of_stage": True}


class Own(Participation):
    """A custom plan: a function of the clients, and of the number of calls."""

    def __init__(self, draw):
        self.draw, self.calls = draw, 0

    def cohort(self, clients, index, seed):
        self.calls += 1
        return self.draw(clients, self.calls)


def monitor(metric, available=LOGGED, **options):
    return Monitor.resolve(Federation(monitor=metric, **options), available)


def cohorts(plan, clients=SITES, rounds=6):
    plan.check(clients, rounds)


def second(draw):
    """Draw the second round by a function of the clients; all train in the first."""
    return Cohorts(Own(lambda clients, calls: draw(clients) if calls > 1 else clients), SITES, 2, 0)


def again(draw):
    """Ask a plan for three rounds, and for the same three again, as a resumed run does."""
    asked = Cohorts(Own(draw), SITES, 3, 0)
    return [asked.of(index) for index in range(3)]


def simulated(*aggregators, **options):
    return simulate(ToyNet(), ToyData(4), federated([*aggregators], 1, **options), "32-true")


class Misspelt(Callback):
    def on_round_ends(self, state):
        state.metrics["own/score"] = 1.0


class PooledByName(GivenClients):
    def __init__(self):
        images = TensorDataset(torch.zeros(4, 1, 28, 28), torch.eye(2).repeat(2, 1))
        super().__init__({"north": images, "south": images}, ("Edema", "Mass"), batch_size=2)
        self.pooled = True


def pooled():
    assemble(Federation(), ImageClassifier(("Edema", "Mass"), "small_cnn"), PooledByName(), make_fabric("cpu"))


def planned(**values):
    return Plan(**{"stage": 0, "lr_factor": 1.0, "window": 4, "unit": "steps"} | values, **ONLY)


def named(client, name):
    images = TensorDataset(torch.zeros(4, 1, 28, 28), torch.eye(2).repeat(2, 1))
    data = GivenClients({client: ClientData(client, ("Edema", name), images)}, ("Edema", name), batch_size=2)
    assemble(Federation(), ImageClassifier(("Edema", name), "small_cnn"), data, make_fabric("cpu"))


SETTINGS = [
    *((f"a factor of {factor}", partial(Federation, lr_factors={"site-0": factor}), ConfigError, "'site-0'")
        for factor in (0.0, float("nan"))),
    ("a factor of nobody", lambda: simulated(lr_factors={"site-7": 2.0}), ConfigError, "site-0, site-1", "'site-7'"),
    *((f"a state_memory of {memory!r}", partial(Federation, state_memory=memory), ConfigError,
        "federation.state_memory") for memory in ("-1", "4 XB")),
    *((f"a checkpoint_every of {every!r}", partial(Federation, checkpoint_every=every), ConfigError,
        "federation.checkpoint_every") for every in (0, "often", "1.5")),
    ("a memory format", lambda: Federation(memory_format="nhwc"), ConfigError, "memory_format",
        "'contiguous' or 'channels_last'", "'nhwc'"),
    ("a margin without patience", lambda: Federation(patience_margin=0.1), ConfigError, "federation.patience_margin"),
    ("a margin of 0", lambda: Federation(patience=3, patience_margin=0), ConfigError, "found 0"),
    ("patience without an evaluation", lambda: Federation(eval_every=5, patience=4), ConfigError, "5 rounds",
        "found 4"),
    ("a callback with a misspelt hook", lambda: Callbacks([Misspelt()]), ConfigError, "Misspelt.on_round_ends",
        "never called", "did you mean on_round_end?"),
    ("pooled data with two clients", pooled, ConfigError, "data.pooled", "PooledByName.setup()", "found 2"),
    ("a data set as a name", lambda: ClientData([1, 2], None, None), ConfigError, "a name first", "found a list",
        "ClientData(name, classes, train, val, test)"),
    ("a window of epoch", lambda: planned(unit="epoch"), ConfigError, "Plan.unit", "'steps' or 'epochs'", "'epoch'"),
    ("a window of 0", lambda: planned(window=0), ConfigError, "Plan.window", "found 0"),
    ("a window of 1.5", lambda: planned(window=1.5), ConfigError, "Plan.window", "found 1.5"),
    ("a negative rate", lambda: planned(lr_factor=-1), ConfigError, "Plan.lr_factor", "found -1"),
    ("a share above 1", lambda: Federation(participation=1.5), ConfigError, "Federation.participation", "found 1.5"),
]  # fmt: skip

MONITOR = [
    ("own/score", lambda: Federation(monitor="own/score"), ConfigError, "'own/score'"),
    ("drift", lambda: Federation(monitor="drift/client_drift"), ConfigError, "'drift/client_drift'"),
    ("val/los", lambda: Federation(monitor="val/los"), ConfigError, "val/loss"),
    ("the test set", lambda: Federation(monitor="test/federation/auroc_macro"), ConfigError, "'val/auroc_macro'"),
    ("a curve of the test set", lambda: Federation(monitor="test_curve/federation/auroc_macro", monitor_mode="max"),
        ConfigError, "'test_curve/federation/auroc_macro'", "'val/auroc_macro'"),
    ("a total", lambda: Federation(monitor="total/loss"), ConfigError, "'total/loss'"),
    *((metric, partial(monitor, metric), ConfigError, metric)
        for metric in ("val/auroc", "client/nobody/loss", "loss", "vall/loss")),
    ("own/loss of nobody", lambda: monitor("own/loss"), ConfigError, "federation.monitor"),
    ("patience without a metric", lambda: monitor("auto", {}, patience=4), ConfigError, "federation.patience"),
]  # fmt: skip

PLANS = [
    ("Cyclic of 0", lambda: Cyclic(0), ConfigError, "found 0"),
    ("Cyclic without clients", lambda: cohorts(Cyclic(6)), ConfigError, "most 5", "found 6"),
    ("round 0", lambda: Timetable({"a": [0]}), ConfigError, "'a'", "found 0"),
    ("a round beyond the period", lambda: Timetable({"a": [4]}, 3), ConfigError, "'a'", "found 4"),
    ("a round twice", lambda: Timetable({"a": [1, 1]}), ConfigError, "'a'"),
    ("a table of another site", lambda: cohorts(Timetable({"elsewhere": [1]})), ConfigError, "Timetable", "site-0",
        "'elsewhere'"),
    ("a table without a site", lambda: cohorts(Timetable({"site-0": [1]}, 1)), ConfigError, "'site-1'"),
    ("a round of nobody", lambda: cohorts(Timetable({"site-0": [1, 3]}), SITES[:1], 3), ConfigError, "round 2"),
    ("a probability of 0", lambda: Availability(0.0), ConfigError, "found 0"),
    ("a probability of 1.5", lambda: Availability({"a": 1.5}), ConfigError, "found 1.5"),
    ("at least 0", lambda: Availability(0.5, 0), ConfigError, "found 0"),
    ("at least 6 of 5", lambda: cohorts(Availability(0.5, 6)), ConfigError, "least 6", "found 5"),
    ("a probability of nobody", lambda: cohorts(Availability({"nobody": 0.5})), ConfigError, "Availability", "site-0",
        "'nobody'"),
    ("a session with another site", lambda: simulated(participation=Timetable({"NIH": [1]})), ConfigError,
        "Timetable", "site-0, site-1", "'NIH'"),
    ("a cohort too small for a median", lambda: simulated(CoordinateMedian(), participation=Cyclic(4)), ConfigError,
        "CoordinateMedian"),
    ("a text as a cohort", lambda: second(lambda clients: "site-0"), ConfigError, "Own.cohort, round 2", "found 's'"),
    ("an empty cohort", lambda: second(lambda clients: []), ConfigError, "Own.cohort, round 2", "found none"),
    ("a client twice", lambda: second(lambda clients: clients[:1] * 2), ConfigError, "Own.cohort, round 2",
        "'site-0' more than once"),
    ("clients without end", lambda: second(cycle), ConfigError, "Own.cohort, round 2", "'site-0' more than once"),
    ("an unknown client", lambda: second(lambda clients: ["site-0", "NIH"]), ConfigError, "Own.cohort, round 2",
        "site-0, site-1", "'NIH'"),
    ("numbers", lambda: second(lambda clients: [0, 1]), ConfigError, "Own.cohort, round 2", "found 0"),
    ("a list of lists", lambda: second(lambda clients: [clients]), ConfigError, "Own.cohort, round 2",
        "found ['site-0'"),
    ("a counter", lambda: again(lambda clients, calls: [clients[calls % 5]]), ConfigError, "Own.cohort, round "),
    ("a generator that continues", lambda: again(lambda clients, calls: DRAWS.sample(clients, 2)), ConfigError,
        "Own.cohort, round "),
    ("a change from outside", lambda: again(lambda clients, calls: clients[: 1 + 3 * (calls > 3)]), ConfigError,
        "Own.cohort, round "),
]  # fmt: skip

NAMES = [
    ("an escape in a client", partial(named, "site\x1b[31m", "Mass"), DataError, "a client without control characters",
        "\\x1b[31m"),
    ("a new line in a class", partial(named, "site", "Mass\n"), DataError, "a class without control characters", "\\n"),
]  # fmt: skip
"""Such a name would reach the terminal and the XML of reports."""


@table([*SETTINGS, *MONITOR, *PLANS, *NAMES])
def test_it_is_refused(provoke, kind, names):
    with refused(kind, *names):
        provoke()
