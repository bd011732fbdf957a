"""Names of runs, of their methods, and of groups of runs that differ only in their seed."""

import hashlib
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jsonargparse import Namespace

from fedlit.core.errors import ConfigError
from fedlit.core.governing import composed_name
from fedlit.core.parts import Parts
from fedlit.tracking.base import MetricsFile
from fedlit.tracking.run import MAY_DIFFER, flatten

if TYPE_CHECKING:  # reports of past runs need names, but not Lightning, which takes seconds to import
    from lightning.pytorch import LightningModule

    from fedlit.federation.federation import Federation

LENGTHENS = ("federation.rounds", "federation.patience", "callbacks")
"""Keys that a resume may change, but that are the same for all runs of a group."""

APART = ("seed", *(key for key in MAY_DIFFER if key not in LENGTHENS))
"""Beginnings of the keys in which runs of one group may differ."""


STARTS = "model.init_args.weights"
"""Key of the run from whose weights a run starts."""


def is_data_seed(key: str) -> bool:
    """Return whether a dotted key is a seed of the data, which may also differ in a group."""
    return key.startswith("data.") and key.endswith(".seed")


TOTALS = {"bytes/up": "total/bytes_up", "bytes/down": "total/bytes_down", "round/steps": "total/steps"}
"""Metrics of a round, and the names of their sums over all rounds."""


WORD_LENGTH = 40
"""Largest number of characters of a value in the name of a folder."""

SIGNS, OF_RUNS = "_.+-", "_.+-,=~@() "
"""Characters, besides letters and digits, of the names of phases and cases, and of runs and experiments."""

LONGEST = 200
"""Largest number of UTF-8 bytes of a name; file systems allow 255, and numbers and seeds are appended."""

LONGEST_METHOD = 80
"""Largest number of characters of a method in the name of a run."""

TAKEN = {
    "last": "--ckpt_path last means the last checkpoint of an experiment",
    "best": "--ckpt_path best means the best checkpoint of an experiment",
    "ledgers.json": "a server keeps the heads of the sites' ledgers in this file of the folder of runs",
    "mlflow.db": "MLflow keeps its runs in this file",
    "sites": "the sites of --sites keep their states in this folder of an experiment",
}
"""Reserved names, and their meanings."""


def check_name(key: str, name: str | None, signs: str = SIGNS) -> None:
    """Check that a name can be that of a folder.

    Raises:
        ConfigError: It cannot; names the key and the allowed characters.
    """
    found = repr(name) if len(repr(name)) < 80 else f"{repr(name)[:80]}..."
    if not isinstance(name, str) or not re.fullmatch(rf"\w[\w{re.escape(signs)}]*", name) or name[-1] in ". ":
        others = " ".join(signs.strip()) + (" and blanks" if " " in signs else "")
        raise ConfigError(
            f"{key}: expected a name of letters, digits and {others}, which begins with a letter, a digit or _ and "
            f"does not end with a dot or a blank; found {found}"
        )
    if len(name.encode()) > LONGEST:
        raise ConfigError(f"{key}: expected a name of at most {LONGEST} bytes, found {len(name.encode())}: {found}")
    if name.casefold() in TAKEN:
        raise ConfigError(f"{key}: {TAKEN[name.casefold()]}; choose another name")


def check_names(args: Namespace) -> None:
    """Refuse names of an experiment and a run that cannot be those of folders."""
    check_name("experiment", args.experiment, OF_RUNS)
    if args.name is not None:
        check_name("name", args.name, OF_RUNS)


@dataclass(frozen=True)
class Names:
    """The names of a method and its parts, and of its runs."""

    aggregator: str  # Names of the aggregators.
    objective: str  # Class of the model's objective, or "" if the model defines its own loss.
    # Names of the aggregators, and the label of the objective: its `objective_label` (which is "" for the usual loss)
    # or else its class.
    method: str
    group: str  # Name that is the same for runs that differ only in their seed.
    run: str  # Default name of a run.

    @classmethod
    def of(
        cls,
        federation: "Federation",
        model: "LightningModule",
        settings: Mapping[str, Any] | None = None,
        seed: int = 0,
    ) -> "Names":
        """Return the names of a federation and its model, with the settings and the seed of a run."""
        aggregator, objective = composed_name(federation.aggregators), Parts.of(model).objective
        name = "" if objective is None else type(objective).__name__
        # Not inherited: a subclass of an objective without a label is another objective.
        label = vars(type(objective)).get("objective_label", name)
        method = f"{aggregator}-{label}" if label else aggregator
        return cls(aggregator, name, method, group_name(settings or {}, method), run_name(method, seed))


def group_name(settings: Mapping[str, Any], method: str) -> str:
    """Return a name that begins with the method, and is the same for settings that differ only in the seed."""
    # Without unset options, so that a later version with more of them gives the same groups.
    flat = {key: value for key, value in flatten(dict(settings)).items() if value is not None}
    compared = {k: v for k, v in flat.items() if not k.startswith(APART) and not is_data_seed(k)}
    if STARTS in compared:  # the run of the same seed
        compared[STARTS] = re.sub(r"(^|[,/])seed=\d+$", r"\1seed", str(compared[STARTS]))
    digest = hashlib.sha256(json.dumps(compared, sort_keys=True, default=str).encode()).hexdigest()
    return f"{method}-{digest[:8]}"


def run_name(method: str, seed: int) -> str:
    """Return the default name of a run: its method and seed, and the date and time."""
    return f"{method[:LONGEST_METHOD]}-seed{seed}-{time.strftime('%Y%m%d-%H%M')}"


def totals(metrics: MetricsFile) -> dict[str, float]:
    """Return ``total/...``, the sums of a run over all rounds and clients, see :data:`TOTALS`."""
    sums = dict.fromkeys(TOTALS.values(), 0.0)
    for _, key, value in metrics.rows():
        if key in TOTALS:
            sums[TOTALS[key]] += value
    return sums


def as_option(value: Any) -> str:
    """Return a value as on the command line."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def shortest(keys: Sequence[str]) -> dict[str, str]:
    """Return the shortest distinct endings of dotted keys, by key."""
    parts = {key: key.rstrip("+").replace(".init_args", "").split(".") for key in keys}
    short = {}
    for key, words in parts.items():
        others = [other for k, other in parts.items() if k != key] + [["seed"]]
        lengths = range(1, len(words) + 1)
        length = next((n for n in lengths if all(other[-n:] != words[-n:] for other in others)), len(words))
        short[key] = ".".join(words[-length:])
    return short


def as_folders(values: Sequence[Any]) -> list[str]:
    """Return distinct texts of values that the name of a folder may contain."""
    words: dict[str, str] = {}
    for value in values:
        text = as_option(value)
        plain = re.sub(r'"(class_path|init_args)"', "", text)
        word = "-".join(re.findall(r"[\w.+-]+", plain))[:WORD_LENGTH] or "empty"
        taken = [w for t, w in words.items() if t != text]
        words[text] = word if word not in taken else f"{word}~{len(taken)}"
    return [words[as_option(value)] for value in values]
