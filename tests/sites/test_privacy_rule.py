"""A site's privacy rule by itself: which entries of its ledger it counts, and the data that it does not fit."""

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from fedlit.core.batches import PoissonStream
from fedlit.sites.budget import PrivacyRule, charges
from fedlit.sites.ledger import Ledger, LedgerEntry
from fedlit.sites.messages import REPLY

pytest.importorskip("opacus", reason="Opacus is not installed: pip install 'fedlit[privacy]'")

RULE = {"epsilon": 8.0, "delta": 1e-4, "patients": 200}


def test_days_that_are_over_do_not_count(tmp_path):
    now, rule = 4000 * 86400.0, PrivacyRule(8.0, 1e-4, 200, days=100)
    ledger = Ledger(tmp_path, lambda: now)
    trained = {"verb": "train", "answer": REPLY, "steps": 5, "noise": 1.0, "rate": 0.08}
    for number, days in enumerate((300, 99, 4000, 1)):  # the clock of the third began anew in 1970
        ledger.note(LedgerEntry(now - days * 86400, question=str(number), **trained))
    assert sum(each.steps for each in charges(rule.recent(ledger.entries, now))) == 15
    assert rule.fault(ledger) == ""


@pytest.mark.parametrize(
    ("rule", "named", "words"),
    [
        ({"delta": 0.02, "patients": 100}, True, "privacy.delta: 0.02 is above 1 / patients, 1 / 100"),
        ({"patients": 83}, True, "privacy.patients: 83 are declared, and client 'north' has 100 training patients"),
        ({"patients": 126}, True, "privacy.patients: 126 are declared, and client 'north' has 100 training patients"),
        ({"patients": 100}, False, "client 'north' names no patients"),
        ({"patients": 84}, True, ""),
        ({"patients": 125}, True, ""),
    ],
)  # fmt: skip
def test_a_site_is_warned_of_a_rule_that_does_not_fit_its_data(rule, named, words):
    patients = np.array([str(row % 100) if named else "" for row in range(200 if named else 100)])
    stream = PoissonStream(TensorDataset(torch.zeros(len(patients), 1)), 16, patients, b"secret", "north")
    found = PrivacyRule(**RULE | rule).notes("north", stream)
    assert [words in each for each in found] == [True] * bool(words)
