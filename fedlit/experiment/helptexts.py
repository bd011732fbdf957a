"""Texts and layout of ``--help``."""

import re
import textwrap
from argparse import Action
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from jsonargparse import DefaultHelpFormatter

from fedlit.experiment.choices import AXES, shipped

EPILOG = """Options come from YAML files (--config), from the command line, or from both; later ones override earlier
ones. A class is named by its short name or its class_path, and its arguments follow as init_args: --data NIHChestXray14
--data.root FOLDER, --model.optimizer Adam --model.optimizer.lr 1e-4, --federation.aggregators+=FedProx. `fedlit list`
shows the short names, and --data.help NIHChestXray14 the arguments of a class."""

STORE = (
    "Address of MLflow: sqlite:///FILE, another database, or a server. By default MLFLOW_TRACKING_URI in the "
    "environment, or sqlite:///mlflow.db."
)

REPRODUCE = """`fedlit list reproductions` shows the names, and the data and time that each needs at either scale. Every
run is a run of `fedlit sweep`, with its own directory in RUN_DIR and its own run in MLflow."""

SWEEP = """The YAML of a sweep; all but experiment is optional:

  experiment: rates               # groups the runs, on disk and in MLflow
  config: [../quickstart.yaml]    # base of all runs, relative to this file
  set: {federation.rounds: 10}    # keys for all runs
  cases:                          # named alternatives, each with any keys
    fedavg: {federation.aggregators: [FedAvg]}
    scaffold: {federation.aggregators: [Scaffold], federation.rounds: 20}
  grid:                           # all combinations of these lists
    model.optimizer.lr: [0.1, 0.01]
  baselines: [individual, pooled] # also each client's own model, and one model of all data
  starts: body.yaml               # a sweep that trains first, or a model file: runs start from its weights
  seeds: [0, 1, 2]                # by default 0
  metric: val/auroc_macro         # for the summary; with a grid not test/...

Every configuration is checked before the first run starts. Each run is a run of `fedlit fit` in
RUN_DIR/EXPERIMENT/NAME/, with a name such as scaffold,lr=0.1,seed=0; its output is in console.log. Finished runs are
skipped, and unfinished ones continue. RUN_DIR/EXPERIMENT/sweep.csv has one row per run.

In MLflow, runs that differ only in their seed are below one run with their means; the tag fedlit.method is the case."""

TUNE = """The YAML of a tuning:

  experiment: tuned               # groups the runs, on disk and in MLflow
  config: [../quickstart.yaml]    # base of all runs, relative to this file
  set: {federation.rounds: 10}    # keys for all runs
  cases:                          # the methods, each with any keys
    fedavg: {federation.aggregators: [FedAvg]}
    fedprox:
      federation.aggregators: [FedProx]
      ranges: {federation.aggregators.mu: {low: 0.001, high: 1, scale: log, default: 0.01}}  # its own
  ranges:                         # for all methods
    model.optimizer.lr: {low: 0.0001, high: 0.1, scale: log}
    data.batch_size: [16, 32]
  tries: 8                        # the same number for every method
  rule: {metric: val/auroc_macro, seeds: [100]}   # or {metric: val/auroc_macro, by: seed}
  seeds: [0, 1, 2]                # of the final runs, not in rule.seeds

A range is a list, {values: LIST, default: VALUE}, or low and high with a scale (linear or log), a default, and integer:
true or false. The first try of each method has the defaults, such as the value that a paper recommends. Optuna draws
the tries at random (search_seed, by default 0): of 8 tries, each is from another eighth of each range, on its scale.
`sampler: grid` tries all combinations of lists and needs no tries. With `sampler: tpe`, suggestions from the results
follow three random tries.

The rule chooses the settings with the best mean over its seeds. val/auroc_macro counts the classes with at least 25
positive and 25 negative patients in the validation data of every seed (images, if patients are unknown); the report
names the others. It counts at the round of each run's best model or, with `at: last`, as the mean of the last three
evaluations. Test metrics are refused. A rule for another metric has a mode, max or min. The chosen settings of each
method then run with the final seeds. With `by: seed`, every try runs with these seeds instead, and each of them chooses
its settings by its own validation data. No further runs follow, and a comparison of the methods contains the luck of
the choice.

A grid, as in a sweep, is of the final runs: the chosen settings run at each of its values. `set` of the rule has the
keys of the tries in its place, and `experiment` of the rule gives them an experiment of their own. A range may have
names of values, each with its keys: rate: {0.1: {model.optimizer.lr: 0.1}, 1: {model.optimizer.lr: 1.0}}.

Every try is a run as in `fedlit sweep`: finished runs are skipped, unfinished ones continue, and --jobs runs several at
a time. RUN_DIR/EXPERIMENT/tune.csv has one row per run. `starts` is as in a sweep. The report has the ranges, the
chosen settings, whether one of them is at the edge of its range, the best metric by number of tries, and the cost of
the tries. In MLflow, the runs of a method are below a run with its name and the means of its final runs. `fedlit
compare RUN_DIR/EXPERIMENT` compares only the final runs."""

CHECK = """For a table of your own images (CSV, TSV, Parquet, spreadsheet), a proposed YAML for `fedlit fit --config
FILE` is printed first, with the meaning of each column and the reason for it. --set '{site: Ward}' overrides it. With
--classes FINDING ..., the classes of a federation, it also lists those that the table lacks.

The label files are read as `fedlit fit` reads them, and the header of every image is opened. --decode also decodes
every image, which takes as long as the first run on the data. It finds damage after the header, and equal or
near-duplicate images of different patients, in one folder or in two: copies that were compressed again or resized, and
most of those that were cropped by some percent. Such pairs are drawn into a file (--pairs); nothing else is written.

The chest X-rays of RSNA Pneumonia and SIIM Pneumothorax come from NIH ChestX-ray14: used as another site, they put a
patient at two sites.

The exit code is 0 without problems, 1 with problems, and 2 if a folder is not recognised."""

CACHE = """Images are decoded once, into one file for each list of images and size. Removed entries are decoded again
when they are needed. Do not remove entries that a run is using."""

METRICS = {
    "train/loss": "Mean loss of the clients in the round. It does not measure progress on a saddle function.",
    "val/auroc/CLASS, val/auroc_macro": (
        "AUROC of each class on the validation data, and the mean over the classes that have one."
    ),
    "val/auroc_within/CLASS": "Bound on the AUROC error when sites send histograms.",
    "test/SET/auroc_macro, test/SET/auroc_images": (
        "Mean AUROC of the best model on a test set, and the number of images that each AUROC ranks, on average."
    ),
    "test/SET/auroc_own_macro": (
        "The same for personal heads, which rank fewer images: an image counts only for the classes of its client."
    ),
    "client/NAME/...": "Metrics of one client, on its own data.",
    "client/NAME/epsilon": "Epsilon of one client so far, if steps are private.",
    "drift/client_drift": (
        "Spread of the clients' updates as they are sent, after an aggregator has scaled or normalised them: mean "
        "|delta_k|^2 - |mean delta|^2."
    ),
    "drift/alignment": (
        "Mean pairwise alignment of the updates: 1 if all are equal, 0 if they are orthogonal, below 0 if they cancel."
    ),
    "drift/update_norm": "Norm of the mean update, |mean delta|.",
    "round/lr, round/stage": (
        "Learning rate and stage of the schedule; further parameter groups have round/lr/pg2 and so on."
    ),
    "round/steps": "Number of local steps of all clients in the round.",
    "bytes/up, bytes/down": (
        "Number of bytes that all clients sent in the round, without what they keep or lack, and that they received, "
        "which is everything."
    ),
    "time/round_s, time/evaluate_s": "Duration of the round and of its evaluation in seconds.",
    "total/steps, total/bytes_up, total/bytes_down": "Sums over all rounds, logged at the end of the run.",
}
"""Metrics of every federation. Algorithms and objectives describe their own in ``metrics_help``."""

CHOSEN = "Class ({0} by default), whose arguments follow as .NAME VALUE, or a YAML file with class_path and init_args."

LAST = (
    "measure_batches", "checkpoint_every", "workers", "threads", "memory_format", "compile",
    "state_memory", "quorum", "deadline", "on_site_error",
)  # fmt: skip
"""Settings of a federation that few users change; they follow the others."""

LONG_USAGE = 18
"""Number of options beyond which the usage does not list them."""


def metrics_help() -> str:
    """Return a description of all metrics, one per line."""
    described = dict(METRICS)
    for axis in ("aggregators", "objectives"):
        for cls in shipped(axis):
            described |= getattr(cls, "metrics_help", {})
    return "\n".join(["Logged metrics:", *(f"  {name}: {sentence}" for name, sentence in described.items())])


class HelpFormatter(DefaultHelpFormatter):
    """A formatter that shows short names and plain types, the most important options first, and a short usage."""

    def __init__(self, prog: str, *args: Any, **options: Any) -> None:
        super().__init__(prog.replace(" [options]", ""), *args, **options)

    def add_usage(self, usage: str | None, actions: Iterable[Action], *args: Any, **options: Any) -> None:
        """Add the usage; one with many options names only their form."""
        actions = list(actions)
        if usage is None and len(actions) > LONG_USAGE:
            config = "[--config FILE] " if any(action.dest == "config" for action in actions) else ""
            usage = f"%(prog)s {config}[--KEY VALUE ...]"
        super().add_usage(usage, actions, *args, **options)

    def add_arguments(self, actions: Iterable[Action]) -> None:
        """Add options in their order, but rarely changed settings of a federation last."""
        places = {f"federation.{name}": place for place, name in enumerate(LAST, start=1)}
        super().add_arguments(sorted(actions, key=lambda action: places.get(action.dest, 0)))

    def _expand_help(self, action: Action) -> str:
        text = super()._expand_help(action).replace("``", "")
        text = re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", text)
        text = re.sub(r"Annotated\[(\w+), <([^>]*)>\]", r"\1 \2", text)
        text = re.sub(r"Literal\[([^]]*)\]", lambda match: match[1].replace("'", "").replace(", ", " | "), text)
        text = re.sub(r"Union\[([^]]*)\]", lambda match: match[1].replace(", ", " | "), text)
        text = re.sub(r"type: Optional\[(.*)\](?=[,)])", r"type: \1 | null", text)
        return re.sub(r", known subclasses: ([^)]*)", lambda match: self._known(match[1].split(", ")), text)

    @staticmethod
    def _known(paths: Iterable[str]) -> str:
        """Return the short names of fedlit's classes of the meant kind or, if it has none, those of a library."""
        homes, bases = {axis.home for axis in AXES.values()}, {axis.base.rpartition(".")[2] for axis in AXES.values()}
        names = defaultdict(list)
        for home, _, name in (path.rpartition(".") for path in paths):
            names[home if home.startswith("fedlit") else ""] += [name] * (name not in bases)
        # Where any module is possible, models are too: most of the classes are of the kind that is meant.
        shown = max((own for home, own in names.items() if home in homes), key=len, default=names.get("", []))
        return f", known subclasses: {', '.join(shown)}" if shown else ""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(self._fill_paragraph(each, width, indent) for each in text.split("\n\n"))

    def _fill_paragraph(self, text: str, width: int, indent: str) -> str:
        """Wrap a paragraph, in which indented lines stay lines of their own."""
        if not re.search(r"^  ", text, re.MULTILINE):
            return super()._fill_text(text, width, indent)
        lines = []
        for line in text.splitlines():
            start = len(line) - len(line.lstrip())
            options = {"subsequent_indent": " " * (start + 4) if start else "", "break_on_hyphens": False}
            lines.append(textwrap.fill(line, width, break_long_words=False, **options))
        return "\n".join(lines)
