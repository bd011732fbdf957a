"""HeldAtSites, the data of the lead of a federation over sites."""

from refusals import refused

from fedlit.core.errors import ConfigError
from fedlit.data import HeldAtSites


def test_it_has_classes_and_no_images():
    data = HeldAtSites(["Edema", "Mass"], batch_size=16)
    assert data.classes == ("Edema", "Mass")
    assert data.batch_size == 16
    data.prepare_data()
    with refused(ConfigError, "data"):
        data.setup("fit")
