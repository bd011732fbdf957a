"""A disk that takes no more: what is full is said, and the last checkpoint is there to go on from."""

import errno
import resource
import time
from pathlib import Path

import pytest
from refusals import raising
from runs import Kept, assert_same_run

from fedlit.core.checkpoints import checkpoint
from fedlit.federation.callbacks import Callback
from fedlit.tracking.base import MetricsFile

RUN = (
    "fit --data toys.ToyData --model awkward.WideNet --federation.workers 1 --federation.rounds 3 --name run "
    "--federation.checkpoint_every 1 --logger false"
)
ROUND = 1


class FullAfter(Callback):
    """Lets no file grow beyond 16 KiB once a round has begun, as a quota does."""

    def on_round_start(self, state) -> None:
        """Set the limit, once the checkpoint of the round before is there: it is written while this one trains."""
        if state.done == ROUND:
            deadline = time.monotonic() + 60
            while checkpoint.find(state.run.checkpoints, "last").name != f"round-{ROUND:06d}":
                assert time.monotonic() < deadline
                time.sleep(0.01)
            resource.setrlimit(resource.RLIMIT_FSIZE, (2**14, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


@pytest.fixture
def unlimited():
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, before)
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_checkpoint_that_finds_no_room(tmp_path, monkeypatch, fedlit_cli, unlimited):
    monkeypatch.chdir(tmp_path)
    code, out, err = fedlit_cli(f"{RUN} --callbacks+=test_full_disk.FullAfter")
    unlimited()
    kept = Kept(Path("runs/default/run"))
    assert code == 1
    assert "runs/default/run: cannot be written: File too large" in err
    assert "MiB are free in runs/default/run" in err
    assert f"--ckpt_path runs/default/run; {kept.last} is kept" in err
    assert "inline_container" not in out + err
    assert kept.rounds[-1] == ROUND
    assert not [*kept.path.glob("checkpoints/.writing*")]
    assert fedlit_cli(f"{RUN} --ckpt_path runs/default/run")[0] == 0
    assert fedlit_cli(RUN.replace("--name run", "--name whole"))[0] == 0
    assert_same_run(kept, Kept(Path("runs/default/whole")))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
def test_metrics_that_find_no_room(tmp_path, monkeypatch, fedlit_cli, number):
    """Another error is left alone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(MetricsFile, "append", raising(OSError(number, "no room")))
    if number == errno.EACCES:
        with pytest.raises(OSError, match="no room"):
            fedlit_cli(RUN)
    else:
        fedlit_cli(RUN).refused("runs/default/run")
