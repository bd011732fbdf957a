"""Groups of images: what a server learns of a group with few patients, such as those at a rarely used scanner."""

import json

import numpy as np
import pytest
import torch
from at_sites import client_info, site_info
from attacker import HOSPITAL, AttackerHere, write_site
from refusals import refused

from fedlit.sites.checking import _client
from fedlit.sites.envelope import Envelope, InvalidMessageError
from fedlit.sites.experiment import RemoteData
from fedlit.sites.messages import REPLY, SiteInfo, new_run
from fedlit.sites.own_data import OwnData, read_settings
from fedlit.sites.policy import Leaves, Policy


def at_two_scanners(share: float, images: int = 300) -> dict:
    """The hospital of the attacks, with a share of its patients at scanner B."""
    arguments = HOSPITAL["init_args"] | {"share": share, "images": images}
    return {"class_path": "two_scanners.TwoScanners", "init_args": arguments}


def in_the_test(file) -> tuple[np.ndarray, np.ndarray]:
    """Scanner and patient of the test images, which only the site can read."""
    (client,) = OwnData(read_settings(file)).module.clients.values()
    return client.test.groups["scanner"], client.test.patients


def test_a_small_group_and_its_complement_do_not_leave_with_the_scores(tmp_path):
    """With two scanners, those of one are the complement of the other."""
    file = write_site(tmp_path / "north", at_two_scanners(0.1), leaves={"scores": True})
    scanners, patients = in_the_test(file)
    few, many = (len(np.unique(patients[scanners == name])) for name in "BA")
    assert 0 < few < 10 <= many
    attacker = AttackerHere(file)
    answers = [attacker.hello(), attacker.prepare(run=new_run())]
    answers += [attacker.evaluate(at=0, part=part) for part in ("val", "test")]
    assert {answer.verb for answer in answers} == {REPLY}
    assert "scores" in answers[-1].vectors
    assert not [name for answer in answers for name in answer.vectors if "group" in name or "scanner" in name]
    assert "scanner" not in json.dumps([answer.content for answer in answers])
    assert "scanner" not in json.dumps(attacker.ledger())


def test_large_groups_leave_for_the_test_images_with_the_scores(tmp_path):
    file = write_site(tmp_path / "north", at_two_scanners(0.5, 600), leaves={"scores": True})
    said = AttackerHere(file).hello()
    (told,) = said.message(SiteInfo).clients
    scanners, _ = in_the_test(file)
    assert told.groups == {"scanner": ["A", "B"]}
    arrays = {name: values for name, values in said.tensors().items() if name.startswith("group/")}
    assert list(arrays) == [f"group/{told.name}/scanner"]  # neither training nor validation
    np.testing.assert_array_equal(np.array(told.groups["scanner"])[arrays[f"group/{told.name}/scanner"]], scanners)
    data = RemoteData([said.message(SiteInfo)], arrays={"north": said.tensors()})
    client = data.clients[told.name]
    np.testing.assert_array_equal(client.test.groups["scanner"], scanners)
    assert client.train.groups == client.val.groups == {}


def test_no_group_leaves_without_the_scores(tmp_path):
    file = write_site(tmp_path / "north", at_two_scanners(0.5), leaves={"scores": False, "counts_below": 0})
    said = AttackerHere(file).hello()
    assert said.message(SiteInfo).clients[0].groups == {}
    assert not said.vectors


def hidden(sizes: dict[str, int], limit: int = 10, images: int = 1) -> set[str]:
    """The groups that do not leave, of groups with some patients each."""
    groups = np.repeat(np.array(list(sizes), dtype=str), [size * images for size in sizes.values()])
    patients = np.arange(len(groups)) // images
    told = Policy(leaves=Leaves(counts_below=limit)).visible_groups(groups, patients)
    assert ((told == groups) | (told == "")).all()
    return set(np.unique(groups[told != groups]))


@pytest.mark.parametrize(
    ("sizes", "wanted"),
    [
        ({"A": 40, "B": 30, "C": 12}, set()),
        ({"A": 40, "B": 9}, {"A", "B"}),  # A would be all but B
        ({"A": 40, "B": 30, "C": 5}, {"B", "C"}),  # all without a group would be C
        ({"A": 40, "B": 12, "C": 6, "D": 5}, {"C", "D"}),  # eleven patients of C or D
        ({"A": 40, "B": 12, "C": 5, "D": 4}, {"B", "C", "D"}),  # nine patients are too few
        ({"A": 40, "B": 30, "C": 5, "": 6}, {"C"}),  # eleven patients of C or unknown
        ({"A": 40, "B": 30, "C": 5, "": 4}, {"B", "C"}),
        ({"A": 40, "": 3}, set()),  # nothing is hidden
        ({"A": 9}, {"A"}),
    ],
)
def test_a_small_group_is_hidden_with_its_complement(sizes, wanted):
    assert hidden(sizes) == wanted


def test_a_group_counts_its_patients_and_not_its_images():
    assert hidden({"A": 40, "B": 3}, images=20) == {"A", "B"}
    assert hidden({"A": 40, "B": 3}, limit=0) == set()


def test_whatever_is_shown_is_of_enough_patients():
    rng, partly = np.random.default_rng(0), 0
    for _ in range(300):
        groups = rng.choice([*"ABCDE", ""], 200, p=rng.dirichlet(np.full(6, 0.4)))
        patients = rng.integers(0, 60, 200)
        told = Policy(leaves=Leaves(counts_below=10)).visible_groups(groups, patients)
        counts = {name: len(np.unique(patients[told == name])) for name in np.unique(told)}
        assert all(count >= 10 for name, count in counts.items() if name)
        if (told != groups).any() and len(counts) > 1:
            assert counts[""] >= 10
            partly += 1
    assert partly > 20


TOLD = client_info(classes=["Edema"], test=3, organisations={"test": ["a", "b"]}, groups={"sex": ["f", "m"]})
HONEST = site_info("north", TOLD, classes=["Edema"], scores=True)


def test_the_check_of_a_site_names_the_groups_that_leave():
    assert _client(TOLD, ["Edema"]).endswith("images; groups of test images that leave: sex (f, m)")


@pytest.mark.parametrize("indices", [[0, 1], [0, 1, 2], [0, 1, -2], None, 1, [[0], [1], [1]], [0.0, 1.0, 1.0]])
def test_groups_and_organisations_of_a_lying_site_that_do_not_fit_are_left_out(indices):
    sent = {} if indices is None else torch.tensor(indices)
    arrays = {} if indices is None else {"group/north/sex": sent, "organisation/north/test": sent}
    test = RemoteData([HONEST], arrays={"north": arrays}).clients["north"].test
    assert test.groups == {}
    assert len(test.sites) == 0
    arrays["group/north/sex"] = torch.tensor([1, -1, 0]).int()
    groups = RemoteData([HONEST], arrays={"north": arrays}).clients["north"].test.groups
    assert groups["sex"].tolist() == ["m", "", "f"]


@pytest.mark.parametrize("groups", [{"s\x1b[2J": []}, {"sex": ["f\nm"]}, {"": []}, {"sex": [""]}])
def test_names_that_would_reach_a_terminal_are_refused(groups):
    with refused(InvalidMessageError, "clients.0.groups", "expected a printable text"):
        Envelope.of("reply", site_info("north", client_info(groups=groups))).message(SiteInfo)
