"""A site that lies ends and steers nobody else's run: what it sends is checked whole, and it is named."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from at_sites import Ended, lying, said
from refusals import refused

from fedlit.federation.engines.scores import View
from fedlit.metrics.tally import Tally
from fedlit.sites import roster
from fedlit.sites.answers import read_scores
from fedlit.sites.envelope import Envelope, InvalidMessageError
from fedlit.sites.messages import FAILED, REPLY, ClientInfo, Evaluated, Failure
from fedlit.sites.process import SitesInProcess
from fedlit.sites.transport import NoReply

OPTIONS = "--federation.rounds 4 --federation.aggregators='[Scaffold, SurgicalHeads]' --data.labelled 2"


def array(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Envelope], Envelope]:
    def changed(reply: Envelope) -> Envelope:
        return replace(reply, vectors=reply.vectors | {name: change(reply.vectors[name])})

    return changed


LIES = {
    "stats that are shorter": ("train", array("vectors/stats", lambda v: v[:-1]),
    "its 'stats' has 7 values, expected 8"),
    "weights that are longer": ("train", array("vectors/w", lambda v: np.append(v, v[:1])),
    "its 'w' has 339 values, expected 338 of 483"),
    "weights of another number": ("train", said(whole={"w": 10**9}),
    "its 'w' has 338 values, expected 1,000,000,000 of 1,000,000,000"),
    "statistics in place of weights": ("train", said(whole={"w": 8}), "its 'w' has 338 values, expected 8 of 8"),
    "squares that are longer": ("train", array("vectors/squares", lambda v: np.append(v, v[:1])), "its 'squares' has"),
    "a mask weight of another length": ("train", array("mask_weight", lambda v: v[:-1]),
    "its 'mask_weight' or its weight"),
    "a tiny mask weight": ("train", array("mask_weight", lambda v: v * 1e-6), "its 'mask_weight' or its weight"),
    "a negative mask weight": ("train", array("mask_weight", lambda v: -v), "its 'mask_weight' or its weight"),
    "a mask weight where it shares nothing": ("train", array("mask_weight", lambda v: np.full_like(v, v.max())),
    "its 'mask_weight'"),
    "whole numbers": ("train", array("vectors/w", lambda v: v.astype("int8")),
    "its 'w' has type torch.int8, expected torch.float32"),
    "double precision": ("train", array("vectors/w", lambda v: v.astype("float64")), "its 'w' has type torch.float64"),
    "control variates of whole numbers": ("train", array("vectors/0/c", lambda v: v.astype("int32")),
    "its '0/c' has type torch.int32"),
    "rows of classes that it lacks": (
        "train", lambda r: said(whole={})(array("vectors/w", lambda v: np.ones(483, v.dtype))(r)),
        "its 'w' is not zero where the client shares nothing"
    ),
    "infinity": ("train", array("vectors/0/c", lambda v: v + np.inf), "its '0/c' is not finite"),
    "two infinities that cancel": (
        "train", array("vectors/w", lambda v: np.concatenate([[np.inf, -np.inf], v[2:]]).astype("float32")),
        "its 'w' is not finite"
    ),
    "a vector more": ("train", lambda r: replace(r, vectors=r.vectors | {"vectors/v": r.vectors["vectors/w"]}),
    "it sends 'v'"),
    "a vector of no aggregator": ("train", lambda r: replace(r,
    vectors=r.vectors | {"vectors/7/c": r.vectors["vectors/0/c"]}), "'7/c'"),
    "weights that are missing": (
        "train", lambda r: replace(r, vectors={k: v for k, v in r.vectors.items() if k != "vectors/w"}),
        "'w' is missing"
    ),
    "another weight": ("train", said(weight=0.9), "its 'mask_weight' or its weight 0.9"),
    "another client": ("train", said(client="site-0"), "client: expected site-1, found site-0"),
    "more steps": ("train", said(steps=10**9), "steps: expected 2, found 1000000000"),
    "more images": ("train", said(examples=10**9), "found 1000000000"),
    "time that runs backwards": ("train", said(seconds=-5.0), "report.seconds: expected a number in [0, 1e9]"),
    "a report of text": ("train", said(loss="low"), "a value that does not fit"),
    "a measuring round of a vector more": (
        "measure", lambda r: replace(r, vectors=r.vectors | {"vectors/w": r.vectors["mask_weight"]}), "it sends 'w'"
    ),
    "an evaluation of more images": ("evaluate", said(examples=10**9), "an evaluation of 1000000000 images, expected"),
    "labels of 7": ("evaluate", array("labels", lambda v: v * 7), "expected labels 0, 1 and NaN"),
    "scores of other classes": ("evaluate", lambda r: replace(r, shapes={"scores": (-1,)}), ""),
    "a kind that there is not": ("evaluate", said(kind="pickle"), "a value that does not fit"),
}  # fmt: skip
FAST = ("stats that are shorter", "a tiny mask weight", "rows of classes that it lacks", "labels of 7", "a vector more")


@pytest.mark.parametrize("lie", [lie if lie in FAST else pytest.param(lie, marks=pytest.mark.slow) for lie in LIES])
def test_a_lie_is_told_by_name_and_round(fit, sites, lie):
    verb, change, words = LIES[lie]
    sites.between = lying(verb, change)
    measured = "--federation.rounds 2 --model saddle_toys.Scorer --data saddle_toys.Sites"
    err = fit(measured if verb == "measure" else OPTIONS, code=1).err
    assert "Traceback" not in err
    assert "site 'site-2'" in err
    assert words in err
    assert verb == "evaluate" or "round 1" in err


@pytest.mark.slow
@pytest.mark.parametrize("lie", ["stats that are shorter", "a vector more", "two infinities that cancel"])
def test_the_others_go_on_without_the_liar(fit, sites, tmp_path, lie):
    sites.between = lying(LIES[lie][0], LIES[lie][1])
    fit(f"{OPTIONS} --federation.on_site_error skip")
    assert [float(v) for _, key, v in Ended(tmp_path).kept.metrics() if key == "round/clients"] == [2, 2, 2, 2]


def test_a_vector_whose_size_nobody_knows_is_that_of_most(fit, sites):
    """The first to answer is not believed more than the others."""
    sites.between = lying("train", array("vectors/0/squares", lambda v: np.append(v, v)), name="site-1")
    options = "--federation.rounds 1 --federation.aggregators='[Scaffold]'"
    err = fit(options, code=1).err
    assert "sites do not send the same vectors: site 'site-1', client 'site-0': it sends 0/squares [4]" in err
    assert "site 'site-2'" not in err
    fit(f"{options} --data.clients 2", 2, code=1).refused(
        "site 'site-1', client 'site-0'",
        "it sends 0/squares [4]",
        "site 'site-2', client 'site-1'",
        "it sends 0/squares [2]",
    )  # nobody can say who is right


def test_an_update_that_is_far_beyond_the_usual_is_told(fit, sites):
    """Of three sites each is measured by its own past; of four and more by the others."""
    turned = array("vectors/w", lambda v: v * -50)
    sites.between = lying("train", turned, times=1, after=3)
    err = fit("--federation.rounds 5", path="a").err
    assert err.count("the norm of its update is") == 1
    assert "site 'site-2', client 'site-1': the norm of its update is" in err
    assert "times that of its own past rounds" in err
    sites.between = lying("train", turned, times=1)
    assert "times that of the others in this round" in fit("--federation.rounds 1 --data.clients 5", 5, "b").err


def of_its_client(**changes) -> Callable[[Envelope], Envelope]:
    """Change what a site reports about its client."""
    return lambda reply: said(clients=[reply.content["clients"][0] | changes])(reply)


def test_a_client_that_claims_nearly_all_images_is_named(fit, sites):
    sites.between = lying("hello", lambda r: replace(of_its_client(train=10**9, counts={})(r), vectors={}))
    _, out, err = fit("--federation.rounds 1", code=1)
    assert "client 'site-1' of site-2 reports 1,000,000,000 of the 1,000,000,028 training images" in out
    assert "expected 1000000000" in err  # and it trained on others


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "site-1\x1b[2J"}, "clients.0.name: expected a printable text"),
        ({"train": -3}, "clients.0.train: expected a number in [0, 1e12], found -3"),
        ({"train": 10**30}, "train: expected a number in "),
        ({"counts": {"train": [[1], [2]]}}, "counts of 'train' that do not fit its classes"),
        ({"counts": {"train": [[99, 1, 1], [1, 1, 1]]}}, "99 positives and 1 negatives of 14 images"),
        ({"counts": {"train": [[None, 1, 1], [1, 1, 1]]}}, "None positives and 1 negatives"),
        ({"classes": ["x"]}, "labels 'x', which is not one of its classes"),
        ({"surprise": 1}, "a value that does not fit"),
    ],
)
def test_what_a_site_tells_of_itself_is_checked(fit, sites, changes, words):
    sites.between = lying("hello", of_its_client(**changes))
    err = fit("--federation.rounds 1", 2, code=1).err
    assert "site 'site-2': " in err
    assert words in err
    assert "\x1b[2J" not in err


def test_what_a_site_says_is_shown_escaped(fit, sites):
    failure = Failure("failed", "\x1b[2J\r\nround 1/1 all is well")
    sites.between = lying("train", lambda reply: Envelope.of(FAILED, failure))
    _, out, err = fit("--federation.rounds 1", 2, code=1)
    assert "\x1b[2J" not in out + err
    assert "\\x1b[2J\\r\\nround 1/1 all is well" in err


def test_data_that_change_are_told(fit, sites):
    sites.between = lying("train", said(data="0" * 32), after=1)
    err = fit("--federation.rounds 4 --federation.eval_every 4", 2).err
    told = [line.partition(": site 'site-2', client 'site-1': its data have changed;") for line in err.splitlines()]
    assert [before for before, found, _ in told if found] == [
        "warning: round 2",
        "warning: the evaluation after round 4",
    ]


def test_an_older_ledger_is_told(fit, tmp_path):
    """The server has heard of more lines than there are."""
    fit("--federation.rounds 1", 2)
    file = tmp_path / "default" / "sites" / "site-2" / "ledger.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:2]))
    err = fit("--federation.rounds 1 --name two", 2).err
    assert "site 'site-2': its ledger is not the one that this server has seen" in err
    assert "site 'site-1': its ledger" not in err
    assert "its ledger" not in fit("--federation.rounds 1 --name three", 2).err


def test_a_site_that_never_says_hello_ends_in_words(fit, monkeypatch):
    collect = SitesInProcess.collect

    def silent(transport, tickets):
        for ticket, answer in collect(transport, tickets):
            yield ticket, NoReply("no reply within the deadline") if ticket.site == "site-2" else answer

    monkeypatch.setattr(roster, "TRIES", 2)
    monkeypatch.setattr(SitesInProcess, "collect", silent)
    fit("--federation.rounds 1", 2, code=1).refused("site 'site-2': no reply within the deadline")


def test_a_failure_that_was_mended_is_told(fit, sites):
    sites.between = lying("train", array("vectors/w", lambda v: v + np.nan), times=1)
    err = fit("--federation.rounds 1", 2).err
    told = "round 1: site 'site-2', client 'site-1' (train): its answer cannot be used: its 'w' is not finite"
    assert f"{told}; asking again (try 2 of 3)" in err


CLASSES = ("Edema", "Mass")
SCORES = torch.tensor([[3.0, -1.0], [1.0, 2.0], [-2.0, 0.5], [0.1, -3.0]])
LABELS = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0], [0.0, torch.nan]])
TOLD = ClientInfo("north", list(CLASSES), None, 4, 4, None, False, {"val": [[2, 2], [2, 1]]}, {}, "d")
VIEW = View("north", "north", "val")


def evaluated(kind: str, tensors: dict, told: ClientInfo = TOLD, may_score: bool = True):
    answer = Envelope.of(REPLY, Evaluated(4, {}, kind, "d", "own"), tensors)
    return read_scores(VIEW, answer, told, CLASSES, 4, may_score)[0]


def test_an_honest_evaluation_is_read():
    assert torch.equal(evaluated("scores", {"scores": SCORES, "labels": LABELS}).scores, SCORES)
    tally = Tally.of(SCORES, LABELS, CLASSES)
    assert evaluated("tally", vars(tally), may_score=False).tally.auroc.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("change", "mistake"),
    [
        (lambda t: {"positives": t["positives"] - 1}, (InvalidMessageError,)),
        (lambda t: {"positives": t["positives"].int()}, (InvalidMessageError,)),
        (lambda t: {"positives": t["positives"][:, :-1]}, (InvalidMessageError,)),
        (lambda t: {"negatives": t["negatives"] * 9}, (InvalidMessageError,)),
        (lambda t: {"positives": t["negatives"], "negatives": t["positives"]}, (InvalidMessageError,)),
        (lambda t: {"auroc": t["auroc"] - 0.5}, (InvalidMessageError,)),
        (lambda t: {"auroc": t["auroc"] * torch.nan}, (InvalidMessageError,)),
        (lambda t: {"auroc": t["auroc"].float()}, (InvalidMessageError,)),
        (lambda t: {"more": t["auroc"]}, (InvalidMessageError, "'tally'")),
    ],
)
def test_histograms_that_cannot_be_are_refused(change, mistake):
    tensors = vars(Tally.of(SCORES, LABELS, CLASSES))
    with refused(*mistake):
        evaluated("tally", tensors | change(tensors))


def test_scores_that_cannot_be_are_refused():
    for scores, labels, may_score, kind in (
        (SCORES, 1 - LABELS, True, InvalidMessageError),
        (SCORES[:, :1], LABELS, True, InvalidMessageError),
        (SCORES.long(), LABELS, True, InvalidMessageError),
        (SCORES, LABELS, False, InvalidMessageError),
    ):
        with refused(kind):
            evaluated("scores", {"scores": scores, "labels": labels}, may_score=may_score)
