"""The image classifier over timm backbones."""

import pytest
import timm
import torch
from toys import CLASSES

from fedlit.errors import ConfigError
from fedlit.models import ImageClassifier


@pytest.mark.parametrize("backbone", ["densenet121", "densenet161"])
@pytest.mark.parametrize("in_chans", [1, 3])
def test_logits_have_one_column_a_class(backbone, in_chans):
    model = ImageClassifier(CLASSES, backbone=backbone, in_chans=in_chans).eval()
    with torch.no_grad():
        assert model(torch.zeros(2, in_chans, 32, 32)).shape == (2, 3)
    assert model.head.in_features == model.body.num_features


@pytest.mark.parametrize("in_chans", [1, 3])
def test_body_starts_from_a_local_weights_file(tmp_path, in_chans):
    """A checkpoint as timm publishes it: RGB stem and the classifier of another task."""
    torch.manual_seed(5)
    published = timm.create_model("densenet121", num_classes=1000)
    torch.save(published.state_dict(), tmp_path / "published.pth")
    model = ImageClassifier(CLASSES, in_chans=in_chans, weights=tmp_path / "published.pth")
    stem, body = published.features.conv0.weight, model.body
    expected = stem.sum(1, keepdim=True) if in_chans == 1 else stem
    torch.testing.assert_close(body.features.conv0.weight, expected)
    deep = "features.denseblock4.denselayer16.conv2.weight"
    torch.testing.assert_close(body.get_parameter(deep), published.get_parameter(deep))


def test_weights_of_another_backbone_are_refused(tmp_path):
    torch.save(timm.create_model("resnet10t").state_dict(), tmp_path / "other.pth")
    with pytest.raises(ConfigError, match=r"other\.pth does not fit densenet121"):
        ImageClassifier(CLASSES, weights=tmp_path / "other.pth")
    with pytest.raises(ConfigError, match="no file"):
        ImageClassifier(CLASSES, weights=tmp_path / "none.pth")


def test_unknown_backbones_and_missing_classes_are_refused():
    with pytest.raises(ConfigError, match=r"timm has no 'densenet122'.*densenet121"):
        ImageClassifier(CLASSES, backbone="densenet122")
    with pytest.raises(ConfigError, match="classes is empty"):
        ImageClassifier(())


def test_probabilities_are_sigmoids_of_the_logits():
    model = ImageClassifier(CLASSES, backbone="resnet10t").eval()
    images = torch.randn(2, 1, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(model.predict_step((images, None), 0), model(images).sigmoid())
