"""NPA, CODA, CODA+ and CODASCA against the transcription of their paper, after every round."""

import copy
import itertools
import warnings
from collections.abc import Iterator

import pytest
import torch
from fdam_oracle import FDAM, mean_of_own, prior
from fdam_oracle import Stage as Written
from fdam_toys import LR, Scorer, Sites, batches
from simulation import Simulation, assert_near, simulate
from torch import Tensor

from fedlit.aggregators import CODA, CODASCA, NPA, CODAPlus, FedBN
from fedlit.core.batches import BatchStream
from fedlit.core.flat import FlatModel
from fedlit.core.messages import Round, ServerState
from fedlit.data import FederatedDataModule
from fedlit.federation.federation import Federation
from fedlit.schedules import Stage, StageSchedule

SAMPLED = 2
VARIABLES = ("a", "b", "alpha")


TWO = {"north": (13, 0.15, ()), "south": (21, 0.4, ())}
TWO_CLASSES = {"north": (13, 0.3, ("Nodule",)), "south": (21, 0.4, ()), "east": (34, 0.6, ())}
STAGES = [Written(LR, 2, 2), Written(LR / 2, 3, 2)]
DRAWN = [Written(LR, 2, 4), Written(LR / 2, 1, 3), Written(LR / 4, 2, 3)]
STEPWISE = [Written(LR, 1, 3), Written(LR / 3, 1, 2)]


def schedule(stages: list[Written]) -> StageSchedule:
    return StageSchedule([Stage(s.rounds, s.window, "steps", s.lr / LR) for s in stages])


def sample(data: FederatedDataModule, index: int) -> dict[str, list[tuple[Tensor, Tensor]]]:
    """The batches of a measuring round before or after round ``index``."""
    found = {}
    for name, client in data.clients.items():
        stream = BatchStream(client.train, data.batch_size, 0, name, "measure")
        drawn = [stream[index * SAMPLED + i] for i in range(min(SAMPLED, stream.steps_per_epoch))]
        found[name] = [(vectors.double(), labels.double()) for vectors, labels in drawn]
    return found


def transcription(module: Scorer, data: FederatedDataModule, **options) -> FDAM:
    labels = {n: c.train.tensors[1].double() for n, c in data.clients.items()}
    p = prior(labels, dict.fromkeys(labels, 1 / len(labels)))
    supply = {name: batches(data, name) for name in data.clients}
    return FDAM(copy.deepcopy(module.network).double(), supply, p, sample=lambda index: sample(data, index), **options)


def trajectory(module, data, aggregators, stages, precision="64-true") -> tuple[list[dict[str, Tensor]], Simulation]:
    """The state of a run after each of its rounds, by name."""
    record = []

    def keep(done: Simulation) -> None:
        found = {name: tensor.clone() for name, tensor in (done.parameters() | done.buffers()).items()}
        for i, aggregator in enumerate(aggregators):
            if isinstance(aggregator, CODASCA):
                vectors = {"c": done.server.aggregators[i]["c"]}
                vectors |= {f"c of {n}": s.aggregators[i]["c"] for n, s in done.states.items()}
                for kind, vector in vectors.items():
                    for name, tensor in done.parameters(vector).items():
                        # fedlit descends on the negative of the dual's gradient, Alg. 4 ascends
                        found[f"{kind}: {name}"] = -tensor if name == "objective.alpha" else tensor.clone()
        record.append(found)

    federation = Federation(aggregators, schedule=schedule(stages), measure_batches=SAMPLED)
    done = simulate(module, data, federation, precision, keep)
    return record, done


def expected(hand: FDAM, stages: list[Written]) -> Iterator[dict[str, Tensor]]:
    for snapshot in hand.run(stages):
        found = {_fedlit(n): t for n, t in snapshot.x.items()} | snapshot.stats | {"objective.p": hand.p}
        if hand.scaffold:
            for kind, tensors in {"c": snapshot.c, **{f"c of {k}": c for k, c in snapshot.c_k.items()}}.items():
                found |= {f"{kind}: {_fedlit(n)}": t for n, t in tensors.items()}
        yield found


def agree(record, hand, stages, tolerance, local=frozenset()) -> None:
    rounds = list(expected(hand, stages))
    assert len(record) == len(rounds) == sum(s.rounds for s in stages)
    for number, (ours, theirs) in enumerate(zip(record, rounds, strict=True), 1):
        assert ours.keys() == theirs.keys()
        shared = {name: tensor for name, tensor in ours.items() if name.rpartition(": ")[2] not in local}
        assert_near(shared, theirs, tolerance, f"round {number}")


def _fedlit(name: str) -> str:
    return f"objective.{name}" if name in VARIABLES else name


def chosen(record: list[dict[str, Tensor]], stages: list[Written]):
    """The round whose model each stage returned, read from a run with a random output."""
    ends = list(itertools.accumulate(s.rounds for s in stages))

    def choose(stage: int) -> int:
        rounds, end = stages[stage].rounds, ends[stage]
        same = [
            r
            for r in range(rounds - 1)
            if torch.equal(record[end - 1]["head.weight"], record[end - rounds + r]["head.weight"])
        ]
        assert len(same) <= 1
        return same[0] if same else rounds - 1

    return choose


GAMMA = 0.4
CASES = {
    "NPA": ([NPA(GAMMA)], STEPWISE, {}),
    "CODA+": ([CODAPlus(GAMMA)], STAGES, {}),
    "CODA+, average": ([CODAPlus(GAMMA, "average")], STAGES, {"output": "average"}),
    "CODA": ([CODA(GAMMA)], STAGES, {"dual_from_sample": True}),
    "CODA, average": ([CODA(GAMMA, "average")], STAGES, {"dual_from_sample": True, "output": "average"}),
    "CODA, implicit": ([CODA(GAMMA, proximal="implicit")], STAGES, {"dual_from_sample": True, "implicit": True}),
    "CODA+, centre": ([CODAPlus(GAMMA, "centre")], STAGES, {"output": "centre"}),
    "CODASCA": ([CODASCA(GAMMA)], STAGES, {"scaffold": True}),
    "CODASCA, never": ([CODASCA(GAMMA, reset="never")], STAGES, {"scaffold": True, "reset": False}),
    "CODASCA, eta_g": ([CODASCA(GAMMA, 1.3)], STAGES, {"scaffold": True, "eta_g": 1.3}),
    "CODASCA, random": ([CODASCA(GAMMA, output="random")], DRAWN, {"scaffold": True, "output": "random"}),
    "CODASCA, average": ([CODASCA(GAMMA, output="average")], STAGES, {"scaffold": True, "output": "average"}),
    "CODASCA, extra batches": ([CODASCA(GAMMA, extra_batches=3)], STAGES, {"scaffold": True, "extra": 3}),
}
WITH_A_CLASS_LESS = ("CODA", "CODA+, average", "CODASCA, never")
LINEAR, PERCEPTRON = 0, 6
PRECISIONS = {"64-true": 1e-9, "32-true": 1e-4}


def compare(case, hidden, precision, data, **model) -> None:
    aggregators, stages, options = CASES[case]
    torch.manual_seed(3)
    module = Scorer(data.classes, hidden, **model)
    if precision == "64-true":
        module.double()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Scaffold or CODASCA: the schedule has a stage")
        record, _ = trajectory(module, data, aggregators, stages, precision)
    if options.get("output") == "random":
        choose = chosen(record, stages)
        assert any(choose(i) < stage.rounds - 1 for i, stage in enumerate(stages))
        options = options | {"choose": choose}
    data.setup()
    raw = {"score": lambda logits: logits} if model.get("score") == "raw" else {}
    margin = {"margin": model["margin"]} if "margin" in model else {}
    zeros = {"zeros": True} if model.get("start") == "zeros" else {}
    means = {"dual_of": mean_of_own} if model.get("dual_means") == "clients" else {}
    hand = transcription(module, data, gamma=GAMMA, **raw, **margin, **zeros, **means, **options)
    agree(record, hand, stages, PRECISIONS[precision])


@pytest.mark.parametrize("case", [case for case in CASES if case not in WITH_A_CLASS_LESS])
def test_every_round_equals_the_transcription(case):
    compare(case, PERCEPTRON, "64-true", Sites(TWO))


@pytest.mark.parametrize(("case", "hidden"), [("CODA", LINEAR), ("CODASCA, eta_g", PERCEPTRON)])
def test_every_round_equals_the_transcription_in_float32(case, hidden):
    compare(case, hidden, "32-true", Sites(TWO))


def test_every_round_equals_the_transcription_with_raw_scores_and_another_margin():
    compare("CODA", PERCEPTRON, "64-true", Sites(TWO), score="raw", margin=0.6, lr=LR)


@pytest.mark.parametrize("options", [{"start": "zeros"}, {"dual_means": "clients"}], ids=["zeros", "clients"])
def test_every_round_equals_the_transcription_whatever_the_start_and_the_means_of_the_dual(options):
    """CODA recomputes its dual from zeros too; means of the clients' means change its start and its trajectory."""
    compare("CODA", PERCEPTRON, "64-true", Sites(TWO_CLASSES, ("Edema", "Nodule")), **options)


@pytest.mark.parametrize("case", WITH_A_CLASS_LESS)
def test_every_round_equals_the_transcription_where_a_client_lacks_a_class(case):
    compare(case, PERCEPTRON, "64-true", Sites(TWO_CLASSES, ("Edema", "Nodule")))


@pytest.mark.parametrize("extra", [None, 2])
def test_what_fedbn_keeps_local_takes_no_part(extra):
    torch.manual_seed(3)
    module, data = Scorer(hidden=6).double(), Sites(TWO)
    local = frozenset(f"body.1.{n}" for n in ("weight", "bias", "running_mean", "running_var"))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Scaffold or CODASCA: the schedule has a stage")
        record, done = trajectory(module, data, [CODASCA(GAMMA, 1.3, extra_batches=extra), FedBN()], STAGES)
    data.setup()
    hand = transcription(module, data, gamma=GAMMA, scaffold=True, eta_g=1.3, local=local, extra=extra or 0)
    agree(record, hand, STAGES, 1e-9, local)
    for name, state in done.states.items():
        for key, tensor in done.buffers(state.stats).items():
            if key in local:
                torch.testing.assert_close(tensor, hand.kept[name][key], rtol=1e-9, atol=1e-9)
        kept = torch.cat([hand.kept[name][f"body.1.{n}"] for n in ("weight", "bias")])
        torch.testing.assert_close(state.w, kept, rtol=1e-9, atol=1e-9)
        assert (kept - torch.cat([torch.ones(6), torch.zeros(6)])).abs().max() > 1e-3


def test_the_random_output_is_one_of_the_stages_rounds_each_as_likely():
    flat = FlatModel(Scorer())
    algorithm, rounds, seeds = CODAPlus(0.1, "random"), 5, 800
    counts = [0] * rounds
    for seed in range(seeds):
        state = algorithm.server_state(flat.layout, flat.w)
        server = ServerState(flat.layout, flat.w.clone(), flat.stats.clone(), [state])
        for r in range(rounds):
            rnd = Round(7 + r, 1, 1.0, 2, "steps", seed, r == 0, r == rounds - 1)
            algorithm.on_round_start(state, server, rnd)
            server.w.fill_(r)
        algorithm.on_stage_end(state, server, rnd)
        counts[int(server.w[0])] += 1
    assert sum((n - seeds / rounds) ** 2 / (seeds / rounds) for n in counts) < 13.3  # 1% of chi-square with 4 degrees
