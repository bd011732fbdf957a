"""Classes that exclude each other have the AUROC of the softmax, whatever computes it."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from engine_rounds import unprobed
from exclusive import CLASSES, Cross, Each, Insects, Tilted, examples, logits_of
from sklearn.metrics import brier_score_loss, roc_auc_score
from torch import nn

import fedlit
from fedlit.objectives import BCE, FedLC, SoftmaxFocalLoss
from fedlit.predictions import read
from fedlit.reports.compare.comparison import compare_runs
from fedlit.reports.compare.runs import load_runs
from fedlit.reports.evaluation.evaluation import EvaluationOptions, evaluate_runs

pytestmark = pytest.mark.usefixtures("folder")

OPTIONS = "--logger false --federation.workers 1 --federation.rounds 1 --data exclusive.Insects"
SOFTMAX = "classes exclude each other: the scores are the softmax of what {} returns"


def aurocs(shares, part: int) -> list[float]:
    """The AUROC of each class on the clients' parts, 1 for validation and 2 for test."""
    labels = torch.cat([examples(10 * k + part).tensors[1] for k in range(2)])
    return [roc_auc_score(labels == c, shares[:, c]) for c in range(3)]


def pooled(module, part: int) -> torch.Tensor:
    return torch.cat([logits_of(examples(10 * k + part), module) for k in range(2)]).double()


def logged(metrics, prefix: str) -> list[float]:
    return [float(metrics[f"{prefix}/auroc/{name}"]) for name in CLASSES]


def fitted(module, form: str = "indices", **options):
    data = Insects(form)
    data.setup()
    clients = {name: (c.train, c.val, c.test) for name, c in data.clients.items()}
    with unprobed():
        return fedlit.fit(module, clients, rounds=1, batch_size=8, **options)


@pytest.mark.parametrize(
    ("module", "form"),
    [
        (lambda form: Tilted(objective=SoftmaxFocalLoss()), "indices"),
        (lambda form: Tilted(objective=nn.CrossEntropyLoss()), "rows"), (Cross, "indices"),
        (lambda form: Cross(form, "logs"), "indices"), (lambda form: Cross(form, "shares"), "rows"),
    ],
    ids=["focal", "cross-entropy", "logits", "log-probabilities", "probabilities"],
)  # fmt: skip
def test_the_validation_and_the_test_of_fit_rank_by_the_softmax(module, form, capsys):
    module = module(form)
    result = fitted(module, form)
    shares = [pooled(result.model, part).softmax(1) for part in (1, 2)]
    assert logged(result.test, "test/federation") == pytest.approx(aurocs(shares[1], 2), abs=1e-3)
    assert logged(result.metrics.loc[result.best_round], "val") == pytest.approx(aurocs(shares[0], 1), abs=1e-3)
    assert max(aurocs(pooled(result.model, 2), 2)) < 0.65 < min(aurocs(shares[1], 2))  # logits rank by brightness
    kept = read(result.directory / "predictions" / "federation.parquet")
    torch.testing.assert_close(kept.scores.sigmoid(), shares[1].float(), rtol=1e-4, atol=1e-6)
    step = f"{type(module).__name__}.validation_step"
    given = f"classes exclude each other: the scores are the probabilities that {step} returns"
    expected = given if getattr(module, "scores", "") == "shares" else SOFTMAX.format(step)
    assert capsys.readouterr().out.count(expected) == 1


def test_workers_decide_as_this_process_does():
    one, two = (fitted(Cross(scores="shares"), workers=workers) for workers in (1, 2))
    kept = [read(result.directory / "predictions" / "federation.parquet").scores for result in (one, two)]
    assert torch.equal(*kept)


@pytest.mark.parametrize(
    ("module", "form", "said"),
    [
        (lambda: Tilted(objective=BCE()), "rows", False), (lambda: Tilted(objective=FedLC()), "indices", False),
        (lambda: Each("indices"), "indices", True),
    ],
    ids=["BCE", "FedLC", "own"],
)  # fmt: skip
def test_labels_of_their_own_are_ranked_by_the_logits_bit_for_bit(module, form, said, capsys):
    """Whether an image may have several classes is no matter of the images that a client happens to have."""
    result = fitted(module(), form)
    kept = read(result.directory / "predictions" / "federation.parquet")
    assert torch.equal(kept.scores, pooled(result.model, 2).float())
    out = capsys.readouterr().out
    assert "exclude each other" not in out
    assert ("each class has a yes or no of its own" in out) == said


def test_every_command_has_the_same_auroc(fedlit_cli):
    options = f"{OPTIONS} --model exclusive.Cross"
    fedlit_cli(f"fit {options} --name run").succeeded()
    run = Path("runs/default/run")
    expected = logged(fedlit.tracking.run.Result.read(run).metrics, "test/federation")
    printed = fedlit_cli(f"test {options} --ckpt_path best --output again").succeeded()
    assert all(f"{value:.4f}" in printed for value in expected)
    assert torch.equal(*(read(f / "federation.parquet").scores for f in (run / "predictions", Path("again"))))
    fedlit_cli(f"predict {options} --ckpt_path best --format csv --output predicted").succeeded()
    table = pd.read_csv("predicted/federation_test.csv")
    shares = table[[f"score/{name}" for name in CLASSES]].to_numpy()
    np.testing.assert_allclose(shares.sum(1), 1, atol=1e-5)
    assert aurocs(shares, 2) == pytest.approx(expected, abs=1e-3)
    # The numbers of `compare` and of `evaluate`, without the seconds that their figures take.
    runs, notes = load_runs([str(run), "predicted/federation_test.csv"], None, {}, "", Path())
    rows = compare_runs(runs, notes, None, draws=20).statistics.auroc_table().set_index("class")
    for name, value in zip(CLASSES, expected, strict=True):
        assert rows.loc[name, "auroc"].tolist() == pytest.approx([value] * 2, abs=1e-3)
    rows = evaluate_runs(runs[:1], EvaluationOptions(draws=20)).estimates
    rows = rows[(rows["by"] == "all") & (rows["class"] == "ant")].set_index("measure")["value"]
    assert rows["auroc"] == pytest.approx(expected[0], abs=1e-9)
    assert rows["brier"] == pytest.approx(brier_score_loss(table["label/ant"], shares[:, 0]), rel=1e-4)
