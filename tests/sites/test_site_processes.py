"""Sites as processes of their own: killed, stopped for a while, and gone with whoever has started them."""

import os
import time
from pathlib import Path

import pytest
from at_sites import Ended, assert_same
from runs import Place

pytestmark = pytest.mark.slow

OPTIONS = (
    "--data toys.ToyData --model toys.ToyNet --federation.rounds 6 --federation.schedule.window 4 "
    "--federation.schedule.unit steps --federation.aggregators='[Scaffold, FedBN]' --federation.checkpoint_every 2 "
    "--name one "
    "--federation.monitor train/loss --federation.monitor_mode max"
)


@pytest.fixture(scope="module")
def here(tmp_path_factory) -> Ended:
    path = tmp_path_factory.mktemp("here")
    command = Place(path, OPTIONS).fit()
    assert command.wait() == 0, command.output
    return Ended(path)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_site_that_is_killed_comes_back_and_nothing_changes(tmp_path, here):
    command = Place(tmp_path, OPTIONS).fit("--sites loopback:3 --callbacks+=awkward.SignalsASite --callbacks.signum 9")
    assert command.wait() == 0, command.output
    assert (tmp_path / "default/one/signalled.txt").exists()
    assert "round 3: site 'site-2'" in command.output
    assert "its process died and is being restarted" in command.output
    assert_same(Ended(tmp_path), here)


def test_a_site_that_hangs_is_left_out_and_back_later(tmp_path):
    """Its late reply is thrown away, and so is the state of that round."""
    faults = (
        "--federation.on_site_error skip --federation.deadline 3 --federation.eval_every 6 "
        "--callbacks+=awkward.SignalsASite --callbacks.signum 19"
    )
    command = Place(tmp_path, OPTIONS).fit(f"--sites loopback:3 {faults}")
    assert command.wait() == 0, command.output
    clients = [float(v) for _, key, v in Ended(tmp_path).kept.metrics() if key == "round/clients"]
    assert clients[:2] == [3, 3]
    assert clients[2] == 2
    assert clients[-1] == 3
    for number in (3, 4):
        assert f"round {number}: site 'site-2', client 'site-1' (train): no reply within the deadline" in command.output


def test_sites_end_with_their_server_and_go_on_with_the_next(tmp_path, here):
    place = Place(tmp_path, OPTIONS)
    first = place.fit(
        "--sites loopback:3 --logger awkward.Killer --logger.step 3 --callbacks+=awkward.SignalsASite "
        "--callbacks.signum 0"
    )
    assert first.wait() == -9, first.output
    pids = [int(word) for word in (tmp_path / "default/one/signalled.txt").read_text().split()]
    deadline = time.monotonic() + 20
    while any(map(alive, pids)):
        assert time.monotonic() < deadline, "a site outlives its server"
        time.sleep(0.05)
    second = place.fit("--sites loopback:3 --ckpt_path last")
    assert second.wait() == 0, second.output
    assert_same(Ended(tmp_path), here)
    assert len(pids) == 3
    assert os.getpid() not in pids
