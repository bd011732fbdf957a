"""The AUC saddle objective of federated deep AUC maximisation."""

from typing import Literal

import torch
from torch import Tensor, nn

from fedlit.core.errors import ConfigError
from fedlit.core.messages import State
from fedlit.core.ranges import Fraction, PositiveOrInf
from fedlit.objectives.shares import ShareObjective


class AUCSaddle(ShareObjective):
    """AUC maximisation as ``min over w, a, b, max over alpha`` (Yuan et al., ICML 2021, arXiv:2102.04635, eq. 2).

    With the score h of an image and the share p of positives in the whole federation, per class,

        F = (1-p) (h-a)^2 [y=1] + p (h-b)^2 [y=0] + 2 alpha (p(1-p) m + p h [y=0] - (1-p) h [y=1]) - p(1-p) alpha^2

    which is the margin form. With m = 1 it is eq. 2 (there ``1 + alpha`` stands for this ``alpha``) up to the constant
    p(1-p). Minimised over a, b and maximised over alpha it is p(1-p) times the pairwise surrogate
    ``E (m - (h+ - h-))^2`` over pairs of a positive and a negative, also across clients. At the optimum a and b are the
    mean scores of positives and of negatives, and alpha = m + b - a. All variables have one entry per class; the loss
    is the mean over the classes that the batch has labels of, and NaN labels do not count. A batch without positives
    (or negatives) needs no special case: the formula is its exact stochastic gradient.

    p, the start of a, b (class means of the initial scores) and of alpha are measured over all clients before the first
    round, with the federation's client weights; p is never that of a batch or of one client. Scores are measured as in
    training, with BatchNorm on statistics of the batch.

    Deviations: the score is the sigmoid of the logit (the paper's h is any network output); several classes are
    averaged.

    Args:
        margin: Margin m between the scores of positives and negatives, above 0.
        score: Score of an image: the ``sigmoid`` of the logit, or the ``raw`` logit.
        form: Form of the function: ``margin`` as above, or ``paper`` for eq. 2 to the letter, with its own alpha and
            constant (m = 1).
        clamp: Keep alpha >= 0, which makes the surrogate one-sided (the AUC margin loss of Yuan et al., 2020).
        dual_scale: Factor of the step of alpha; public code uses 1/(p(1-p)).
        prior: Share of positives p if it is known, one number for all classes; measured by default.
        start: Start of a, b and alpha: ``measured`` as above, or ``zeros``, from which training from scratch was seen
            to collapse.
        dual_means: Mean scores that determine the optimal alpha: ``pooled``, of all clients' images together, or
            ``clients``, the mean over clients of ``E[h | y=0] - E[h | y=1]``, as in CODA's paper (Guo et al., 2020),
            over the clients whose sample has both. This affects the start, and ``CODA``.

    Raises:
        ConfigError: The margin or the scale is not above 0, the prior is outside (0, 1), or the paper's form is used
            with another margin or a clamped alpha.
    """

    per_class_parameters = ("a", "b", "alpha")
    dual_parameters = ("alpha",)
    metrics_help = {
        "objective/a": "Mean score of the positives of a class.",
        "objective/b": "Mean score of the negatives of a class.",
        "objective/alpha": "Dual variable of a class.",
        "objective/p": "Share of positives of a class in the whole federation.",
        "val/auc_loss": "The AUC objective of all validation scores, at its closed-form a, b and alpha; train/loss of "
        "a saddle function does not measure progress.",
    }

    a: nn.Parameter
    b: nn.Parameter
    alpha: nn.Parameter

    def __init__(
        self,
        margin: PositiveOrInf = 1.0,
        score: Literal["sigmoid", "raw"] = "sigmoid",
        form: Literal["margin", "paper"] = "margin",
        clamp: bool = False,
        dual_scale: PositiveOrInf = 1.0,
        prior: Fraction | None = None,
        start: Literal["measured", "zeros"] = "measured",
        dual_means: Literal["pooled", "clients"] = "pooled",
    ) -> None:
        super().__init__(prior)
        if form == "paper" and margin != 1:
            raise ConfigError(f"AUCSaddle: the paper's form has margin 1, found {margin}; use form: margin")
        if form == "paper" and clamp:
            raise ConfigError(
                "AUCSaddle: clamp keeps alpha of the margin form at or above 0, which is 1 + alpha in the paper's "
                "form; use form: margin"
            )
        self.margin, self.score, self.clamp, self.dual_scale = margin, score, clamp, dual_scale
        self.start, self.dual_means = start, dual_means
        self.offset = 1.0 if form == "paper" else 0.0

    @property
    def measured(self) -> bool:
        """True if p is not given, or the start is that of the scores."""
        return super().measured or self.start == "measured"

    def build(self, num_classes: int) -> None:
        """Create the constant p [C] and a, b, alpha [C]."""
        super().build(num_classes)
        for name in self.per_class_parameters:
            setattr(self, name, nn.Parameter(torch.zeros(num_classes)))

    def scores(self, logits: Tensor) -> Tensor:
        """Return the scores h, of the shape of ``logits``."""
        return logits.sigmoid() if self.score == "sigmoid" else logits

    @property
    def margin_alpha(self) -> Tensor:
        """The dual [C] in the margin form; its gradient is scaled."""
        alpha = self.alpha + self.offset
        return alpha if self.dual_scale == 1 else torch.lerp(alpha.detach(), alpha, self.dual_scale)

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the saddle function F of a batch: ``logits`` [B, C], ``labels`` [B, C] in {0, 1, NaN}."""
        positive, negative = labels == 1, labels == 0
        known = positive | negative
        h, p, alpha = torch.where(known, self.scores(logits), 0.0), self.p, self.margin_alpha
        # One weight per label, signed for alpha: a term for each side would take a quarter more time.
        signed = torch.where(positive, p - 1, torch.where(negative, p, 0.0)) / known.sum(0).clamp(min=1)
        spread = (signed.abs() * (h - torch.where(positive, self.a, self.b)) ** 2).sum(0)
        gap, product = (signed * h).sum(0), p * (1 - p)
        function = spread + alpha * (2 * (product * self.margin + gap) - product * alpha) - product * self.offset
        labelled = known.any(0)
        return torch.where(labelled, function, 0.0).sum() / labelled.sum().clamp(min=1)

    def measure(self, logits: Tensor, labels: Tensor, all_labels: Tensor) -> State:
        """Return a client's share of positives and sums of scores, each [C]."""
        h, known = self.scores(logits), (~labels.isnan()).sum(0).clamp(min=1).to(logits.dtype)
        means = super().measure(logits, labels, all_labels) | {
            "h_positive": torch.where(labels == 1, h, 0.0).sum(0) / known,
            "h_negative": torch.where(labels == 0, h, 0.0).sum(0) / known,
            "n_positive": (labels == 1).sum(0) / known,
            "n_negative": (labels == 0).sum(0) / known,
        }
        if self.dual_means == "clients":
            gap = means["h_negative"] / means["n_negative"] - means["h_positive"] / means["n_positive"]
            means |= {"gap": gap.nan_to_num(0.0), "both": (~gap.isnan()).to(h.dtype)}
        return means

    @torch.no_grad()
    def settle(self, means: State) -> None:
        """Set p, and with ``start: measured`` a, b and alpha."""
        super().settle(means)
        if self.start == "measured":
            self.optimise(means)

    @torch.no_grad()
    def optimise(self, means: State) -> None:
        """Set a, b and alpha to their closed-form optimum; a class without positives or negatives is unchanged."""
        means = {name: mean.to(self.p) for name, mean in means.items()}
        both = (means["n_positive"] > 0) & (means["n_negative"] > 0)
        for variable, value in zip((self.a, self.b, self.alpha), self.optimum(means), strict=True):
            variable.copy_(torch.where(both & ~value.isnan(), value, variable))

    def optimum(self, means: State) -> tuple[Tensor, Tensor, Tensor]:
        """Return a, b, alpha [C] at the saddle point of measured scores; NaN without positives or negatives."""
        a, b = means["h_positive"] / means["n_positive"], means["h_negative"] / means["n_negative"]
        alpha = self.margin + (means["gap"] / means["both"] if "gap" in means else b - a)
        return a, b, (alpha.clamp(min=0) if self.clamp else alpha) - self.offset

    @torch.no_grad()
    def project(self) -> None:
        """Keep alpha in its range."""
        if self.clamp:
            self.alpha.clamp_(min=0)

    def pooled(self, logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return ``auc_loss``: p(1-p) times the pairwise surrogate of these scores, F at the optimal a, b, alpha."""
        h, p = self.scores(logits.double()), self.p.double().to(logits.device)
        means = self.measure(logits.double(), labels, labels)
        a, b, alpha = self.optimum(means)
        alpha = alpha + self.offset
        spread = [
            torch.where(labels == y, (h - mean) ** 2, 0.0).sum(0) / (labels == y).sum(0) for y, mean in ((1, a), (0, b))
        ]
        return {"auc_loss": p * (1 - p) * (sum(spread) + 2 * alpha * (self.margin + b - a) - alpha**2)}
