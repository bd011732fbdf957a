"""A class that replaces a default class has its own defaults; the order of the help."""

import re

import pytest

from fedlit.cli.main import parse
from fedlit.experiment.helptexts import LAST
from fedlit.experiment.options import experiment_parser

YAML = """
data:
  class_path: NIHChestXray14
  init_args:
    root: data
    eval_batch_size: 7
"""


@pytest.mark.parametrize("how", ["command line", "yaml"])
def test_a_chosen_class_has_its_own_defaults(how, tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text(YAML)
    words = {
        "command line": ["--data", "NIHChestXray14", "--data.root", "data", "--data.eval_batch_size", "7"],
        "yaml": ["--config", str(file)],
    }
    args = parse(["fit", *words[how], "--model.backbone", "densenet161"])[0]
    assert args.data.class_path == "fedlit.data.NIHChestXray14"
    assert args.data.init_args.eval_batch_size == 7
    assert args.data.init_args.image_size == 224  # PhantomCXR's is 64
    assert args.model.init_args.backbone == "densenet161"
    assert args.federation.schedule.class_path == "fedlit.schedules.ConstantSchedule"


def test_the_default_classes_take_arguments_without_being_named():
    args = parse(["fit", "--data.images", "500", "--federation.schedule.window", "3"])[0]
    assert args.data.class_path == "fedlit.data.PhantomCXR"
    assert (args.data.init_args.images, args.data.init_args.image_size) == (500, 64)
    assert args.model.class_path == "fedlit.models.ImageClassifier"
    assert args.federation.schedule.init_args.window == 3


def test_an_argument_given_before_the_class_survives():
    args = parse(["fit", "--data.batch_size", "5", "--data", "NIHChestXray14", "--data.root", "data"])[0]
    assert (args.data.init_args.batch_size, args.data.init_args.image_size) == (5, 224)


def test_settings_that_few_users_change_are_last_in_the_help():
    text = experiment_parser().format_help()
    options = re.findall(r"^  --federation\.(\w+)[, ]", text, re.MULTILINE)
    first = ("aggregators", "rounds", "schedule", "participation", "monitor", "patience")
    assert options == list(dict.fromkeys(options))
    assert options[-len(LAST) :] == list(LAST)
    assert [name for name in options if name in first] == list(first)
