"""What is trained in a phase, as YAML that a server sends and a site makes a model and algorithms of."""

from argparse import ArgumentError
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import yaml
from lightning.pytorch import LightningModule

from fedlit.core.errors import ConfigError
from fedlit.experiment.choices import shipped
from fedlit.experiment.mistakes import Sources, explain
from fedlit.experiment.parser import Parser
from fedlit.experiment.phases import Part, Phase

OF_A_PHASE = ("aggregators", "objective", "optimizer", "trainable", "keep")
"""Keys of a phase that decide what its clients train."""

STARTS = {"pretrained": False, "weights": None}
"""Where an `ImageClassifier` would start from: the server sends its tensors."""


@dataclass(frozen=True)
class Recipe:
    """A model, and the phase in which it is trained.

    Attributes:
        model: As the main part has it.
        phase: What the phase changes, and its algorithms.
    """

    model: LightningModule
    phase: Phase

    @property
    def part(self) -> Part:
        """The phase as a stretch of rounds."""
        return Part(None, self.phase)

    @property
    def module(self) -> LightningModule:
        """The model as the phase trains it."""
        return self.part.model(self.model)


def texts_of(settings: Mapping[str, Any]) -> dict[str, str]:
    """Write down each phase of a resolved configuration, by its name; the main part's is "".

    Args:
        settings: The configuration.

    Returns:
        A YAML each.
    """
    main = {"name": "main", "aggregators": settings["federation"].get("aggregators") or []}
    phases = {"": main} | {
        phase["name"]: {"name": phase["name"]} | {key: phase[key] for key in OF_A_PHASE if key in phase}
        for phase in settings.get("phases") or []
    }
    return {
        name: yaml.safe_dump({"model": _without_start(settings["model"]), "phase": phase}, sort_keys=False)
        for name, phase in phases.items()
    }


def read(text: str, classes: Sequence[str]) -> Recipe:
    """Make the objects of a text, on the CPU and with weights of no meaning.

    Args:
        text: The YAML.
        classes: Of the data.

    Raises:
        ConfigError: They cannot be made here.
    """
    for axis in ("aggregators", "models", "objectives"):
        shipped(axis)  # a class is known by its short name once it is imported
    parser = Parser(exit_on_error=False)
    parser.add_argument("--classes", type=list[str])
    parser.add_subclass_arguments(LightningModule, "model")
    parser.add_argument("--phase", type=Phase)
    parser.link_arguments("classes", "model.init_args.classes")
    try:
        with torch.random.fork_rng(devices=[]):
            given = {"classes": list(classes), **yaml.safe_load(text)}
            made = parser.instantiate(parser.parse_object(given))
    except (ArgumentError, ImportError, AttributeError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(
            f"what is to be trained cannot be made here: {explain(error, Sources(()))}; install the code that it names"
        ) from error
    return Recipe(made.model, made.phase)


def _without_start(model: Mapping[str, Any]) -> dict[str, Any]:
    options = {key: STARTS.get(key, value) for key, value in (model.get("init_args") or {}).items() if key != "classes"}
    return {"class_path": model["class_path"], "init_args": options}
