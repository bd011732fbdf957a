"""What ``--help`` says beside the options, and how it is laid out."""

import re
from argparse import Action

from jsonargparse import DefaultHelpFormatter

from fedlit.choices import AXES

EPILOG = """Options come from YAML files (--config), from the command line, or both; the later wins. A class is given
by its short name or its class_path, its arguments as init_args: --data NIHChestXray14 --data.root FOLDER,
--model.optimizer Adam --model.optimizer.lr 1e-4, --federation.aggregators+=FedProx. `fedlit list` shows the names."""


REPRODUCE = """`fedlit list reproductions` shows the names, and what data and time each takes at either scale. Every run is
one of `fedlit sweep`: complete in itself, in RUN_DIR and in MLflow."""

SWEEP = """The YAML of a sweep:

  experiment: rates                       # of the runs, on disk and in MLflow
  config: [../quickstart.yaml]            # what they start from, relative to this file
  set: {federation.rounds: 10}            # optional: keys for all runs, as on the command line of fit
  cases:                                  # optional: named alternatives, each with any keys
    fedavg: {federation.aggregators: [FedAvg]}
    scaffold: {federation.aggregators: [{class_path: Scaffold, init_args: {eta_g: 1.0}}]}
  grid:                                   # optional: runs take every combination
    model.optimizer.lr: [0.1, 0.01]
  seeds: [0, 1, 2]                        # optional: 0 by default
  metric: test/federation/auroc_macro     # optional: what the summary shows

Every configuration is checked before the first run starts. A run is that of `fedlit fit`, in
RUN_DIR/EXPERIMENT/NAME/, with a name such as scaffold,lr=0.1,seed=0; what it prints is in its
console.log. Finished runs are skipped and unfinished ones go on. RUN_DIR/EXPERIMENT/sweep.csv
has a row a run; in MLflow the tag fedlit.group is shared by runs that differ in their seed, and fedlit.method is the case."""

CHECK = """The label files are read as `fedlit fit` reads them, and the header of every image is opened; nothing is written.
With --decode every image is decoded as well, which takes as long as the first run on the data: it finds damage behind a
header, and equal pictures of different patients, in one folder or in two. The chest X-rays of RSNA Pneumonia and SIIM
Pneumothorax are those of NIH: as another site they are patients at two sites. A picture that was changed or compressed
anew is not equal. The exit code is 0 when nothing is wrong, 1 when something is, 2 when a folder is not recognised."""

METRICS = """What a round logs, beside AUROC (val/auroc/CLASS, its macro mean, and per client):
drift/client_drift, mean |delta_k|^2 - |mean delta|^2, the spread of the clients' updates;
drift/alignment, their mean pairwise alignment: 1 all equal, 0 orthogonal, below 0 they cancel;
drift/update_norm, |mean delta|;
drift/c_norm and drift/c_k_norm, norms of the control variates of the server and of the clients, _dual of their dual part;
drift/curvature, with an inner step of rate rho: the mean of |rho H q| over that of |q|, its Hessian on the outer gradient;
objective/a, /b, /alpha, /p per class: mean score of positives, of negatives, the dual, the federation's share of positives;
val/auc_loss, the AUC objective at its closed-form a, b, alpha (train/loss of a saddle function is no measure of progress);
round/lr, round/stage: of the schedule; round/steps, bytes/up, bytes/down: over all clients; time/round_s, time/evaluate_s;
total/steps, /bytes_up, /bytes_down at the end of the run: their sums over its rounds."""

ONE_MODEL = {"norm": "FedBNPlus", "head": "SurgicalHeads"}
"""Algorithms that end in one model, by the part of it that others keep at the clients."""

CHOSEN = "a class (by default {}), an argument of it as .NAME VALUE, or a YAML file with class_path and init_args"


class HelpFormatter(DefaultHelpFormatter):
    """Leaves out base classes, which are no choice, and the marks of docstrings; keeps the lines of a YAML."""

    bases = re.compile(r"(?:[a-z_]+\.)+(?:" + "|".join(base.__name__ for base, _ in AXES.values()) + r")(?:, |(?=\)))")

    def _expand_help(self, action: Action) -> str:
        return self.bases.sub("", super()._expand_help(action)).replace("``", "")

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n  " in text else super()._fill_text(text, width, indent)
