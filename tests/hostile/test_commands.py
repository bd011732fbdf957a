"""Words on the command line that fedlit does not know."""

import pytest
from support.hostile import Refused, check_refused, each

INPUTS = [
    Refused("a command that is mistyped", "fti --config tiny.yaml", ("fti", "fit"), code=2),
    Refused("an option that is mistyped", "fit --config tiny.yaml --federation.round 3", ("rounds",), code=2),
    Refused(
        "an argument of a class that is not chosen",
        "fit --data NIHChestXray14 --data.root . --data.partition.clients 4",
        ("data.partition", "'clients' is an argument of ByCategory, ByPatient, Dirichlet, IID, WithinOrganisations"),
        code=2,
    ),
    Refused("a file that is not there", "fit --config absent.yaml", ("absent.yaml",), code=2),
]


@each(INPUTS)
def test_it_is_refused_in_words(given, fedlit_cli, tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    check_refused(given, fedlit_cli)
