"""HeldAtSites, the data of the lead of a federation over sites."""

import pytest
from refusals import refused

from fedlit.core.errors import ConfigError, DataError
from fedlit.data import HeldAtSites


def test_it_has_classes_and_no_images():
    data = HeldAtSites(["Edema", "Mass"], batch_size=16)
    assert data.classes == ("Edema", "Mass")
    assert data.batch_size == 16
    data.prepare_data()
    with refused(ConfigError, "data"):
        data.setup("fit")


@pytest.mark.parametrize("classes", [[], ["Edema", "Edema"]])
def test_classes_are_different_and_at_least_one(classes):
    with refused(DataError, "expected one or more different classes, found"):
        HeldAtSites(classes)
