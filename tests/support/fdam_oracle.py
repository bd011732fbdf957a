"""Federated deep AUC maximisation transcribed from the paper (Yuan et al., ICML 2021), by hand and without fedlit.

Equations 1, 2, 5, 6 and Algorithms 1 to 4 as printed: dictionaries of tensors, loops over names and over clients. The
score is h(w; x), y = 1 is positive, y = 0 the paper's y = -1, NaN an unknown label. What the paper leaves open (the
start, several classes, BatchNorm, CODA's dual) is written once here and named where it is used.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Tensors = dict[str, Tensor]
Batch = tuple[Tensor, Tensor]
Sample = dict[str, list[Batch]]


def paper_form(h: Tensor, y: Tensor, a: Tensor, b: Tensor, alpha: Tensor, p: Tensor) -> Tensor:
    """F of eq. 2, for each example."""
    positive, negative = (y == 1).to(h.dtype), (y == 0).to(h.dtype)
    value = (1 - p) * (h - a) ** 2 * positive
    value = value + p * (h - b) ** 2 * negative
    value = value + 2 * (1 + alpha) * (p * h * negative - (1 - p) * h * positive)
    return value - p * (1 - p) * alpha**2


def margin_form(h: Tensor, y: Tensor, a: Tensor, b: Tensor, alpha: Tensor, p: Tensor, m: float = 1.0) -> Tensor:
    """F with a margin m in place of the 1, and the dual counted from 0."""
    positive, negative = (y == 1).to(h.dtype), (y == 0).to(h.dtype)
    value = (1 - p) * (h - a) ** 2 * positive
    value = value + p * (h - b) ** 2 * negative
    value = value + 2 * alpha * (p * (1 - p) * m + p * h * negative - (1 - p) * h * positive)
    return value - p * (1 - p) * alpha**2


def pairwise(h: Tensor, y: Tensor, m: float = 1.0) -> Tensor:
    """The square surrogate, mean over all pairs of a positive and a negative."""
    total, pairs = h.new_zeros(()), 0
    for high in h[y == 1]:
        for low in h[y == 0]:
            total = total + (m - (high - low)) ** 2
            pairs += 1
    return total / pairs


def prior(labels: dict[str, Tensor], weights: dict[str, float]) -> Tensor:
    """p of each class: the clients' shares of positives, in their weights, over those that label the class."""
    classes = next(iter(labels.values())).shape[1]
    p = torch.zeros(classes, dtype=torch.float64)
    for c in range(classes):
        above, below = 0.0, 0.0
        for k, y in labels.items():
            known = [v for v in y[:, c].tolist() if v == v]
            if known:
                above += weights[k] * sum(known) / len(known)
                below += weights[k]
        p[c] = above / below
    return p


@dataclass
class Stage:
    """eta_s, I_s and R_s; T_s = I_s R_s."""

    lr: float
    window: int
    rounds: int


@dataclass
class Snapshot:
    """After a round: v and alpha in one dictionary, running statistics, control variates."""

    x: Tensors
    stats: Tensors
    c: Tensors
    c_k: dict[str, Tensors]


@dataclass
class FDAM:
    """One run of NPA, CODA, CODA+ or CODASCA.

    Args:
        net: images to logits [B, C], in float64.
        batches: client -> its minibatches in order, one a local step.
        p: [C].
        gamma: coefficient of gamma/2 |v - v_0|^2 (eq. 5).
        scaffold: Alg. 4 in place of Alg. 2.
        reset: zero the control variates when a stage begins, as Alg. 4 says.
        extra: batches of a client after a round; c_k is then the mean of their gradients at the round's start.
        output: of a stage: ``last``, ``average`` (Alg. 2), ``random`` (Alg. 4), or ``centre``: the last iterate, and
            the next stage's v_0 is the average.
        implicit: the step on v as its argmin, eta known (CODA, Guo et al. 2020).
        zeros: a, b and alpha start at 0.
        dual_of: optimum of alpha from (scores, labels) of a sample.
        choose: stage -> number of the round whose iterate is its output, for ``random``.
        sample: number of the round -> extra minibatches of every client. Before the first round they give the start of
            a, b and alpha (the saddle's own at the initial scores); after a stage BatchNorm's statistics, if it
            returned an average; before a stage CODA's alpha.
        dual_from_sample: CODA.
        local: names that stay with the clients.
    """

    net: nn.Module
    batches: dict[str, Iterator[Batch]]
    p: Tensor
    gamma: float
    sample: Callable[[int], Sample]
    margin: float = 1.0
    score: Callable[[Tensor], Tensor] = torch.sigmoid
    scaffold: bool = False
    reset: bool = True
    extra: int = 0
    eta_g: float = 1.0
    output: str = "last"
    choose: Callable[[int], int] = lambda stage: 0
    dual_from_sample: bool = False
    local: frozenset[str] = frozenset()
    implicit: bool = False
    zeros: bool = False
    dual_of: Callable[[Sample, float], Tensor] = lambda scores, m: optimum(scores, m)[2]

    def __post_init__(self) -> None:
        self.x = {n: t.detach().clone() for n, t in self.net.named_parameters()}
        self.stats = {n: t.clone() for n, t in self.net.named_buffers() if t.is_floating_point()}
        scores = self.scores(self.sample(0))
        a, b, alpha = (*optimum(scores, self.margin)[:2], self.dual_of(scores, self.margin))
        self.x |= {n: torch.zeros_like(t) if self.zeros else t for n, t in (("a", a), ("b", b), ("alpha", alpha))}
        self.average: Tensors = {}
        self.done = 0
        self.kept: dict[str, Tensors] = {k: {} for k in self.batches}
        self._zero_control_variates()

    def run(self, stages: list[Stage]) -> Iterator[Snapshot]:
        """Alg. 1 and 3; a snapshot after every round, which after a stage's last round is the stage's output."""
        for number, stage in enumerate(stages):
            yield from self._stage(number, stage)

    def _stage(self, number: int, stage: Stage) -> Iterator[Snapshot]:
        centre = self.average if self.output == "centre" and number > 0 else _copy(self.x)
        if self.dual_from_sample and number > 0:
            self.x["alpha"] = self.dual_of(self.scores(self.sample(self.done)), self.margin)
        if self.reset:
            self._zero_control_variates()
        total = {n: torch.zeros_like(t) for n, t in self.x.items()}
        iterates: list[tuple[Tensors, Tensors]] = []
        for r in range(1, stage.rounds + 1):
            ends, statistics = {}, {}
            for k in self.batches:
                ends[k], statistics[k] = self._client(k, stage, centre, total)
            if self.scaffold:
                self._control_variates(ends, stage, centre)
            before, self.x = self.x, {}
            for n in before:
                mean = sum(ends[k][n] for k in ends) / len(ends)
                self.x[n] = before[n] if n in self.local else before[n] + self.eta_g * (mean - before[n])
            for n in self.stats:
                if n not in self.local:
                    self.stats[n] = sum(statistics[k][n] for k in ends) / len(ends)
            for k in ends:
                self.kept[k] = {n: t for n, t in (ends[k] | statistics[k]).items() if n in self.local}
            iterates.append((_copy(self.x), _copy(self.stats)))
            if r == stage.rounds:
                self._output(number, stage, total, iterates)
            self.done += 1
            yield Snapshot(_copy(self.x), _copy(self.stats), _copy(self.c), {k: _copy(c) for k, c in self.c_k.items()})

    def _client(self, k: str, stage: Stage, centre: Tensors, total: Tensors) -> tuple[Tensors, Tensors]:
        x = self.x | {n: t for n, t in self.kept[k].items() if n in self.x}
        stats = self.stats | {n: t for n, t in self.kept[k].items() if n in self.stats}
        x, stats = _copy(x), _copy(stats)
        for _ in range(stage.window):
            images, labels = next(self.batches[k])
            gradient = self._gradient(x, stats, images, labels)
            for n in x:
                shared = n not in self.local
                if n == "alpha":
                    g = gradient[n]
                    if self.scaffold:
                        g = g - self.c_k[k][n] + self.c[n]
                    x[n] = x[n] + stage.lr * g
                else:
                    g = gradient[n]
                    if self.implicit:
                        # 0 = g + (v - v_t) / eta + gamma (v - v_0)
                        x[n] = (x[n] / stage.lr + self.gamma * centre[n] - g) / (1 / stage.lr + self.gamma)
                        continue
                    if shared:
                        g = g + self.gamma * (x[n] - centre[n])
                        if self.scaffold:
                            g = g - self.c_k[k][n] + self.c[n]
                    x[n] = x[n] - stage.lr * g
            for n in x:
                total[n] = total[n] + x[n]
        return x, stats

    def _gradient(self, x: Tensors, stats: Tensors, images: Tensor, labels: Tensor) -> Tensors:
        """Gradient of F_k by every variable; BatchNorm sees the batch and moves the client's statistics."""
        leaves = {n: t.clone().requires_grad_() for n, t in x.items()}
        inner = {n: t for n, t in leaves.items() if n not in ("a", "b", "alpha")}
        self.net.train()
        logits = torch.func.functional_call(self.net, inner | stats, (images,))
        value = self.objective(logits, labels, leaves)
        return dict(zip(leaves, torch.autograd.grad(value, list(leaves.values()), allow_unused=False), strict=True))

    def objective(self, logits: Tensor, labels: Tensor, x: Tensors) -> Tensor:
        """Mean over the classes that the client labels, of the mean over its labelled examples."""
        values = []
        for c in range(labels.shape[1]):
            known = ~labels[:, c].isnan()
            if known.any():
                h = self.score(logits[known, c])
                y = labels[known, c]
                values.append(margin_form(h, y, x["a"][c], x["b"][c], x["alpha"][c], self.p[c], self.margin).mean())
        return sum(values) / len(values)

    def _control_variates(self, ends: dict[str, Tensors], stage: Stage, centre: Tensors) -> None:
        """Eq. 6, or the alternative below eq. 7 with extra batches, then c as the mean of the c_k."""
        for k, end in ends.items():
            x = self.x | {n: t for n, t in self.kept[k].items() if n in self.x}
            found = [self._gradient(x, _copy(self.stats), *next(self.batches[k])) for _ in range(self.extra)]
            for n in self.x:
                if n in self.local:
                    continue
                if found:
                    pull = 0 if n == "alpha" else self.gamma * (x[n] - centre[n])
                    self.c_k[k][n] = sum(each[n] for each in found) / len(found) + pull
                    continue
                if n == "alpha":
                    moved = (end[n] - self.x[n]) / (stage.window * stage.lr)
                else:
                    moved = (self.x[n] - end[n]) / (stage.window * stage.lr)
                self.c_k[k][n] = self.c_k[k][n] - self.c[n] + moved
        for n in self.x:
            self.c[n] = sum(self.c_k[k][n] for k in ends) / len(ends)

    def _output(self, number: int, stage: Stage, total: Tensors, iterates: list[tuple[Tensors, Tensors]]) -> None:
        if self.output == "centre":
            self.average = {n: total[n] / (stage.window * stage.rounds * len(self.batches)) for n in self.x}
        if self.output == "average":
            steps = stage.window * stage.rounds
            for n in self.x:
                if n not in self.local:
                    self.x[n] = total[n] / (steps * len(self.batches))
            self.stats = pooled_statistics(self.net, self.x, self.sample(self.done))
        elif self.output == "random":
            x, stats = iterates[self.choose(number)]
            self.x, self.stats = _copy(x), _copy(stats)

    def scores(self, sample: Sample) -> Sample:
        """(scores, labels) of a sample under the present model, BatchNorm seeing each minibatch as in training."""
        self.net.train()
        inner = {n: t for n, t in self.x.items() if n not in ("a", "b", "alpha")}
        found: Sample = {}
        with torch.no_grad():
            for k, batches in sample.items():
                found[k] = []
                for images, labels in batches:
                    logits = torch.func.functional_call(self.net, inner | _copy(self.stats), (images,))
                    found[k].append((self.score(logits), labels))
        return found

    def _zero_control_variates(self) -> None:
        self.c = {n: torch.zeros_like(t) for n, t in self.x.items()}
        self.c_k = {k: _copy(self.c) for k in self.batches}


def optimum(scores: Sample, m: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """The saddle's a, b, alpha at fixed scores: class means and m + b - a.

    The objective is the mean of the clients', so each client's sums are first divided by its number of labels.
    """
    classes = next(iter(scores.values()))[0][0].shape[1]
    a, b = (torch.zeros(classes, dtype=torch.float64) for _ in range(2))
    for c in range(classes):
        above, below = {1.0: 0.0, 0.0: 0.0}, {1.0: 0.0, 0.0: 0.0}
        for batches in scores.values():
            pairs = [(float(h), float(y)) for hs, ys in batches for h, y in zip(hs[:, c], ys[:, c], strict=True)]
            pairs = [(h, y) for h, y in pairs if y == y]
            for h, y in pairs:
                above[y] += h / len(pairs)
                below[y] += 1 / len(pairs)
        a[c], b[c] = above[1.0] / below[1.0], above[0.0] / below[0.0]
    return a, b, m + b - a


def mean_of_own(scores: Sample, m: float = 1.0) -> Tensor:
    """CODA's dual as cited: the mean over clients of (mean score of negatives - mean score of positives), plus m."""
    classes = next(iter(scores.values()))[0][0].shape[1]
    alpha = torch.zeros(classes, dtype=torch.float64)
    for c in range(classes):
        gaps = []
        for batches in scores.values():
            pairs = [(float(h), float(y)) for hs, ys in batches for h, y in zip(hs[:, c], ys[:, c], strict=True)]
            high, low = ([h for h, y in pairs if y == value] for value in (1.0, 0.0))
            if high and low:
                gaps.append(sum(low) / len(low) - sum(high) / len(high))
        alpha[c] = m + sum(gaps) / len(gaps)
    return alpha


def pooled_statistics(net: nn.Module, x: Tensors, sample: Sample) -> Tensors:
    """BatchNorm's statistics of the activations of all clients together, each client with the same weight.

    A minibatch gives its mean and its (unbiased) variance; together the variance is the mean of the variances and the
    variance of the means.
    """
    layers = {n: m for n, m in net.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)}
    seen: dict[str, Tensor] = {}
    hooks = [m.register_forward_pre_hook(lambda m, inputs, n=n: seen.update({n: inputs[0]})) for n, m in layers.items()]
    inner = {n: t for n, t in x.items() if n not in ("a", "b", "alpha")}
    scratch = {n: t.clone() for n, t in net.named_buffers() if t.is_floating_point()}
    parts: dict[str, list[tuple[float, Tensor, Tensor]]] = {n: [] for n in layers}
    net.train()
    with torch.no_grad():
        for batches in sample.values():
            for images, _ in batches:
                torch.func.functional_call(net, inner | scratch, (images,))
                for n, values in seen.items():
                    values = values.transpose(0, 1).flatten(1)
                    parts[n].append((1 / len(batches) / len(sample), values.mean(1), values.var(1)))
    for hook in hooks:
        hook.remove()
    result = {}
    for n, each in parts.items():
        mean = sum(share * m for share, m, _ in each)
        result[f"{n}.running_mean"] = mean
        result[f"{n}.running_var"] = sum(share * (v + (m - mean) ** 2) for share, m, v in each)
    return result


def _copy(tensors: Tensors) -> Tensors:
    return {n: t.clone() for n, t in tensors.items()}
