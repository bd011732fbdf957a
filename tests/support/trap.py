"""Weights of a vision transformer from whose update images can be read, and the server that sends them.

`tests/benchmarks/floors.py` uses them.

The idea is that of Fowl et al., "Robbing the Fed", ICLR 2022, arXiv:2110.13057; this form for a vision transformer is
ours: attention of the first block writes one number of the whole image, such as its brightness, into every token. A
row of an MLP fires at one position only, and only if that number is above the row's threshold. The gradients of two
rows with neighbouring thresholds differ by the images in between; if there is one, the difference is its patch at that
position.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from attacker import Attacker
from torch import Tensor, nn

from fedlit.sites.envelope import Envelope
from fedlit.sites.messages import REPLY, new_run

SEED = 0
"""Of the plans, and so of the order in which a site takes its images."""

CONSTANT, OPPOSITE, NUMBER, OUT, ZERO, BLANK, CODE = 0, 1, 2, 3, 4, 5, slice(6, 14)
"""Dimensions of a token: +M, -M, the image's number, the way to the loss, two zeros, and the position; then come
pixels."""

M, PIXEL, SLOPE, GATE, FAINT, LR = 1e3, 1e-2, 1e5, 4e6, 1e-8, 1e-12
"""M dwarfs the rest of a token, so that LayerNorm divides each by the same; the rate moves no weight that was
chosen."""


def answered(answer: Envelope) -> Envelope:
    """Return an answer that is none of a refusal.

    Raises:
        RuntimeError: The site refuses; has its words.
    """
    if answer.verb != REPLY:
        raise RuntimeError(f"the site refuses: {answer.content['reason']}")
    return answer


class Server(Attacker):
    """A malicious server that waits as long as a slow machine needs."""

    def raw(self, content: bytes, seconds: float = 1800) -> Envelope:
        """Send bytes, and return the answer."""
        return super().raw(content, seconds)

    largest = float("inf")

    def begin(self, backbone: str, lr: float, aggregators: Sequence[str] = (), **plan: Any) -> None:
        """Begin a run with plain SGD.

        Raises:
            RuntimeError: The site refuses it.
        """
        rate = {"class_path": "torch.optim.SGD", "init_args": {"lr": lr}}
        model = {
            "class_path": "ImageClassifier",
            "init_args": {"backbone": backbone, "norm": plan.pop("norm", "batch"), "optimizer": rate},
        }
        algorithms = [{"class_path": name} for name in aggregators]
        answered(self.prepare(run=new_run(), model=model, aggregators=algorithms, seed=SEED, rounds=100, **plan))

    @property
    def weights(self) -> dict[str, nn.Parameter]:
        """Parameters of the model that was prepared, by name; they are views of the vector that is sent."""
        return dict(self.model.module.named_parameters())

    def parts(self, vector: Tensor) -> dict[str, Tensor]:
        """Cut a vector into the parameters."""
        return {entry.name: entry.view(vector) for entry in self.model.layout.parameters}


def low_frequencies(size: int, count: int) -> Tensor:
    """Return the lowest cosines of a square patch, [count, size, size], orthonormal."""
    k = torch.arange(size, dtype=torch.float64)
    waves = torch.cos(torch.pi * (k + 0.5) * k[:, None] / size) * (2 / size) ** 0.5
    waves[0] /= 2**0.5
    pairs = sorted(((a, b) for a in range(size) for b in range(size)), key=lambda pair: (sum(pair), pair))[:count]
    return torch.stack([torch.outer(waves[a], waves[b]) for a, b in pairs]).float()


@torch.enable_grad()
def apart(count: int, size: int) -> Tensor:
    """Return unit vectors [count, size] that are far from each other."""
    vectors = torch.randn(count, size, generator=torch.Generator().manual_seed(1)).requires_grad_()
    optimizer = torch.optim.Adam([vectors], lr=0.02)
    for _ in range(300):
        units = F.normalize(vectors, dim=1)
        optimizer.zero_grad()
        (30 * (units @ units.T - 2 * torch.eye(count))).flatten().logsumexp(0).backward()
        optimizer.step()
    return F.normalize(vectors.detach(), dim=1)


class Trap:
    """Weights of a vision transformer whose update shows the images that it was trained on.

    Args:
        server: A server that has prepared such a model.
        public: Images [m, 1, S, S] from which it guesses how an image's number is distributed.
        number: Which number of an image the thresholds are for; 0 is its brightness.
    """

    def __init__(self, server: Server, public: Tensor, number: int = 0) -> None:
        self.server, self.weights = server, server.weights
        self.body = body = server.model.module.body
        self.blocks = len(body.blocks)
        self.width, self.positions = body.embed_dim, body.patch_embed.num_patches
        self.patch = body.patch_embed.patch_size[0]
        self.pixels = slice(CODE.stop, self.width)
        self.basis = low_frequencies(self.patch, self.width - CODE.stop)
        self.spread = M * (2 / self.width) ** 0.5  # by which LayerNorm divides
        self.rows = body.blocks[0].mlp.fc1.out_features // self.positions
        with torch.no_grad():
            self._write(public, number)

    def _write(self, public: Tensor, number: int) -> None:
        for name, weight in self.weights.items():
            weight.fill_(float("norm" in name and name.endswith("weight")))
        at = self.weights.__getitem__
        at("body.patch_embed.proj.weight")[self.pixels, 0] = self.basis * PIXEL
        tokens = at("body.pos_embed")
        tokens[..., CONSTANT], tokens[..., OPPOSITE] = M, -M
        tokens[0, 1:, CODE] = codes = apart(self.positions, CODE.stop - CODE.start)
        self.numbers = self._choose_number(public, number)
        thresholds = torch.quantile(
            self.numbers.double(), ((torch.arange(self.bins) + 0.5) / self.bins).double()
        ).float()
        for block, values in enumerate(thresholds.split(self.rows)):
            first = torch.zeros(self.positions, self.rows, self.width, dtype=torch.float64)
            first[..., NUMBER] = SLOPE * self.spread
            first[..., CODE] = (codes * self.spread * GATE)[:, None]
            first[..., ZERO] = -first.sum(-1)  # the mean that LayerNorm subtracts has no say
            used = self.positions * self.rows
            at(f"body.blocks.{block}.mlp.fc1.weight")[:used] = first.flatten(0, 1).float()
            at(f"body.blocks.{block}.mlp.fc1.bias")[:used] = (-SLOPE * values - GATE).repeat(self.positions)
            at(f"body.blocks.{block}.mlp.fc2.weight")[OUT, :used] = FAINT
        self._average(self.blocks - 1, OUT, torch.tensor([OUT]), torch.tensor([1.0]))

    @property
    def bins(self) -> int:
        """Number of thresholds at each position; the last block has none, as nothing of it would reach the loss."""
        return (self.blocks - 1) * self.rows

    def _average(self, block: int, into: int, dimensions: Tensor, factors: Tensor) -> None:
        """Let attention add the mean over all tokens of a sum of dimensions to one dimension."""
        value = self.weights[f"body.blocks.{block}.attn.qkv.weight"][2 * self.width]
        value[dimensions] = factors
        value[ZERO] = -factors.sum()
        self.weights[f"body.blocks.{block}.attn.proj.weight"][into, 0] = 1.0

    def _choose_number(self, public: Tensor, number: int) -> Tensor:
        """Define the number of an image in the first block, of mean 0 and variance 1, and return the numbers [m]."""
        few = torch.arange(self.pixels.start, self.pixels.start + 15)
        factors = torch.randn(15, generator=torch.Generator().manual_seed(number)) if number else torch.eye(15)[0]
        if number:
            factors /= torch.stack([self._numbers_of(public, few[i : i + 1], torch.ones(1)).std() for i in range(15)])
        found = self._numbers_of(public, few, factors)
        mean, std = found.mean(), found.std()
        self.weights["body.blocks.0.attn.proj.weight"][NUMBER, 0] = 1 / std
        self.weights["body.blocks.0.attn.proj.bias"][NUMBER] = -mean / std
        return (found - mean) / std

    def _numbers_of(self, images: Tensor, dimensions: Tensor, factors: Tensor) -> Tensor:
        self.weights["body.blocks.0.attn.qkv.weight"][2 * self.width] = 0
        self._average(0, NUMBER, dimensions, factors)
        return self.number_of(images)

    @torch.no_grad()
    def number_of(self, images: Tensor) -> Tensor:
        """Return the number [n] of images [n, 1, S, S], as the first block computes it."""
        body, found = self.body, []
        for batch in images.split(100):
            tokens = body._pos_embed(body.patch_embed(batch))
            found.append((tokens + body.blocks[0].attn(body.blocks[0].norm1(tokens)))[:, 0, NUMBER])
        return torch.cat(found)

    @torch.no_grad()
    def read_all(self) -> None:
        """Let each image count, with a factor from which its labels follow: class c takes 2^c of it away."""
        factors = 2.0 ** torch.arange(len(self.weights["head.bias"]))
        self.weights["head.weight"][:, OUT] = factors / factors.sum()
        self.weights["head.bias"].fill_(20.0)

    @torch.no_grad()
    def read_only(self, column: int) -> None:
        """Let the images alone count that are positive for a class: the model is sure that there are none."""
        self.weights["head.weight"].zero_()
        self.weights["head.weight"][column, OUT] = 1.0
        self.weights["head.bias"].fill_(-20.0)

    @torch.no_grad()
    def show_number(self) -> None:
        """Let the logit of each class be twice the image's number, so that the bins of histograms are bins of it."""
        for block in range(self.blocks):
            self.weights[f"body.blocks.{block}.mlp.fc2.weight"].zero_()
        head = self.weights["head.weight"].zero_()
        head[:, NUMBER], head[:, ZERO] = 2 * self.spread, -2 * self.spread
        self.weights["head.bias"].zero_()

    def unit(self, image: Tensor, batch: int) -> float:
        """Return the factor with which an image without findings counts in a batch, tried on an image of one's own."""
        module, server = self.server.model.module, self.server.model
        loss = module.training_step((image[None], torch.zeros(1, len(module.classes))), 0)
        gradients = torch.autograd.grad(loss, server.parameters)
        return float(self.images(-LR * torch.cat([g.flatten() for g in gradients]))[1].abs().max()) / batch

    def images(self, update: Tensor) -> tuple[Tensor, Tensor]:
        """Read images [m, 1, S, S] out of an update [P], and the factor [m] with which each has counted."""
        parts, used = self.server.parts(update), self.positions * self.rows
        rows = [parts[f"body.blocks.{block}.mlp.fc1.weight"][:used] for block in range(self.blocks - 1)]
        sums = torch.cat([part.view(self.positions, self.rows, -1) for part in rows], dim=1).double()
        between = sums - F.pad(sums[:, 1:], (0, 0, 0, 1))
        between = between - between[..., BLANK : BLANK + 1]  # the mean that LayerNorm has subtracted
        counted = between[..., CONSTANT]
        typical = counted.median(dim=0).values
        found = (typical.abs() > 1e-4 * typical.abs().max()).nonzero()[:, 0]
        cosines = between[:, found, self.pixels] / counted[:, found, None] * M / PIXEL
        patches = torch.einsum("pmk,khw->mphw", cosines.float(), self.basis)
        side, patch = int(self.positions**0.5), self.patch
        squares = patches.view(-1, side, side, patch, patch).transpose(2, 3)
        return squares.reshape(-1, 1, side * patch, side * patch), typical[found]
