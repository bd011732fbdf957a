"""What ``--help`` says beside the options, and how it is laid out."""

import re
import textwrap
from argparse import Action

from jsonargparse import DefaultHelpFormatter

from fedlit.experiment.choices import AXES, shipped

EPILOG = """Options come from YAML files (--config), from the command line, or from both. The later one wins. A class is
given by its short name or its class_path, and its arguments as init_args: --data NIHChestXray14 --data.root FOLDER,
--model.optimizer Adam --model.optimizer.lr 1e-4, --federation.aggregators+=FedProx. `fedlit list` shows the names."""

REPRODUCE = """`fedlit list reproductions` shows the names, and which data and how much time each takes at either scale. Every
run is one of `fedlit sweep`: it is complete in itself, in RUN_DIR and in MLflow."""

SWEEP = """The YAML of a sweep:

  experiment: rates                       # groups the runs, on disk and in MLflow
  config: [../quickstart.yaml]            # what they start from, relative to this file
  set: {federation.rounds: 10}            # optional: keys for all runs
  cases:                                  # optional: named alternatives, each with any keys
    fedavg: {federation.aggregators: [FedAvg]}
    scaffold: {federation.aggregators: [{class_path: Scaffold, init_args: {eta_g: 1.0}}]}
  grid:                                   # optional: runs take every combination
    model.optimizer.lr: [0.1, 0.01]
  seeds: [0, 1, 2]                        # optional: 0 by default
  metric: val/auroc_macro                 # optional: what the summary shows; with a grid no test metric

Every configuration is checked before the first run starts.
Each run is a run of `fedlit fit`, in RUN_DIR/EXPERIMENT/NAME/. Its name is like scaffold,lr=0.1,seed=0.
Everything that it prints is in its console.log.
Finished runs are skipped, and unfinished ones are continued.
RUN_DIR/EXPERIMENT/sweep.csv has a row for each run.
In MLflow, runs that differ in their seed share the tag fedlit.group, and the tag fedlit.method holds the case."""

CHECK = """For a table of your own images (CSV, TSV, Parquet, spreadsheet) a YAML is printed first, which `fedlit fit --config FILE`
runs: what each column seems to be, and why. --set '{site: Ward}' puts a value of your own in its place.
With --classes, the classes of a federation, it also says which of them the table lacks.

The label files are read as `fedlit fit` reads them, and the header of every image is opened. With --decode every image is
decoded as well, which takes as long as the first run on the data. It finds damage behind a header, and equal or alike
pictures of different patients, in one folder or in two: copies that were compressed anew or resized, and most of those that
were cropped by some percent. Pairs are drawn into a file (--pairs); else nothing is written. The chest X-rays of RSNA
Pneumonia and SIIM Pneumothorax are those of NIH: as another site they are patients at two sites. The exit code is 0 when
nothing is wrong, 1 when something is wrong, and 2 when a folder is not
recognised."""

CACHE = """Images are decoded once, into one file for each list of images and size. What was removed is decoded again when it is
needed; remove nothing that a run is using."""

METRICS = {
    "train/loss": "Mean loss of the clients in the round. Of a saddle function it is no measure of progress.",
    "val/auroc/CLASS, val/auroc_macro": "AUROC of each class on the validation data, and the mean over classes with one.",
    "val/auroc_within/CLASS": "How far the exact AUROC may be away at most, where sites send histograms; of what they hide, in the worst case.",
    "test/SET/auroc_macro, test/SET/auroc_images": "The best model's mean AUROC on a test set, and how many images a class is "
    "ranked on, on average.",
    "test/SET/auroc_own_macro": "The same of personal heads, which rank fewer images: a client's count for its classes alone.",
    "client/NAME/...": "The same for one client on its own validation data.",
    "drift/client_drift": "Spread of the clients' updates: mean |delta_k|^2 - |mean delta|^2. Updates are as they are sent: "
    "what an aggregator scales or normalises before that has the drift of the scaled one.",
    "drift/alignment": "Mean pairwise alignment of the updates: 1 where all are equal, 0 where they are orthogonal, below 0 "
    "where they cancel.",
    "drift/update_norm": "Length of the mean update, |mean delta|.",
    "round/lr, round/stage": "Learning rate and stage of the schedule; round/lr/pg2 and so on are those of further parameter "
    "groups.",
    "round/steps": "Local steps of all clients in the round.",
    "bytes/up, bytes/down": "Bytes that all clients sent in the round, without what they keep to themselves or lack, and "
    "received: everything, whoever they are.",
    "time/round_s, time/evaluate_s": "Seconds of the round and of its evaluation.",
    "total/steps, total/bytes_up, total/bytes_down": "Sums over all rounds, logged at the end of the run.",
}
"""What every federation logs. An algorithm or an objective describes its own metrics, in ``metrics_help``."""

CHOSEN = (
    "Class of this part, by default {}. Its arguments follow as .NAME VALUE. A YAML file with class_path and init_args "
    "is possible too."
)


def metrics_help() -> str:
    """Return what a round logs, a line for each metric."""
    described = dict(METRICS)
    for axis in ("aggregators", "objectives"):
        for cls in shipped(axis):
            described |= getattr(cls, "metrics_help", {})
    return "\n".join(["What a round logs:", *(f"  {name}: {sentence}" for name, sentence in described.items())])


class HelpFormatter(DefaultHelpFormatter):
    """Leave out base classes, which are no choice, and the marks of docstrings. Keep the lines of lists and of a YAML."""

    bases = re.compile(
        r"(?:[a-z_]+\.)+(?:" + "|".join(axis.base.rpartition(".")[2] for axis in AXES.values()) + r")(?:, |(?=\)))"
    )

    def _expand_help(self, action: Action) -> str:
        return self.bases.sub("", super()._expand_help(action)).replace("``", "")

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n  " not in text:
            return super()._fill_text(text, width, indent)
        return "\n".join(self._fill_line(line, width) for line in text.splitlines())

    def _fill_line(self, line: str, width: int) -> str:
        start = len(line) - len(line.lstrip())
        further = " " * (start + 4) if start else ""
        return textwrap.fill(line, width, subsequent_indent=further, break_long_words=False, break_on_hyphens=False)
