"""Every value that a site sends has a range: what is outside ends no run without the site's name, and no later run."""

from dataclasses import fields, is_dataclass, replace
from types import UnionType
from typing import Annotated, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from at_sites import Ended, lying, said

from fedlit.core.ranges import Range
from fedlit.sites import messages
from fedlit.sites.envelope import Envelope
from fedlit.sites.messages import AnyFloat

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


def of_its_client(**changes):
    return lambda reply: said(clients=[reply.content["clients"][0] | changes])(reply)


def head(text):
    return lambda reply: replace(reply, ledger=text)


def vector(name, value):
    return lambda r: replace(
        r, vectors=r.vectors | {f"vectors/{name}": np.full_like(r.vectors[f"vectors/{name}"], value)}
    )


LIES = {
    "hello": (
        said(until=-1e12), said(until=1e12), said(time=-1.0), said(torch="\x1b[2J"), said(python=""),
        said(device="d" * 300), said(hides_below=-5), said(examples=2**62), said(classes=["c0", "c0", "c1"]),
        said(ledger="x"), head("x"), head(":"), head("١٢:" + "a" * 64), head("9" * 5000 + ":a"),
        of_its_client(data=""), of_its_client(data="d" * 3000), of_its_client(scheme=["\n"]),
        of_its_client(organisations={"else": ["a"]}), of_its_client(groups={"": ["F"]}),
        of_its_client(counts={"../x": [[1], [2]]}), of_its_client(val=-1), of_its_client(test=2**41),
    ),
    "prepare": (said(fingerprint=""), said(parameters=-1), said(frozen="\x1b[2J")),
    "train": (
        head("x"), said(weight=-1.0), said(loss=-1e30), said(loss=float("nan")), said(loss=float("inf")),
        said(rates=[float("nan")]), said(rates=[-1.0]), said(rates=[1e300]), said(seconds=-1.0), said(bytes_up=-1),
        said(logged={"x\n1,val/auroc_macro,1": 1.0}), said(logged={"": 1.0}), said(logged={"a": 1e30}),
        said(logged={"a": float("-inf")}), said(error="e" * 3000), said(still="s" * 3000), said(data="\x1b[2J"),
        vector("w", 1e37), vector("w", 1e3), vector("stats", 1e30), vector("squares", 1e30),
        lambda r: replace(r, verb="evaluate"), lambda r: replace(r, shapes={"vectors/w": (1,) * 2000 + (483,)}),
        lambda r: Envelope("failed", {"kind": "refused" * 2000, "reason": "x"}),
        lambda r: Envelope("failed", {"kind": "failed", "reason": "x" * 5000}),
    ),
    "evaluate": (head(":"), said(examples=-1), said(logged={"loss": -1e30}), said(data="")),
}  # fmt: skip
EACH = [(verb, number) for verb, lies in LIES.items() for number in range(len(lies))]


@pytest.mark.parametrize(("verb", "number"), EACH)
def test_a_value_out_of_range_ends_in_words_that_name_the_site(fit, sites, verb, number):
    sites.between = lying(verb, LIES[verb][number])
    printed = fit("--federation.rounds 1", 2, code=1)
    assert "site 'site-2'" in printed.err
    assert "Traceback" not in printed.err
    assert "\x1b" not in printed.out + printed.err


@pytest.mark.parametrize("text", ["x", ":", "9" * 5000 + ":a", "5:\x1b[2J"])
def test_a_ledger_of_no_form_harms_no_later_run(fit, sites, text):
    sites.between = lambda site, envelope, answer: (
        replace(Envelope.from_bytes(answer(envelope.to_bytes())), ledger=text).to_bytes()
        if site == "site-2" else answer(envelope.to_bytes())
    )  # fmt: skip
    fit("--federation.rounds 1 --name liar", 2, code=1).refused("site 'site-2'", "ledger")
    sites.between = None
    fit("--federation.rounds 1 --name honest", 2)


def test_a_file_of_heads_that_an_earlier_run_has_spoilt_is_read(fit, tmp_path):
    fit("--federation.rounds 1", 2)
    (tmp_path / "default" / "sites" / "ledgers.json").write_text('{"site-1": "x", "site-2": ["5"]}')
    fit("--federation.rounds 1 --name two", 2)


def test_the_others_go_on_without_a_site_whose_weights_are_huge(fit, sites, tmp_path):
    sites.between = lying("train", vector("w", 1e37))
    fit("--federation.rounds 2 --federation.on_site_error skip")
    assert [float(v) for _, key, v in Ended(tmp_path).kept.metrics() if key == "round/clients"] == [2, 2]


def test_a_loss_that_steers_the_choice_of_the_best_round_is_named(fit, sites):
    sites.between = lying("train", said(loss=-1e5), times=1)
    err = fit("--federation.rounds 3 --federation.monitor train/loss").err
    assert "site 'site-2', client 'site-1': its loss is -1e+05" in err
    assert err.count("its loss is") == 1


def test_an_update_beyond_the_model_is_named_in_the_first_round(fit, sites):
    sites.between = lying("train", vector("w", 1.0), times=1)
    err = fit("--federation.rounds 1", 2).err
    assert "site 'site-2', client 'site-1': the norm of its update is" in err
    assert "times that of the model" in err
