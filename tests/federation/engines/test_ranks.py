"""The fabric engine: two ranks against one process, the ways of starting them, and how they end together."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from awkward import Counting
from engine_rounds import everything, played
from refusals import raising, refused
from runs import TESTS, Kept, Place, assert_same_run, context, execute, free_port, rank_environments, wait_until
from toys import ToyData, ToyNet

import fedlit
from fedlit.aggregators import FedBN, FedProx, LocalSGDAM, Scaffold
from fedlit.core.errors import TrainingError
from fedlit.core.fabric import launch, make_fabric
from fedlit.federation.assembly import assemble
from fedlit.federation.engines.base import Engine
from fedlit.federation.engines.ranks import FabricEngine
from fedlit.federation.evaluation import client_views, views_beyond
from fedlit.federation.federation import Federation
from fedlit.schedules import ConstantSchedule

CASES = {
    "all": lambda: Federation([Scaffold(), FedProx(0.3)], rounds=3),
    "FedBN": lambda: Federation([FedBN(), Scaffold()], rounds=3, schedule=ConstantSchedule(3, "steps")),
    "momenta": lambda: Federation([FedBN(), LocalSGDAM()], rounds=3, schedule=ConstantSchedule(3, "steps")),
    "idle ranks": lambda: Federation([Counting(), Scaffold(), FedProx(0.3)], rounds=3, participation=0.25),
}
"""In the last one a single client trains in a round, so that one rank always has nothing to do."""

TOLERANCE = {"32-true": 1e-6, "64-true": 1e-12}
PLAYED = [*((case, "64-true") for case in CASES), ("all", "32-true")]


def play(precision: str, federation: Federation) -> dict[str, torch.Tensor]:
    """Three rounds and an evaluation: the server's tensors, this process's client states, all scores."""
    fabric = make_fabric("cpu", precision=precision)
    launch(fabric)
    torch.manual_seed(2)
    federation.workers = 1
    session = assemble(federation, ToyNet(), ToyData(clients=4), fabric)
    server = played(session, federation.rounds)
    tensors, down = everything(session, server), session.broadcast(server, session.round(0))
    beyond = views_beyond(session.data, session.personal, list(session.clients), "test", "validation_step")
    views = client_views(session.data, "val") + [view for views in beyond.values() for view in views]
    for scores in session.engine.evaluate(views, down):
        tensors[f"scores/{scores.view.client}/{scores.view.part}"] = scores.scores.double()
    return tensors


def play_on_rank(environment: dict[str, str], path: str) -> None:
    """One of two processes: plays every case in both precisions and saves what it got."""
    os.environ |= environment
    torch.set_num_threads(1)
    reductions = []
    plain = dist.all_reduce

    def counted(tensor, *args, **kwargs):
        reductions.append(tensor.numel())
        return plain(tensor, *args, **kwargs)

    dist.all_reduce = counted
    results = {}
    for case, precision in PLAYED:
        reductions.clear()
        results[f"{precision} {case}"] = play(precision, CASES[case]())
        results[f"{precision} {case}"]["reductions"] = torch.tensor(reductions)
    torch.save(results, path)


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory) -> list[dict]:
    """Results of each of two ranks, in every case."""
    folder = tmp_path_factory.mktemp("ranks")
    processes = [
        context().Process(target=play_on_rank, args=(environment, str(folder / environment["RANK"])))
        for environment in rank_environments()
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    return [torch.load(folder / f"{r}", weights_only=True) for r in range(2)]


@pytest.mark.parametrize(("case", "precision"), PLAYED)
def test_two_ranks_agree_with_one_process(two_ranks, precision, case):
    ranks = [dict(rank[f"{precision} {case}"]) for rank in two_ranks]
    vectors = [rank.pop("reductions") for rank in ranks]
    alone = play(precision, CASES[case]())
    states = [{name.split("/")[0] for name in rank if name.startswith("site-")} for rank in ranks]
    assert not states[0] & states[1]
    if case == "idle ranks":
        cohorts = sum(int(t) for rank in ranks for name, t in rank.items() if name.endswith("/0/rounds"))
        assert cohorts == 3
    else:
        assert states == [{"site-0", "site-2"}, {"site-1", "site-3"}]
    assert ranks[0].keys() | ranks[1].keys() == alone.keys()
    worst = 0.0
    for name, expected in alone.items():
        for rank in ranks:
            if name in rank:
                assert rank[name].dtype == expected.dtype
                scale = float(expected.abs().max()) if expected.numel() else 0.0
                off = float((rank[name] - expected).abs().max()) if expected.numel() else 0.0
                worst = max(worst, off / scale if scale else off)
    assert worst <= TOLERANCE[precision]
    for name in ("w", "stats"):
        assert torch.equal(ranks[0][name], ranks[1][name])
    # one all-reduce a round, of everything at once
    assert [len(v) for v in vectors] == [3, 3]
    assert vectors[0].min() > alone["w"].numel() + alone["stats"].numel()
    assert torch.equal(*vectors)


TOYS = (
    "--data toys.ToyData --data.clients 4 --model toys.ToyNet --federation.rounds 3 --name run "
    "--federation.aggregators+=Scaffold --federation.aggregators+=FedBN"
)


FABRIC = """
import os, sys
from lightning.fabric.cli import _main
sys.argv[0] = "fabric"
os.chdir(sys.argv.pop(1))
_main()
"""
"""The command `fabric`, which imports PyTorch only to start other processes."""


@pytest.mark.slow
def test_started_by_itself_and_by_fabric_run(tmp_path, fedlit_cli):
    """Two ways of starting two ranks, one way of starting one process: the same run. `fabric run` is torchrun."""
    fedlit_cli(f"fit {TOYS} --logger false --federation.workers 1 --run_dir {tmp_path}/alone").succeeded()
    options = f"{TOYS} --fabric.accelerator cpu --logger false --run_dir".split()
    words = f"run --devices 2 --accelerator cpu --main-port {free_port()}".split()
    program = Path(fedlit.__file__).with_name("__main__.py")
    fabric = execute(FABRIC, tmp_path, TESTS, *words, program, "fit", *options, tmp_path / "fabric")
    itself = subprocess.run(
        [sys.executable, "-m", "fedlit", "fit", "--fabric.devices", "2", *options, str(tmp_path / "itself")],
        cwd=TESTS,
        env={k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT")},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert itself.returncode == 0, itself.stderr[-2000:]
    said = {"itself": itself.stdout, "fabric": fabric.succeeded(250)}
    first = Kept(tmp_path / "itself/default/run")
    single = Kept(tmp_path / "alone/default/run")
    assert first.rounds == single.rounds
    for name, tensor in single.tensors().items():
        torch.testing.assert_close(first.tensors()[name], tensor, rtol=1e-5, atol=1e-6)
    for way, output in said.items():
        assert "2 ranks" in output
        assert output.count("round 1/3") == 1
        assert output.count("run directory:") == 1
        assert [p.name for p in (tmp_path / way / "default").iterdir()] == ["run"]
        assert_same_run(Kept(tmp_path / way / "default/run"), first)
    keys = [row[:2] for row in first.metrics()]
    assert keys == [row[:2] for row in single.metrics()]
    assert len(set(keys)) == len(keys)


def test_an_error_is_raised_on_all_ranks(monkeypatch):
    monkeypatch.setattr(Engine, "run", raising(TrainingError("client 'site-1': the loss is nan")))
    engine = object.__new__(FabricEngine)
    engine._own, engine._gather = set(), lambda report: [report, report]
    with refused(TrainingError, "'site-1'"):
        engine.run([], None, None)


def test_more_processes_than_clients(tmp_path):
    ranks = Place(tmp_path, "--data toys.ToyData --data.clients 1 --model toys.ToyNet").ranks()
    assert [rank.wait() for rank in ranks] == [1, 1]
    for rank in ranks:
        assert "found 2 processes for 1 clients" in rank.output
        assert "lower fabric.devices" in rank.output
        assert "Traceback" not in rank.output
    assert not list(tmp_path.glob("default/*/checkpoints"))


@pytest.mark.parametrize(
    ("what", "words"),
    [("nan", "client 'site-1', round 1, local step 4: the loss is nan"), ("raise", "this client has had enough")],
)
def test_trouble_on_one_rank_stops_both(tmp_path, what, words):
    """site-1 lives on rank 1; rank 0 tells the user, and both end."""
    options = (
        f"--data toys.ToyData --model awkward.Stumbling --model.what {what} --name run --logger awkward.StatusFile"
    )
    first, second = Place(tmp_path, options).ranks()
    assert (first.wait(), second.wait()) == (1, 0)
    assert words in first.output
    kept = Kept(tmp_path / "default/run")
    assert kept.rounds == [0]
    assert (kept.path / "status.txt").read_text() == "FAILED"


@pytest.mark.slow
def test_a_signal_to_one_rank_stops_both_and_the_run_can_be_resumed(tmp_path):
    options = (
        "--data toys.ToyData --model awkward.Slow --federation.rounds 30 --name run "
        "--federation.aggregators+=Scaffold --federation.checkpoint_every 1 --logger awkward.StatusFile"
    )
    place = Place(tmp_path, options)
    first, second = place.ranks()
    kept = place.run("run")
    assert wait_until(lambda: kept.rounds and max(kept.rounds) >= 2, first, pause=0.01), first.output
    os.kill(second.process.pid, signal.SIGTERM)
    assert (first.wait(), second.wait()) == (128 + signal.SIGTERM, 0)
    assert (kept.path / "status.txt").read_text() == "KILLED"
    stopped = max(kept.rounds)
    assert 2 <= stopped < 30
    again = place.ranks(f"--ckpt_path last --federation.rounds {stopped + 2}")
    whole = Place(tmp_path / "whole", options).ranks(f"--federation.rounds {stopped + 2}")
    assert [command.wait() for command in again + whole] == [0, 0, 0, 0]
    assert_same_run(kept, Kept(tmp_path / "whole/default/run"))
