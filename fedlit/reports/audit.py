"""Audit of a trained model: what its losses reveal about the patients that it was trained on."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import torch.nn.functional as F
from scipy.stats import chi2_contingency
from torch import Tensor
from torch.utils.data import Dataset

from fedlit import __version__
from fedlit.core.checkpoints import checkpoint
from fedlit.core.checkpoints.manifest import Manifest
from fedlit.core.errors import ConfigError
from fedlit.core.system.files import whole
from fedlit.data.clients import groups_of, patients_of
from fedlit.data.federated import FederatedDataModule
from fedlit.experiment.options import composed, experiment_parser
from fedlit.federation.engines.scores import Scores, View
from fedlit.federation.evaluation import evaluate_sets
from fedlit.metrics.intervals import MIN_PATIENTS
from fedlit.metrics.membership import FEWEST_FALSE, RATES, TITLES, Estimate, membership
from fedlit.predictions.table import GROUP
from fedlit.reports.compare.page import Chart, report_folder, template
from fedlit.reports.compare.roc import patient_draws, roc_curve
from fedlit.reports.table import Number, Table, interval_text, short
from fedlit.tracking.figures import COLOURS, blank_figure, roc_axes

FOLDER, FILE = "audit", "audit.json"
PARTS = ("train", "val", "test")
ALL, POSITIVE, CLIENT, SITE = "all", "positive for", "client", "site"
MEANING = (
    "AUROC is the probability that the model has a lower loss on a patient of its training set than on another patient "
    "of the same clients: at 0.5 the loss says nothing, and at 1 anybody who has the model, and an image with its "
    "labels, can tell whether the patient was in the training set."
)
LIMITS = (
    "A threshold on the loss is the weakest attack, and a better one may find more: no value in this audit shows that "
    "a model reveals nothing."
)
CHANCE = 0.001
"""Level of the test for different shares of training patients at the clients."""


@dataclass(frozen=True)
class Row:
    """Result for one set of patients; without estimates there is a reason."""

    of: str  # ``all``, ``positive for``, or a kind of group.
    value: str  # The class or the group; "" for all patients.
    members: int  # Number of patients in the training set.
    others: int  # Number of other patients.
    estimates: dict[str, Estimate] = field(default_factory=dict)
    reason: str = ""  # Why there are no estimates.

    @property
    def name(self) -> str:
        """Readable name of the set."""
        return f"{self.of} {self.value}".strip()

    def as_json(self) -> dict[str, object]:
        """Return the row with null for small or undefined numbers."""
        shown = {name: _finite(asdict(each)) for name, each in self.estimates.items()}
        counts = {name: _counted(getattr(self, name)) for name in ("members", "others")}
        return {"of": self.of, "value": self.value, **counts, **(shown or dict.fromkeys(TITLES)), "reason": self.reason}


@dataclass(frozen=True, eq=False)
class Audit:
    """Results of an audit."""

    model: str  # Readable name of the model.
    weights: str  # SHA-256 of its file of weights.
    level: float  # Level of the intervals.
    draws: int  # Number of draws of the bootstrap.
    rows: Sequence[Row]  # That of all patients is the first; none if the sides are not comparable.
    notes: Sequence[str]
    curve: tuple[np.ndarray, np.ndarray] | None  # `[P]` mean loss of each patient, and whether the patient is a member.
    not_comparable: str = ""  # Why no comparison is possible.

    @property
    def verdict(self) -> str:
        """Return a sentence about all patients."""
        if self.not_comparable or self.rows[0].reason:
            return f"No number: {self.not_comparable or self.rows[0].reason}."
        row, auroc = self.rows[0], self.rows[0].estimates["auroc"]
        known = auroc.low == auroc.low
        ends = f", {100 * self.level:g}% interval {interval_text(auroc.low, auroc.high)}" if known else ""
        tells = "does not tell" if auroc.low <= 0.5 or auroc.value <= 0.5 else "tells"
        return (
            f"The loss of the model {tells} its {row.members:,} training patients from {row.others:,} other patients: "
            f"AUROC {short(auroc.value)}{ends}."
        )

    def table(self, measures: Sequence[str] = tuple(TITLES)) -> Table:
        """Return the table of all rows, with some measures."""
        cells = [
            (row.name, *(str(_counted(each) or f"< {MIN_PATIENTS}") for each in (row.members, row.others)),
             *(_number(row.estimates.get(name)) for name in measures))
            for row in self.rows
        ]  # fmt: skip
        caption = "Attack by the loss, with numbers of training patients and of other patients"
        heads = ("training", "others", *(TITLES[name] for name in measures))
        needed = [f"{FEWEST_FALSE / rate:,.0f} other patients at {100 * rate:g}%" for rate in RATES.values()]
        note = f"- is undefined, as with few patients; TPR needs {' and '.join(needed)}"
        return Table(caption, ("patients",), heads, cells, note=note)

    def as_json(self) -> dict[str, object]:
        """Return the content of ``audit.json``."""
        plain = {
            name: getattr(self, name) for name in ("model", "weights", "level", "draws", "not_comparable", "notes")
        }
        texts = {"fedlit": __version__, "meaning": MEANING, "limits": LIMITS, "verdict": self.verdict}
        return texts | plain | {"results": [row.as_json() for row in self.rows]}


def images_of(run: Path) -> tuple[pd.DataFrame, str, str]:
    """Score the images of a run by its best model; return their table, the model's name and the hash of its weights.

    Raises:
        ConfigError: The directory has no checkpoints, its clients were at sites, or its data have another split now.
    """
    if (run / "sites.json").is_file():
        raise ConfigError(
            f"{run}: its clients trained at their sites, whose images are not here; each site can audit the "
            "model that it received: fedlit site audit PATH"
        )
    folder = run / "checkpoints"
    best = checkpoint.find(folder, "best") or checkpoint.find(folder, "last")
    if best is None:
        raise ConfigError(f"{run}: expected the directory of a run, with checkpoints, found none; name another")
    options = experiment_parser()
    words = ["--config", str(run / "config.yaml"), "--ckpt_path", str(run)]
    with composed(options.parse_args([*options.first_words, *words]), options) as experiment:
        experiment.data.augment = False  # the loss of an altered image says little about the image
        session, trained = experiment.session(run), run / "partition.csv"
        with closing(session.engine):
            split = session.data.assignment
            if split is not None and trained.is_file() and split.to_csv(index=False) != trained.read_text():
                raise ConfigError(
                    f"{trained}: expected the split of the data as they are now, found another, so it is not known who "
                    "was in the training set; restore the data of the run"
                )
            server, rounds, _ = session.restore(best)
            sets = [evaluate_sets(session, server, part).get("federation", []) for part in PARTS]
            scored = [scores for views in sets for scores in views]
            images = image_table(scored, session.program.dataset, session.data, session.classes, session.exclusive)
        whose = ", each client's own" if session.personal else ""
        return images, f"{run}, the best model{whose}, after round {rounds}", Manifest.read(best).sha256["server.pt"]


def image_table(
    scored: Iterable[Scores], dataset_of: Callable[[View], Dataset], data: FederatedDataModule,
    classes: Sequence[str], exclusive: bool,
) -> pd.DataFrame:  # fmt: skip
    """Return a row for each image of the clients' parts that were scored.

    The columns are ``loss``, ``member`` (whether the model was trained on it), ``drawn`` (whether chance decided this,
    None if it is not known), ``patient`` ("" if unknown), ``client``, ``site``, ``group/NAME``, and ``positive/CLASS``.

    Raises:
        ConfigError: The model gives no scores of classes.
    """
    drawn, tables = data.drawn_images(), []
    for each in scored:
        view, dataset, n = each.view, dataset_of(each.view), each.examples
        if each.scores is None:
            raise ConfigError(
                "audit: expected scores of classes, from which the loss of an image is computed, found a model whose "
                "validation_step returns none; return logits [B, C], or name the model's classes"
            )
        # A test set has labels that its client does not train with; their loss would look like that of a stranger.
        own = each.labels.new_tensor([name in data.clients[view.holder].classes for name in classes]).bool()
        labels = each.labels.masked_fill(~own, float("nan"))
        names, patients = np.asarray(getattr(dataset, "names", np.arange(len(dataset))))[:n], patients_of(dataset, n)
        columns = {"loss": losses(each.scores, labels, exclusive), "member": view.part == "train"}
        columns |= {"drawn": None if drawn is None else np.isin(names, list(drawn))}
        columns |= {"patient": "" if patients is None else patients, CLIENT: view.holder}
        columns |= {SITE: np.asarray(getattr(dataset, "sites", np.full(n, "")))[:n].astype(str)}
        columns |= {f"{GROUP}{name}": of[:n].astype(str) for name, of in groups_of(dataset).items()}
        columns |= {f"positive/{name}": labels[:, i].numpy() == 1 for i, name in enumerate(classes)}
        tables.append(pd.DataFrame(columns))
    return pd.concat(tables, ignore_index=True)


def losses(scores: Tensor, labels: Tensor, exclusive: bool) -> np.ndarray:
    """Return the cross-entropy of each image, ``[N]``: the mean over its known labels, NaN without any.

    If classes exclude each other, it is that of the image's class.
    """
    terms = F.binary_cross_entropy_with_logits(scores.double(), labels.double().nan_to_num(), reduction="none")
    known = labels == 1 if exclusive else ~labels.isnan()
    return (terms.where(known, 0).sum(1) / known.sum(1)).numpy()


def audited(
    images: pd.DataFrame, by: Sequence[str] | None, level: float, draws: int, model: str = "", weights: str = ""
) -> Audit:
    """Audit a model by the losses of images, see ``image_table``; ``by`` are kinds of groups, by default all.

    Raises:
        ConfigError: There is no such kind of groups.
    """
    kinds = _kinds(images, by)
    settings = {"model": model, "weights": weights, "level": level, "draws": draws}
    if images["drawn"].isna().any():
        reason = "not comparable: the data come with their own split, and fedlit does not know if chance decided it"
        return Audit(**settings, rows=(), notes=(), curve=None, not_comparable=reason)
    kept, notes = images[images["drawn"].astype(bool) & np.isfinite(images["loss"])], []
    if len(kept) < len(images):
        left = f"{len(images) - len(kept):,} of {len(images):,} images"
        notes.append(f"{left} are left out: their split is official, so not decided by chance, or no label is known")
    if len(set(kept["member"])) < 2:
        reason = (
            "not comparable: training patients and other patients are not from one draw, because the split is "
            "official; a difference between them would look like membership"
        )
        return Audit(**settings, rows=(), notes=notes, curve=None, not_comparable=reason)
    if (kept["patient"] == "").any():
        kept = kept.assign(patient=np.arange(len(kept)))
        notes.append("patients are not known, so each image counts as one, and intervals may be too narrow")
    sets = [(ALL, "", kept)]
    sets += [(POSITIVE, name.partition("/")[2], kept[kept[name]]) for name in kept if name.startswith("positive/")]
    for kind, column in kinds.items():
        sets += [(kind, str(value), part) for value, part in kept.groupby(column, sort=True) if value != ""]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        rows = list(pool.map(lambda each: _row(*each, level, draws), sets))
    whole_set = kept.groupby("patient").agg({"loss": "mean", "member": "any"})
    curve = None if rows[0].reason else (whole_set["loss"].to_numpy(), whole_set["member"].to_numpy())
    return Audit(**settings, rows=rows, notes=notes, curve=curve)


def _kinds(images: pd.DataFrame, by: Sequence[str] | None) -> dict[str, str]:
    """Return the columns of the kinds of groups."""
    kinds = {name.removeprefix(GROUP): name for name in images if name.startswith(GROUP)}
    if images[CLIENT].nunique() > 1:
        kinds |= {CLIENT: CLIENT}
    known = kinds | {CLIENT: CLIENT, SITE: SITE}
    if unknown := [name for name in by or () if name not in known]:
        raise ConfigError(f"--by: expected some of {', '.join(known)}, found {unknown[0]!r}; correct it")
    return kinds if by is None else {name: known[name] for name in by}


def _row(of: str, value: str, images: pd.DataFrame, level: float, draws: int) -> Row:
    patients = images.groupby("patient").agg({"loss": "mean", "member": "any"})
    members = int(patients["member"].sum())
    counts = {"of": of, "value": value, "members": members, "others": len(patients) - members}
    if min(members, counts["others"]) < MIN_PATIENTS:
        return Row(**counts, reason=f"fewer than {MIN_PATIENTS} training patients or other patients")
    if of != CLIENT and images[CLIENT].nunique() > 1:
        people = images.drop_duplicates(["patient", CLIENT])
        if chi2_contingency(pd.crosstab(people[CLIENT], people["member"])).pvalue < CHANCE:
            return Row(**counts, reason=(
                "not comparable: clients differ in their share of training patients, so a difference between clients "
                "would look like membership; the rows of single clients are comparable"
            ))  # fmt: skip
    estimates = membership(patients["loss"].to_numpy(), patients["member"].to_numpy(), level, draws)
    return Row(**counts, estimates=estimates)


def write_audit(audit: Audit, folder: Path) -> Path:
    """Write ``audit.json``, the page and its ROC curve to a folder, replacing earlier ones; return the page.

    Raises:
        ConfigError: The folder cannot be created.
    """
    charts = list(_charts(audit))
    page = report_folder(folder, charts)
    with whole(folder / FILE) as draft:
        draft.write_text(json.dumps(audit.as_json(), indent=1), encoding="utf-8")
    text = template("compare/audit.html.jinja").render(
        audit=audit, charts=charts, meaning=MEANING, limits=LIMITS, fewest=MIN_PATIENTS, version=__version__
    )
    page.write_text(text, encoding="utf-8")
    return page


def _charts(audit: Audit) -> Iterator[Chart]:
    if audit.curve is None:
        return
    loss, member = audit.curve
    band = roc_curve([-loss], [member.astype(float)], patient_draws(np.arange(len(loss))))
    figure = blank_figure(3.4, 3.3)
    axes = figure.subplots()
    roc_axes(axes)
    axes.fill_between(band.x, band.low, band.high, color=COLOURS[0], alpha=0.16, linewidth=0)
    axes.plot(np.append(0, band.x), np.append(0, band.mean), color=COLOURS[0], linewidth=1.3)
    axes.set_xlabel("other patients taken for training patients", fontsize=8)
    axes.set_ylabel("training patients found", fontsize=8)
    caption = (
        "Shares of patients with a loss below each threshold. The band is the pointwise 95% interval over patients."
    )
    yield Chart("roc", figure, caption, "ROC curve of the attack by the loss.")


def _number(estimate: Estimate | None) -> Number:
    if estimate is None:
        return Number("-")
    interval = interval_text(estimate.low, estimate.high) if estimate.low == estimate.low else ""
    return Number(short(estimate.value), interval=interval)


def _counted(patients: int) -> int | None:
    return patients if patients >= MIN_PATIENTS else None


def _finite(values: dict[str, float]) -> dict[str, float | None]:
    return {name: value if value == value else None for name, value in values.items()}
