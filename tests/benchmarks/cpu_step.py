"""Measure a local step on one thread of a CPU, compared with bare loops.

    python tests/benchmarks/cpu_step.py [--pixels 48 224] [--precision 32-true bf16-mixed] [--turns 5] [--batch 16]

The step (forward, backward, SGD) of DenseNet121 runs in fedlit's LocalModel, with contiguous and channels_last images,
and in bare loops whose weights and gradients are views of flat vectors: contiguous; channels_last with all convolution
weights reordered; and with only the images reordered. The five sides alternate (A B C D E A B ...). Times are processor
times, which other work on the machine affects less. The ratio of fedlit to the best bare loop of the same precision is
the median over turns. Limit: 1.05.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import torch
from floor import CLASSES, LR, timed
from torch import Tensor

from fedlit.core.fabric import make_fabric
from fedlit.core.hooks import initial_client_state
from fedlit.core.local_model import LocalModel, LocalTraining
from fedlit.core.messages import Broadcast, Client, Round
from fedlit.models import ImageClassifier

LIMIT = 1.05
Step = Callable[[], object]


def model() -> ImageClassifier:
    """Return the model that every side trains."""
    torch.manual_seed(0)
    return ImageClassifier(CLASSES, in_chans=3, optimizer=lambda p: torch.optim.SGD(p, lr=LR))


def bare(batch: tuple[Tensor, Tensor], precision: str, images: bool, weights: bool) -> Step:
    """Return a step in plain PyTorch; ``images`` and ``weights`` are True for channels_last."""
    module = model().train()
    parameters = list(module.parameters())
    size = sum(p.numel() for p in parameters)
    w, grad, offset = torch.empty(size), torch.zeros(size), 0
    for p in parameters:
        views = [vector[offset : offset + p.numel()].view(p.shape) for vector in (w, grad)]
        if weights and p.ndim == 4:
            o, i, h, k = p.shape
            views = [view.view(o, h, k, i).permute(0, 3, 1, 2) for view in views]
        views[0].copy_(p.detach())
        p.data, p.grad = views
        offset += p.numel()

    def step() -> None:
        grad.zero_()
        x = batch[0].to(memory_format=torch.channels_last) if images else batch[0]
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16-mixed"):
            loss = module.training_step((x, batch[1]), 0)
        loss.backward()
        w.sub_(grad, alpha=LR)

    return step


def fedlit(batch: tuple[Tensor, Tensor], precision: str, channels_last: bool) -> Step:
    """Return a step of a client's round with all hooks, after one round."""
    training = LocalTraining(channels_last=channels_last)
    local = LocalModel(make_fabric("cpu", precision=precision), model(), [], training)
    client = Client("alone", CLASSES, len(batch[0]), 1.0)
    down = Broadcast(local.flat.w.clone(), local.flat.stats.clone(), [])
    rnd = Round(0, 0, 1.0, 1, "steps", 0, True, True, cohort=("alone",))
    contexts = local.begin(client, initial_client_state([], local.layout), down, rnd, 1, lambda: batch)
    local.step(contexts, [batch], 0)
    local.stalled()
    return lambda: local.step(contexts, [batch], 0)


def measure(pixels: int, precision: str, turns: int, size: int) -> None:
    """Print the medians of all sides and the ratio of fedlit to the best bare loop."""
    g = torch.Generator().manual_seed(0)
    batch = torch.randn(size, 3, pixels, pixels, generator=g), torch.randint(0, 2, (size, 10), generator=g).float()
    sides = {
        "bare, contiguous": bare(batch, precision, False, False),
        "bare, images reordered": bare(batch, precision, True, False),
        "bare, images and weights reordered": bare(batch, precision, True, True),
        "fedlit, contiguous": fedlit(batch, precision, False),
        "fedlit, channels_last": fedlit(batch, precision, True),
    }
    spent = timed(sides, turns, time.process_time)
    medians = {side: statistics.median(times) for side, times in spent.items()}
    best = min((side for side in sides if side.startswith("bare")), key=medians.get)
    mine = spent["fedlit, channels_last"]
    over = {
        name: statistics.median(a / b for a, b in zip(mine, spent[side], strict=True))
        for name, side in (("the best bare loop", best), ("contiguous", "fedlit, contiguous"))
    }
    print(f"{pixels} pixels, {precision}, batch {size}, {turns} turns: ", end="")
    print(", ".join(f"{side} {seconds:.3f} s" for side, seconds in medians.items()), end="; ")
    print(
        f"ratio of fedlit, channels_last, to the best bare loop ('{best}') {over['the best bare loop']:.3f} "
        f"(limit {LIMIT}), ",
        end="",
    )
    print(f"to fedlit, contiguous {over['contiguous']:.3f}")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pixels", type=int, nargs="*", default=[48, 224])
    parser.add_argument("--precision", nargs="*", default=["32-true", "bf16-mixed"])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--batch", type=int, default=16)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for pixels in args.pixels:
        for precision in args.precision:
            measure(pixels, precision, args.turns, args.batch)


if __name__ == "__main__":
    main()
