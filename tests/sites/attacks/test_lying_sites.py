"""A site that lies ends and steers nobody else's run: what it sends is checked whole, and it is named."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from at_sites import Ended, array, client_info, lying, lying_in_turn, of_its_client, said
from refusals import refused

from fedlit.federation.engines.scores import View
from fedlit.metrics.tally import Tally
from fedlit.sites.answers import read_scores
from fedlit.sites.envelope import Envelope, InvalidMessageError
from fedlit.sites.messages import FAILED, REPLY, ClientInfo, Evaluated, Failure

OPTIONS = "--federation.aggregators='[Scaffold, SurgicalHeads]' --data.clients 2 --data.labelled 2"


def w(change):
    return array("vectors/w", change)


ROUNDS = {
    "stats that are shorter": (array("vectors/stats", lambda v: v[:-1]), "its 'stats' has 7 values, expected 8"),
    "weights that are longer": (w(lambda v: np.append(v, v[:1])), "its 'w' has 339 values, expected 338 of 483"),
    "weights of another number": (
        said(whole={"w": 10**9}), "its 'w' has 338 values, expected 1,000,000,000 of 1,000,000,000"),
    "a mask weight of another length": (array("mask_weight", lambda v: v[:-1]), "its 'mask_weight' or its weight"),
    "a tiny mask weight": (array("mask_weight", lambda v: v * 1e-6), "its 'mask_weight' or its weight"),
    "a mask weight where it shares nothing": (
        array("mask_weight", lambda v: np.full_like(v, v.max())), "its 'mask_weight'"),
    "another weight": (said(weight=0.9), "its 'mask_weight' or its weight 0.9"),
    "double precision": (w(lambda v: v.astype("float64")), "its 'w' has type torch.float64, expected torch.float32"),
    "control variates of whole numbers": (
        array("vectors/0/c", lambda v: v.astype("int32")), "its '0/c' has type torch.int32"),
    "rows of classes that it lacks": (
        lambda r: said(whole={})(w(lambda v: np.ones(483, v.dtype))(r)),
        "its 'w' is not zero where the client shares nothing"),
    "infinity": (array("vectors/0/c", lambda v: v + np.inf), "its '0/c' is not finite"),
    "two infinities that cancel": (
        w(lambda v: np.concatenate([[np.inf, -np.inf], v[2:]]).astype("float32")), "its 'w' is not finite"),
    "a vector more": (lambda r: replace(r, vectors=r.vectors | {"vectors/v": r.vectors["vectors/w"]}), "it sends 'v'"),
    "a vector of no aggregator": (
        lambda r: replace(r, vectors=r.vectors | {"vectors/7/c": r.vectors["vectors/0/c"]}), "'7/c'"),
    "weights that are missing": (
        lambda r: replace(r, vectors={k: v for k, v in r.vectors.items() if k != "vectors/w"}), "'w' is missing"),
    "another client": (said(client="site-0"), "client: expected site-1, found site-0"),
    "more steps": (said(steps=10**9), "steps: expected 2, found 1000000000"),
    "more images": (said(examples=10**9), "found 1000000000"),
    "a report of text": (said(loss="low"), "a value that does not fit"),
}  # fmt: skip
EVALUATIONS = {
    "more images": (said(examples=10**9), "an evaluation of 1000000000 images, expected"),
    "labels of 7": (array("labels", lambda v: v * 7), "expected labels 0, 1 and NaN"),
    "scores of other classes": (lambda r: replace(r, shapes={"scores": (-1,)}), ""),
    "a kind that there is not": (said(kind="pickle"), "a value that does not fit"),
}


def test_each_lie_is_told_by_name_and_round_and_the_others_go_on_without_the_liar(fit, sites, tmp_path):
    lies = {"train": ROUNDS, "evaluate": EVALUATIONS}
    in_turn = {verb: [change for change, _ in rows.values()] for verb, rows in lies.items()}
    in_turn["evaluate"] = [None, *in_turn["evaluate"], None, None, said(data="0" * 32)]  # the first is before round 1
    sites.between = lying_in_turn(in_turn)
    options = f"{OPTIONS} --federation.on_site_error skip --federation.eval_every 2"
    err = fit(f"{options} --federation.rounds {len(ROUNDS)}", 2).err
    assert "Traceback" not in err
    warned = err.split("warning: ")
    for verb, rows in lies.items():
        for number, (lie, (_, words)) in enumerate(rows.items(), 1):
            what = f"round {number}" if verb == "train" else f"the evaluation after round {2 * number}"
            said_of_it = f"{what}: site 'site-2', client 'site-1' ({verb}): "
            (line,) = [line for line in warned if line.startswith(said_of_it)]
            assert words in line, lie
    changed = ": site 'site-2', client 'site-1': its data have changed;"
    assert [line.partition(changed)[0] for line in warned if changed in line] == [
        "the evaluation after round 14", "the evaluation after round 16"
    ]  # fmt: skip
    clients = [float(value) for _, key, value in Ended(tmp_path).kept.metrics() if key == "round/clients"]
    assert clients == [1] * len(ROUNDS)


def test_a_lie_of_a_measuring_round_ends_the_run(fit, sites):
    sites.between = lying("measure", lambda r: replace(r, vectors=r.vectors | {"vectors/w": r.vectors["mask_weight"]}))
    toys = "--model saddle_toys.Scorer --data saddle_toys.Sites"
    fit(f"--federation.rounds 2 {toys}", 2, code=1).refused("round 1", "site 'site-2'", "it sends 'w'")


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
    turned = w(lambda v: v * -50)
    sites.between = lying("train", turned, times=1, after=3)
    err = fit("--federation.rounds 4 --federation.eval_every 4", path="a").err
    assert err.count("the norm of its update is") == 1
    assert "site 'site-2', client 'site-1': the norm of its update is" in err
    assert "times that of its own past rounds" in err
    sites.between = lying("train", turned, times=1)
    assert "times that of the others in this round" in fit("--federation.rounds 1 --data.clients 4", 4, "b").err


def test_a_client_that_claims_nearly_all_images_is_named(fit, sites):
    sites.between = lying("hello", lambda r: replace(of_its_client(train=10**9, counts={})(r), vectors={}))
    _, out, err = fit("--federation.rounds 1", 2, code=1)
    assert "client 'site-1' of site-2 reports 1,000,000,000 of the 1,000,000,028 training images" in out
    assert "expected 1000000000" in err  # and it trained on others


def test_what_a_site_says_is_shown_escaped(fit, sites):
    failure = Failure("failed", "\x1b[2J\r\nround 1/1 all is well")
    sites.between = lying("train", lambda reply: Envelope.of(FAILED, failure))
    _, out, err = fit("--federation.rounds 1", 2, code=1)
    assert "\x1b[2J" not in out + err
    assert "\\x1b[2J\\r\\nround 1/1 all is well" in err


def test_an_older_ledger_is_told(fit, tmp_path):
    """The server has heard of more lines than there are."""
    options = "--federation.rounds 1 --data.clients 2"
    fit(options, 2)
    file = tmp_path / "default" / "sites" / "site-2" / "ledger.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:2]))
    err = fit(f"{options} --name two", 2).err
    assert "site 'site-2': its ledger is not the one that this server has seen" in err
    assert "site 'site-1': its ledger" not in err
    assert "its ledger" not in fit(f"{options} --name three", 2).err


def test_a_failure_that_was_mended_is_told(fit, sites):
    sites.between = lying("train", w(lambda v: v + np.nan), times=1)
    err = fit("--federation.rounds 1", 2).err
    told = "round 1: site 'site-2', client 'site-1' (train): its answer cannot be used: its 'w' is not finite"
    assert f"{told}; asking again (try 2 of 3)" in err


CLASSES = ("Edema", "Mass")
SCORES = torch.tensor([[3.0, -1.0], [1.0, 2.0], [-2.0, 0.5], [0.1, -3.0]])
LABELS = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0], [0.0, torch.nan]])
TOLD = client_info(train=4, val=4, test=None, counts={"val": [[2, 2], [2, 1]]})
VIEW = View("north", "north", "val")


def evaluated(kind: str, tensors: dict, told: ClientInfo = TOLD, may_score: bool = True):
    answer = Envelope.of(REPLY, Evaluated(4, {}, kind, "d", "own"), tensors)
    return read_scores(VIEW, answer, told, CLASSES, 4, may_score)[0]


def test_an_honest_evaluation_is_read():
    assert torch.equal(evaluated("scores", {"scores": SCORES, "labels": LABELS}).scores, SCORES)
    tally = Tally.of(SCORES, LABELS, CLASSES)
    assert evaluated("tally", vars(tally), may_score=False).tally.auroc.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    "change",
    [
        lambda t: {"positives": t["positives"] - 1},
        lambda t: {"positives": t["positives"].int()},
        lambda t: {"positives": t["positives"][:, :-1]},
        lambda t: {"negatives": t["negatives"] * 9},
        lambda t: {"positives": t["negatives"], "negatives": t["positives"]},
        lambda t: {"auroc": t["auroc"] - 0.5},
        lambda t: {"auroc": t["auroc"] * torch.nan},
        lambda t: {"auroc": t["auroc"].float()},
        lambda t: {"more": t["auroc"]},
    ],
)
def test_histograms_that_cannot_be_are_refused(change):
    tensors = vars(Tally.of(SCORES, LABELS, CLASSES))
    with refused(InvalidMessageError):
        evaluated("tally", tensors | change(tensors))


def test_scores_that_cannot_be_are_refused():
    for scores, labels, may_score in (
        (SCORES, 1 - LABELS, True),
        (SCORES[:, :1], LABELS, True),
        (SCORES.long(), LABELS, True),
        (SCORES, LABELS, False),
    ):
        with refused(InvalidMessageError):
            evaluated("scores", {"scores": scores, "labels": labels}, may_score=may_score)
