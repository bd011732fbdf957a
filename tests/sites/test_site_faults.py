"""What goes wrong between a server and its sites: told in words, and with the numbers that the settings promise."""

import errno
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from at_sites import Answer, Ended, assert_same, dying, failing, greeted, site_info
from certificates import Authority, packed
from refusals import refused

import fedlit
from fedlit.core.errors import ConfigError
from fedlit.federation.session import Session
from fedlit.sites import preparation, process, roster, site, storage
from fedlit.sites.envelope import Envelope
from fedlit.sites.messages import REPLY, Hello, SiteInfo

OPTIONS = (
    "--federation.rounds 4 --federation.aggregators='[Scaffold, FedBN]' --federation.eval_every 2 "
    "--federation.monitor train/loss "
    "--federation.monitor_mode max"
)


def with_nan(envelope: Envelope, answer: Answer) -> bytes:
    reply = Envelope.from_bytes(answer(envelope.to_bytes()))
    reply.vectors["vectors/w"][3] = float("nan")
    return replace(reply, sha256="").to_bytes()


def flipped(envelope: Envelope, answer: Answer) -> bytes:
    """As a link that changes a bit."""
    content = bytearray(answer(envelope.to_bytes()))
    content[-1] ^= 1
    return bytes(content)


def half(envelope: Envelope, answer: Answer) -> bytes:
    content = answer(envelope.to_bytes())
    return content[: len(content) // 2]


Fault = Callable[[Envelope, Answer], bytes]


def failing_in_turn(*faults: Fault) -> Callable[[str, Envelope, Answer], bytes]:
    """The second site's part of each round goes wrong once, in another way."""
    left = dict(enumerate(faults))

    def between(name: str, envelope: Envelope, answer: Answer) -> bytes:
        index = envelope.content["asked"]["index"] if envelope.verb == "train" else None
        fault = left.pop(index, None) if name == "site-2" else None
        return fault(envelope, answer) if fault else answer(envelope.to_bytes())

    return between


@pytest.mark.parametrize("below", ["", pytest.param("skip --federation.quorum 3", marks=pytest.mark.slow)])
def test_repeated_until_it_goes_well(same_as_here, sites, below):
    """The same bits as if nothing had happened; also with ``skip``, if the others are below the quorum.

    In the last round the site is new without a word, as one that was started between two rounds.
    """
    sites.between = failing_in_turn(dying, with_nan, flipped, half, sites.anew)
    same_as_here(f"{OPTIONS} --federation.rounds 5 --federation.on_site_error {below or 'repeat'}")


def test_skip_is_the_simulation_of_that_cohort(fit, sites, monkeypatch, tmp_path):
    """SCAFFOLD's invariant, the means, and the state of the client that was left out."""
    sites.between = failing_in_turn(None, dying, with_nan)
    err = fit(f"{OPTIONS} --federation.on_site_error skip --federation.quorum 2", path="there").err
    for number in (2, 3):
        assert f"round {number}: site 'site-2', client 'site-1' (train): " in err
    assert err.count("continuing with 2 of 3") == 2
    planned = Session.round

    def without(session: Session, index: int):
        rnd = planned(session, index)
        names = ("site-0", "site-2") if index in (1, 2) else rnd.cohort
        return replace(rnd, cohort=names, participation=session.participation(names))

    monkeypatch.setattr(Session, "round", without)
    fit(OPTIONS, 0, "here")
    there, here = Ended(tmp_path / "there"), Ended(tmp_path / "here")
    assert [v for step, key, v in there.kept.metrics() if key == "round/clients"] == ["3.0", "2.0", "2.0", "3.0"]
    assert_same(there, here)


@pytest.mark.parametrize(
    ("fault", "times", "settings", "names"),
    [
        (flipped, 99, "repeat", ("their SHA-256 does not match", "on_site_error: skip")),
        (with_nan, 99, "skip --federation.quorum 3", ("only 2 of 3", "quorum is 3")),
        (with_nan, 1, "stop", ("its 'w' is not finite; fix it",)),
    ],
    ids=["a site that fails each time", "a quorum that is never reached", "stop"],
)
def test_a_failure_that_may_not_be_skipped_ends_the_run(fit, sites, fault, times, settings, names):
    sites.between = failing("site-2", 1, times, fault)
    fit(f"{OPTIONS} --federation.on_site_error {settings}", code=1).refused(
        "round 2: site 'site-2', client 'site-1' (train)", *names
    )


def hello(**fields) -> Envelope:
    return Envelope.of(REPLY, site_info(**fields))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"fedlit": "9.9"}, f"it has fedlit 9.9, and the server has {fedlit.__version__}; install the same"),
        ({"classes": ["Mass", "Nodule"]}, "expected classes among the run's Edema, Mass, found 'Nodule'"),
        ({"name": "site-1"}, "sites 'site-1' and 'site-2' both call themselves 'site-1': give each a different name"),
        ({"name": "other"}, "site 'site-2' calls itself 'other'"),
    ],
)
def test_a_site_that_does_not_fit_is_refused(fields, named):
    with refused(ConfigError, "site-2", named):
        greeted({"site-1": hello(name="site-1"), "site-2": hello(**{"name": "site-2"} | fields)}, ["Edema", "Mass"])


DAY, HOUR = 86400, 3600


@pytest.mark.parametrize(
    ("told", "asked", "warned"),
    [
        ({"time": 1.02 * HOUR}, 0, "its clock is 61 minutes ahead of the server's"),
        ({"time": -1.02 * HOUR}, 0, "its clock is 61 minutes behind the server's"),
        ({"time": -600}, -700, ""),  # the answer has waited for another site
        ({"time": -600}, -100, "its clock is 8 minutes behind the server's"),
        ({"until": 29 * DAY}, 0, "its certificate expires on "),
        ({"until": 31 * DAY}, 0, ""),
        ({"torch": "1.0"}, 0, f"has torch 1.0, and the server has {torch.__version__}: results agree"),
    ],
)
def test_what_is_odd_about_a_site_is_told(told, asked, warned, recwarn):
    now = time.time()
    usual = {"name": "north", "time": now, "until": None, "torch": torch.__version__}
    site_info = SimpleNamespace(**usual | {k: v if k == "torch" else now + v for k, v in told.items()})
    roster._warn(site_info, sent=now + asked)
    assert warned in "".join(str(warning.message) for warning in recwarn)
    assert len(recwarn) == bool(warned)


def test_a_certificate_that_ends_soon_is_told_once():
    with pytest.warns(UserWarning, match="site 'b': its certificate expires on ") as warned:
        greeted({"a": hello(name="a"), "b": hello(name="b", until=time.time() + 29 * DAY)})
    assert len(warned) == 1


def test_a_site_tells_when_its_certificate_ends(tmp_path):
    packed(tmp_path, authority := Authority(), own := authority.pair("north"), 8002)
    values = {"name": "north", "data": {"class_path": "toys.ToyData"}, "state": str(tmp_path / "state")}
    file = tmp_path / "local" / "fedlit-site.yaml"
    file.parent.mkdir()
    file.write_text(yaml.safe_dump(values))
    hello = Envelope.of("hello", Hello(fedlit.__version__, time.time(), [], 0))
    found = Envelope.from_bytes(process.answering(file)(hello.to_bytes())).message(SiteInfo)
    assert found.until == own.certificate.not_valid_after_utc.timestamp()


def test_another_version_is_refused_at_the_site_too(fit, monkeypatch):
    monkeypatch.setattr(site, "__version__", "9.9")
    fit("--federation.rounds 1", 2, code=1).refused("fedlit 9.9", fedlit.__version__)


def test_another_layout_is_told_with_what_differs(fit, monkeypatch):
    """The code of a model is another one at a site: same tensors, other roles."""
    read = site.read_plan

    def other(*given):
        made = read(*given)
        made.module.body[0].weight.requires_grad = False
        return made

    monkeypatch.setattr(site, "read_plan", other)
    fit("--federation.rounds 1", 2, code=1).refused("number of weights 483", "447")


def test_a_full_disk_at_a_site_is_told(fit, monkeypatch, tmp_path):
    def full(tensors, path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(storage, "write_tensors", full)
    fit("--federation.rounds 1", 2, code=1).refused("site 'site-1', client 'site-0' (train)", "No space left on device")
    assert not [p for p in tmp_path.rglob("*.pt") if "sites" in p.parts]


def test_a_site_whose_data_are_gone_says_so(fit, sites, monkeypatch):
    start, data = sites.start, {"class_path": "NIHChestXray14", "init_args": {"root": "/gone"}}

    def changed(name: str):
        sites.files[name].write_text(yaml.safe_dump(yaml.safe_load(sites.files[name].read_text()) | {"data": data}))
        return start(name)

    monkeypatch.setattr(sites, "start", changed)
    fit("--federation.rounds 1", 2, code=1).refused("site 'site-1'", "/gone")


@pytest.mark.slow
def test_images_that_vanish_while_it_trains_are_told(fit, monkeypatch):
    train = preparation.Worker.train

    def gone(worker, clients, down, rnd, *others):
        if rnd.index == 1:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "images.npy")
        return train(worker, clients, down, rnd, *others)

    monkeypatch.setattr(preparation.Worker, "train", gone)
    err = fit(OPTIONS, 2, code=1).err
    assert "round 2: site 'site-1', client 'site-0' (train): its data cannot be read: No such file" in err
    assert "(images.npy); check data in the site's own file" in err


@pytest.mark.slow
def test_a_state_that_is_gone_is_a_clear_refusal_and_fresh_state_goes_on(fit, sites, tmp_path):
    """The best model is that of the first round, whose state at the site is gone too; the states to come are not."""
    options = f"{OPTIONS} --federation.eval_every 1"
    fit(options)
    for file in tmp_path.glob("default/sites/site-2/*/*/*.pt"):
        file.unlink()
    more = f"{options} --federation.rounds 6 --ckpt_path last"
    err = fit(more, code=1).err
    assert "the state of client 'site-1' after round 4 is not in" in err
    assert "which has no states; restore it from a copy" in err
    batches = []

    def between(name, envelope, answer):
        reply = answer(envelope.to_bytes())
        if name == "site-2" and envelope.verb == "train":
            (pending,) = tmp_path.glob("default/sites/site-2/*/*/pending-*.pt")
            batches.append(int(torch.load(pending, weights_only=True)["batches"]))
        return reply

    sites.between = between
    fit(f"{more} --fresh_state site-2")
    assert batches == [2, 4]  # two steps a round: afresh, and then on
    assert len(Ended(tmp_path).states()) == 3


def test_serving_reads_the_file_once(sites, tmp_path, capsys):
    answer = process.answering(tmp_path / "none.yaml")
    reply = Envelope.from_bytes(answer(b""))
    assert reply.content["kind"] == "unfit"
    assert "none.yaml" in capsys.readouterr().err
    assert "none.yaml" not in reply.content["reason"]  # paths stay
