"""What the server makes of what sites tell: clients of one name are refused, classes without AUROC are named."""

from types import SimpleNamespace

import pytest
from at_sites import client_info, site_info
from refusals import refused
from toys import ToyData

from fedlit.core.errors import ConfigError
from fedlit.sites.experiment import RemoteData
from fedlit.sites.messages import SiteInfo
from fedlit.sites.own_data import OwnData


def site(name: str, client: str, counts: dict, scores: bool = False) -> SiteInfo:
    return site_info(name, client_info(client, counts=counts), scores=scores)


def test_clients_of_one_name_are_refused_with_what_gives_them_another():
    with refused(ConfigError, "'north' and 'south'", "'client-01'"):
        RemoteData([site("north", "client-01", {}), site("south", "client-01", {})])


@pytest.mark.parametrize(
    ("counts", "scores", "said"),
    [
        ({"val": [[12, None], [30, 40]]}, False, ["north reports no AUROC of Mass in val"]),
        ({"test": [[None, 12], [30, None]]}, False, ["north reports no AUROC of Edema, Mass in test"]),
        ({"train": [[None, None], [30, 40]], "val": [[12, 12], [30, 40]]}, False, []),
        ({"val": [[12, None], [30, 40]]}, True, []),
    ],
    ids=["a class", "positives and negatives", "training alone", "scores leave"],
)
def test_classes_whose_auroc_a_site_does_not_tell_are_named(counts, scores, said):
    notes = RemoteData([site("north", "north", counts, scores)]).notes
    assert [note.partition(":")[0] for note in notes if "reports no AUROC" in note] == said


def test_a_federation_in_which_no_class_is_ranked_is_told():
    """There is no secure sum: a pooled count would show each site's own."""
    said = "no site reports the AUROC of any class in validation"
    hidden, shown = {"val": [[None, None], [None, None]]}, {"val": [[None, 12], [None, 30]]}
    both = RemoteData([site("north", "a", hidden), site("south", "b", hidden)]).notes
    assert any(note.startswith(said) for note in both)
    one = RemoteData([site("north", "a", hidden), site("south", "b", shown)]).notes
    assert not any(note.startswith(said) for note in one)


def test_labels_that_are_none_are_refused_at_the_site_and_not_sent():
    """The text of an Unreadable stays in the site's own log."""
    data = ToyData(clients=1)
    data.setup()
    data.clients["site-0"].train.tensors[1][3, 0] = -1
    with refused(ConfigError, "client 'site-0'", "NaN", "1 of 12"):
        OwnData(SimpleNamespace(data=data, policy=None)).module  # noqa: B018
