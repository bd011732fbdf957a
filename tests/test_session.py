"""What a session says before it trains."""

import pytest

from fedlit.data import PhantomCXR
from fedlit.fabric import make_fabric
from fedlit.federation import Federation
from fedlit.models import ImageClassifier
from fedlit.session import Session


@pytest.mark.parametrize("images", [40, 900])
def test_clients_without_positives_of_a_class_are_allowed_and_reported(images, tmp_path):
    data = PhantomCXR(hospitals=2, images=images, image_size=16, batch_size=4, cache_dir=str(tmp_path))
    data.setup("fit")
    session = Session(Federation(workers=1), ImageClassifier(data.classes, "resnet10t"), data, make_fabric("cpu"))
    said = session.without_positives()
    lacking = {name: [] for name in data.clients}
    for name, client in data.clients.items():
        for column, label in enumerate(data.classes):
            if not (client.train.labels[:, column] == 1).any():
                lacking[name].append(label)
    expected = [f"{name} ({', '.join(classes)})" for name, classes in lacking.items() if classes]
    assert bool(expected) == (images == 40)
    assert said == (f"no positive training image at {', '.join(expected)}" if expected else "")
