"""What a site allows holds whatever the server asks, and what leaves it is written down there."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from at_sites import Ended
from refusals import refused

import fedlit
from fedlit.core.errors import ConfigError
from fedlit.sites.configuration import ServerSettings
from fedlit.sites.envelope import Envelope
from fedlit.sites.messages import FAILED, End
from fedlit.sites.own_data import read_settings
from fedlit.sites.policy import Floors, Leaves, Limits, Policy
from fedlit.sites.process import answering

OWN = {"allow": ["toys.ToyNet"], "floors": None}
"""The class of the toys, whose clients are smaller than any floor."""

RULES = {
    "verbs": ({"verbs": ["prepare", "evaluate"]}, "(train): verbs: expected one of prepare, evaluate, found 'train'"),
    "vectors": (
        {"leaves": {"vectors": ["w", "squares"]}},
        "(train): leaves.vectors: expected names that match w, squares, found 'stats'",
    ),
    "rounds": ({"rounds": 2}, "has answered for 2 rounds in 30 days, over all runs; rounds allows 2"),
    "configs": ({"configs": ["0" * 64]}, "is not approved"),
}


def test_a_refusal_is_told_in_words_and_the_others_go_on_without_it(fit, sites, tmp_path):
    names = [f"site-{number}" for number in range(2, 2 + len(RULES))]
    sites.rules = {name: OWN | policy for name, (policy, _) in zip(names, RULES.values(), strict=True)}
    err = fit("--data.clients 6 --federation.rounds 3 --federation.on_site_error skip", 6).err
    for name, (_, said) in zip(names, RULES.values(), strict=True):
        assert any(f"site '{name}'" in line and said in line for line in err.splitlines())
    assert [v for _, key, v in Ended(tmp_path).kept.metrics() if key == "round/clients"][-1] == "2.0"


def test_a_class_that_a_site_does_not_allow_ends_the_run_before_it_begins(fit, sites, tmp_path):
    sites.rules["site-2"] = OWN | {"allow": []}
    advice = "to allow it, the site can write allow: [toys.ToyNet] under policy"
    printed = fit("--federation.rounds 3 --federation.on_site_error skip", 2, code=1)
    printed.refused("site 'site-2'", "its policy does not allow toys.ToyNet", advice)
    assert not (tmp_path / "default" / "one").exists()


def test_an_approved_configuration_is_taken(fit, sites, tmp_path):
    """Its hash is that which the refusal names."""
    sites.rules["site-1"] = OWN | {"configs": ["0" * 64]}
    err = fit("--federation.rounds 1", 2, "a", code=1).err
    digest = err.rpartition("with the SHA-256 ")[2][:64]
    sites.rules["site-1"] = OWN | {"configs": [digest]}
    fit("--federation.rounds 1", 2, "b")
    approved = [
        json.loads(line)["config"]
        for line in (tmp_path / "b/default/sites/site-1/ledger.jsonl").read_text().splitlines()
    ]
    assert set(approved) == {"", digest}
    fit("--federation.rounds 1 --model.lr 0.2", 2, "c", code=1).refused("not approved")


@pytest.mark.parametrize(
    ("kind", "keys", "words"),
    [
        (Policy, {"verbs": ["train", "copy"]}, "'copy'"),
        (Policy, {"rounds": -1}, "found -1"),
        (Leaves, {"counts_below": -1}, "leaves.counts_below"),
        (Floors, {"examples": 0}, "examples"),
        (Limits, {"seconds": 0}, "seconds"),
    ],
)
def test_rules_that_mean_nothing_are_refused(kind, keys, words):
    with refused(ConfigError, words):
        kind(**keys)


SITE = {"name": "a", "data": {"class_path": "toys.ToyData"}, "state": "state"}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"name": " "}, "name: "),
        ({"share": "4 of 3"}, "'4 of 3'"),
        ({"share": "all"}, "'all'"),
        ({"policy": {"verb": []}}, "verb"),
        ({"data": {"class_path": "toys.ToyNet"}}, "ToyNet"),
        ({"state": None}, "state"),
        ({"state": "${env:ABSENT_}/x"}, "environment variable ABSENT_"),
        ({"policy": {"floors": {"whole": None}}}, "Floors.whole: expected True or False"),
        ({"policy": {"limits": {"memory": None}}}, "Limits.memory"),
        ({"policy": {"verbs": None}}, "Policy.verbs"),
    ],
)
def test_mistakes_in_a_sites_file_are_told_with_the_file(tmp_path, values, words):
    file = tmp_path / "fedlit-site.yaml"
    file.write_text(yaml.safe_dump(SITE | values))
    with refused(ConfigError, words, "fedlit-site.yaml: "):
        read_settings(file)


def test_by_default_no_scores_leave_and_small_numbers_are_not_told(tmp_path):
    file = tmp_path / "fedlit-site.yaml"
    file.write_text(yaml.safe_dump(SITE))
    policy = read_settings(file).policy
    assert not policy.leaves.scores
    labels = torch.tensor([[1.0, 1.0, torch.nan]] * 9 + [[0.0, 1.0, torch.nan]] * 10 + [[0.0, 0.0, torch.nan]] * 10)
    assert policy.visible_counts(labels) == [[None, 19, 0], [None, 10, 0]]  # of a hidden class neither, as N is known


def test_files_of_sites_and_servers_take_values_of_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("PLACE", str(tmp_path))
    (site := tmp_path / "fedlit-site.yaml").write_text(yaml.safe_dump(SITE | {"state": "${env:PLACE}/state"}))
    (server := tmp_path / "fedlit-server.yaml").write_text("home: ${env:PLACE}\ntracking_uri: sqlite:///${env:ABSENT_}")
    assert read_settings(site).folder == tmp_path / "state"
    with refused(ConfigError, "fedlit-server.yaml", "tracking_uri: ", "ABSENT_"):
        ServerSettings.read(server)
    monkeypatch.setenv("ABSENT_", "x.db")
    assert ServerSettings.read(server).tracking_uri == "sqlite:///x.db"


def test_the_file_that_the_document_shows_is_one(tmp_path):
    document = (Path(fedlit.__file__).parent / "sites" / "README.md").read_text()
    shown = yaml.safe_load(document.partition("```yaml\n")[2].partition("```")[0])
    (tmp_path / "fedlit-site.yaml").write_text(yaml.safe_dump(shown | {"data": SITE["data"]}))
    settings = read_settings(tmp_path / "fedlit-site.yaml")
    assert settings.policy == replace(Policy(), rounds=500)  # the defaults, but for the rounds


NO_SCORES = OWN | {"leaves": {"scores": False, "counts_below": 0}}


def test_without_scores_auroc_is_within_its_bound(fit, sites, tmp_path):
    sites.rules = dict.fromkeys(("site-1", "site-3"), NO_SCORES)
    for path, number in (("there", 3), ("here", 0)):
        out = fit("--federation.rounds 2 --data.size 40", number, path).out
        assert ("site-1, site-3: scores of single images do not leave" in out) == bool(number)
    there, here = ({(s, k): float(v) for s, k, v in Ended(tmp_path / p).kept.metrics()} for p in ("there", "here"))
    bounds = {key: value for key, value in there.items() if "/auroc_within/" in key[1]}
    assert len(bounds) == 9  # three classes, two rounds and the test
    for (step, key), within in bounds.items():
        key = key.replace("auroc_within", "auroc")
        assert abs(there[step, key] - here[step, key]) <= within + 1e-12
        assert within < 0.05
    same = [key for key in here if "/n_pos/" in key[1] or "/n_neg/" in key[1] or key[1].startswith("client/")]
    assert len(same) > 20
    assert all(there[key] == here[key] for key in same)
    assert not list((tmp_path / "there").rglob("*.parquet"))


def test_what_was_sent_is_written_down_at_the_site(fit, sites, tmp_path):
    """A line for each message, counted from the messages themselves, chained, and private."""
    exchanged = sites.recorded()
    fit("--federation.rounds 2 --federation.aggregators='[Scaffold]'", 2)
    for name in ("site-1", "site-2"):
        folder = tmp_path / "default" / "sites" / name
        lines = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
        text = (folder / "leaves_a_site.txt").read_text()
        sent = [(envelope.verb, reply) for site, envelope, reply in exchanged if site == name]
        assert [line["verb"] for line in lines] == [verb for verb, _ in sent]
        for number, (line, (verb, reply)) in enumerate(zip(lines, sent, strict=True), 1):
            assert line["nbytes"] == reply.nbytes
            assert line["arrays"] == {k: [v.dtype.name, v.size] for k, v in reply.vectors.items()}
            assert reply.ledger == f"{number}:{line['head']}"
            assert len(line["question"]) == (0 if verb == "hello" else 64)
        assert {line["steps"] for line in lines if line["verb"] == "train"} == {2}
        assert "vectors/0/c [483]" in text
        assert ", train: reply: " in text
        private = {path.stat().st_mode & 0o777 for path in folder.rglob("*") if path.is_file()}
        assert private == {0o600}
        assert folder.stat().st_mode & 0o777 == 0o700


def test_what_cannot_be_written_down_does_not_leave(tmp_path, monkeypatch):
    (tmp_path / "fedlit-site.yaml").write_text(yaml.safe_dump(SITE | {"state": str(tmp_path / "state")}))
    answer = answering(tmp_path / "fedlit-site.yaml")
    (tmp_path / "state").write_text("a file where the folder should be")
    reply = Envelope.from_bytes(answer(Envelope.of("end", End("0" * 32)).to_bytes()))
    assert reply.verb == FAILED
    assert "what leaves it cannot be written to its folder" in reply.content["reason"]
    assert not reply.vectors
