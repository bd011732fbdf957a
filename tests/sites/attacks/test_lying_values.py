"""Every value that a site sends has a range: what is outside ends no run without the site's name, and no later run."""

from dataclasses import fields, is_dataclass, replace
from types import UnionType
from typing import Annotated, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from at_sites import Ended, array, client_info, greeted, lying, lying_in_turn, of_its_client, said, site_info
from refusals import refused

from fedlit.core.errors import ConfigError
from fedlit.core.ranges import Range
from fedlit.sites import messages
from fedlit.sites.envelope import Envelope
from fedlit.sites.messages import REPLY, AnyFloat
from fedlit.sites.process import SitesInProcess
from fedlit.sites.roster import gather
from fedlit.sites.transport import NoReply

ANSWERS = (
    messages.SiteInfo, messages.Prepared, messages.Started, messages.Sent, messages.Evaluated, messages.Failure,
    messages.Done,
)  # fmt: skip


def leaves(kind, where):
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (list, dict, Union, UnionType):
        for each in inner:
            yield from leaves(each, where)
    elif is_dataclass(kind):
        hints = get_type_hints(kind, include_extras=True)
        for each in fields(kind):
            yield from leaves(hints[each.name], f"{kind.__name__}.{each.name}")
    else:
        yield where, kind


@pytest.mark.parametrize("answer", ANSWERS)
def test_each_value_of_an_answer_has_a_range(answer):
    for where, kind in leaves(answer, ""):
        ranged = get_origin(kind) is Annotated and any(isinstance(each, Range) for each in get_args(kind)[1:])
        assert ranged or kind in (bool, type(None), AnyFloat) or get_origin(kind) is Literal, where


def head(text):
    return lambda reply: replace(reply, ledger=text)


def vector(name, value):
    return array(f"vectors/{name}", lambda v: np.full_like(v, value))


GREETINGS = [
    (said(until=-1e12), "until"), (said(until=1e12), "until"), (said(time=-1.0), "time"),
    (said(torch="\x1b[2J"), "torch: expected a printable text"), (said(python=""), "python"),
    (said(device="d" * 300), "device"), (said(hides_below=-5), "hides_below"), (said(examples=2**62), "examples"),
    (said(classes=["c0", "c0", "c1"]), "named twice"), (said(ledger="x"), "ledger"), (head("x"), "ledger"),
    (head(":"), "ledger"), (head("١٢:" + "a" * 64), "ledger"), (head("9" * 5000 + ":a"), "ledger"),
    (of_its_client(data=""), "data"), (of_its_client(scheme=["\n"]), "scheme"),
    (of_its_client(name="site-1\x1b[2J"), "clients.0.name: expected a printable text"),
    (of_its_client(organisations={"else": ["a"]}), ""), (of_its_client(groups={"": ["F"]}), ""),
    (of_its_client(counts={"../x": [[1], [2]]}), ""), (of_its_client(test=2**41), "test: expected a number in "),
    (of_its_client(train=-3), "clients.0.train: expected a number in [0, 1e12], found -3"),
    (of_its_client(train=10**30), "train: expected a number in "),
    (of_its_client(counts={"train": [[1], [2]]}), "counts of 'train' that do not fit its classes"),
    (of_its_client(counts={"train": [[99, 1], [1, 1]]}), "99 positives and 1 negatives of 20 images"),
    (of_its_client(counts={"train": [[None, 1], [1, 1]]}), "None positives and 1 negatives"),
    (of_its_client(classes=["x"]), "labels 'x', which is not one of its classes"),
    (of_its_client(surprise=1), "a value that does not fit"),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*asking again who it is")
@pytest.mark.parametrize(("change", "words"), GREETINGS)
def test_what_a_site_tells_of_itself_is_checked(change, words):
    honest = Envelope.of(REPLY, site_info("site-2", client_info("site-1")))
    greeted({"site-2": honest})
    with refused(ConfigError, "site 'site-2': ", words) as error:
        greeted({"site-2": replace(change(honest), sha256="")})
    assert "\x1b" not in str(error.value)


@pytest.mark.filterwarnings("ignore:.*asking again who it is")
def test_a_site_that_never_says_hello_ends_in_words(monkeypatch):
    late = NoReply("no reply within the deadline")
    monkeypatch.setattr(SitesInProcess, "collect", lambda transport, tickets: ((each, late) for each in tickets))
    with refused(ConfigError, "site 'site-2': no reply within the deadline"):
        gather(SitesInProcess({"site-2": None}), [])


LIES = {
    "prepare": [said(fingerprint=""), said(parameters=-1), said(frozen="\x1b[2J")],
    "train": [
        head("x"), said(weight=-1.0), said(loss=-1e30), said(loss=float("nan")), said(loss=float("inf")),
        said(rates=[float("nan")]), said(rates=[-1.0]), said(rates=[1e300]), said(seconds=-1.0), said(bytes_up=-1),
        said(logged={"x\n1,val/auroc_macro,1": 1.0}), said(logged={"": 1.0}), said(logged={"a": 1e30}),
        said(logged={"a": float("-inf")}), said(error="e" * 3000), said(still="s" * 3000), said(data="\x1b[2J"),
        vector("w", 1e37), vector("w", 1e3), vector("stats", 1e30), vector("squares", 1e30),
        lambda r: replace(r, verb="evaluate"), lambda r: replace(r, shapes={"vectors/w": (1,) * 2000 + (483,)}),
        lambda r: Envelope("failed", {"kind": "refused" * 2000, "reason": "x"}),
        lambda r: Envelope("failed", {"kind": "failed", "reason": "x" * 5000}),
    ],
    "evaluate": [head(":"), said(examples=-1), said(logged={"loss": -1e30}), said(data="")],
}  # fmt: skip


def test_each_value_out_of_range_is_told_with_the_site_and_the_others_go_on_without_it(fit, sites, tmp_path):
    sites.between = lying_in_turn(LIES)
    rounds = len(LIES["train"]) + len(LIES["prepare"])
    options = "--data.clients 2 --federation.on_site_error skip --federation.eval_every 3"
    _, out, err = fit(f"{options} --federation.rounds {rounds}", 2)
    for verb, lies in LIES.items():
        told = [line for line in err.splitlines() if "site 'site-2'" in line and f"({verb}): its " in line]
        assert len(told) == len(lies), told
        assert [line for line in told if not line.endswith("; continuing with 1 of 2")] == []
    assert "\x1b" not in out + err
    clients = [float(value) for _, key, value in Ended(tmp_path).kept.metrics() if key == "round/clients"]
    assert clients[-1] == 2
    assert clients.count(1) == len(LIES["train"]) + 2  # one of the lies about a preparation was in an evaluation


def test_a_ledger_of_no_form_harms_no_later_run(fit, sites):
    sites.between = lying("hello", head("9" * 5000 + ":a"))
    fit("--federation.rounds 1 --name liar", 2, code=1).refused("site 'site-2'", "ledger")
    sites.between = None
    fit("--federation.rounds 1 --name honest", 2)


def test_a_file_of_heads_that_an_earlier_run_has_spoilt_is_read(fit, tmp_path):
    (folder := tmp_path / "default" / "sites").mkdir(parents=True)
    (folder / "ledgers.json").write_text('{"site-1": "x", "site-2": ["5"]}')
    fit("--federation.rounds 1", 2)


def test_a_loss_that_steers_the_choice_of_the_best_round_is_named(fit, sites):
    sites.between = lying("train", said(loss=-1e5), times=1)
    err = fit("--federation.rounds 2 --federation.monitor train/loss", 2).err
    assert "site 'site-2', client 'site-1': its loss is -1e+05" in err
    assert err.count("its loss is") == 1


def test_an_update_beyond_the_model_is_named_in_the_first_round(fit, sites):
    sites.between = lying("train", vector("w", 1.0), times=1)
    err = fit("--federation.rounds 1", 2).err
    assert "site 'site-2', client 'site-1': the norm of its update is" in err
    assert "times that of the model" in err
