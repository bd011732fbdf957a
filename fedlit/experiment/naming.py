"""Name what runs are grouped and charted by: their method, and what runs of different seeds have in common."""

import hashlib
import json
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from jsonargparse import Namespace
from lightning.pytorch import LightningModule

from fedlit.core.aggregator import composed_name
from fedlit.core.errors import ConfigError
from fedlit.core.parts import Parts
from fedlit.federation.federation import Federation
from fedlit.tracking.base import MetricsFile
from fedlit.tracking.run import MAY_DIFFER, flatten

LENGTHENS = ("federation.rounds", "federation.patience", "callbacks")
"""A resumed run may change them, but runs of different lengths are not compared over their seeds."""

APART = ("seed", *(key for key in MAY_DIFFER if key not in LENGTHENS))
"""Beginnings of the keys in which runs of one group may differ."""


def is_data_seed(key: str) -> bool:
    """Return whether a flat key is a seed of the data, in which runs of one group may differ too."""
    return key.startswith("data.") and key.endswith(".seed")


TOTALS = {"bytes/up": "total/bytes_up", "bytes/down": "total/bytes_down", "round/steps": "total/steps"}
"""What a round logs, and its sum over all rounds and phases."""


WORD_LENGTH = 40
"""Letters of a value in the name of a folder, at most."""

SIGNS, OF_RUNS = "_.+-", "_.+-,=~@() "
"""What the name of a folder may hold beside letters and digits: of a phase or case, and of a run or experiment."""

LONGEST = 200
"""Bytes of a name as UTF-8: file systems take 255, and numbers and seeds are added to it."""

LONGEST_METHOD = 80
"""Letters of a method in the name of a run."""

TAKEN = {
    "last": "--ckpt_path last means the last checkpoint of an experiment",
    "best": "--ckpt_path best means the best checkpoint of an experiment",
    "sites": "this folder of an experiment holds what the sites of --sites keep",
}
"""Names that mean something else, and what."""


def check_name(key: str, name: str | None, signs: str = SIGNS) -> None:
    """Refuse a name that is none of a folder, or that would leave the folder in which it belongs.

    Raises:
        ConfigError: Says what was expected of the key.
    """
    found = repr(name) if len(repr(name)) < 80 else f"{repr(name)[:80]}..."
    if not isinstance(name, str) or not re.fullmatch(rf"\w[\w{re.escape(signs)}]*", name) or name[-1] in ". ":
        others = " ".join(signs.strip()) + (" and blanks" if " " in signs else "")
        raise ConfigError(
            f"{key}: expected a name of letters, digits and {others}, which begins with a letter, a digit or _ and does "
            f"not end with a dot or a blank; found {found}"
        )
    if len(name.encode()) > LONGEST:
        raise ConfigError(f"{key}: expected a name of at most {LONGEST} bytes, found {len(name.encode())}: {found}")
    if name in TAKEN:
        raise ConfigError(f"{key}: {TAKEN[name]}; choose another name")


def check_names(args: Namespace) -> None:
    """Refuse an experiment or a run whose name is none of a folder.

    Raises:
        ConfigError: Says which, and what was expected.
    """
    check_name("experiment", args.experiment, OF_RUNS)
    if args.name is not None:
        check_name("name", args.name, OF_RUNS)


def objective_name(model: LightningModule) -> str:
    """Return the class of the model's objective, and "" of a model that has a loss of its own."""
    objective = Parts.of(model).objective
    return "" if objective is None else type(objective).__name__


def method_name(federation: Federation, model: LightningModule) -> str:
    """Return what people call the algorithm: the aggregators, and the objective where it has a label.

    A label is ``objective_label``, or else the name of the class. The usual loss has "".
    """
    # Read off the class alone: what is built on an objective without a label is another objective.
    label = vars(type(Parts.of(model).objective)).get("objective_label", objective_name(model))
    return composed_name(federation.aggregators) + (f"-{label}" if label else "")


def group_name(settings: Mapping[str, Any], method: str) -> str:
    """Return one name, which begins with the method, for all runs whose settings differ in the seed alone."""
    # Options that are not set are left out: a later version with one more of them has the same groups.
    own = {
        k: v
        for k, v in flatten(dict(settings)).items()
        if v is not None and not k.startswith(APART) and not is_data_seed(k)
    }
    digest = hashlib.sha256(json.dumps(own, sort_keys=True, default=str).encode()).hexdigest()
    return f"{method}-{digest[:8]}"


def run_name(method: str, seed: int) -> str:
    """Return the name of a run that nobody has named: its method and seed, and when it began."""
    return f"{method[:LONGEST_METHOD]}-seed{seed}-{time.strftime('%Y%m%d-%H%M')}"


def totals(metrics: MetricsFile) -> dict[str, float]:
    """Return ``total/...``: what the whole run has sent and done, over all clients. See :data:`TOTALS`."""
    sums = dict.fromkeys(TOTALS.values(), 0.0)
    for _, key, value in metrics.rows():
        if key in TOTALS:
            sums[TOTALS[key]] += value
    return sums


def as_option(value: Any) -> str:
    """A value as the command line wants it."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def shortest(keys: Sequence[str]) -> dict[str, str]:
    """Keys by as few of their last parts as tell them apart."""
    parts = {key: key.rstrip("+").replace(".init_args", "").split(".") for key in keys}
    short = {}
    for key, words in parts.items():
        others = [other for k, other in parts.items() if k != key] + [["seed"]]
        lengths = range(1, len(words) + 1)
        length = next((n for n in lengths if all(other[-n:] != words[-n:] for other in others)), len(words))
        short[key] = ".".join(words[-length:])
    return short


def as_folders(values: Sequence[Any]) -> list[str]:
    """Values in words that a folder's name may hold, different where the values are."""
    words: dict[str, str] = {}
    for value in values:
        text = as_option(value)
        plain = re.sub(r'"(class_path|init_args)"', "", text)
        word = "-".join(re.findall(r"[\w.+-]+", plain))[:WORD_LENGTH] or "empty"
        taken = [w for t, w in words.items() if t != text]
        words[text] = word if word not in taken else f"{word}~{len(taken)}"
    return [words[as_option(value)] for value in values]
