"""Measure images per second on a GPU: fedlit compared with bare loops.

    python tests/benchmarks/gpu.py [network] [small] [workers] [compile] [--batch 32 128] [--steps 40] [--turns 5]
                                   [--device cuda] [--json FILE] [--tiny]

DenseNet121 on augmented images of 224 pixels, four clients:

- (a) an ordinary loop: NCHW, fp32, a DataLoader of 8 workers over the memory map;
- (b) the best bare loop: channels_last, bf16, images on the GPU, its step captured as a CUDA graph, cuDNN's benchmark;
- (b, launched) the same without the graph;
- (c) fedlit with federated averaging, bf16-mixed, cuDNN's benchmark, including rounds and their sums;
- (c, 4 workers) the same in four processes, one client each;
- (d) (c) with CODASCA and SurgicalHeads on the AUC objective.

``small``: for many small clients of a network of 60,000 parameters, (e) compares fedlit with a bare loop over the same
clients and, if it is installed (``pip install 'pfl[pytorch]'``), with pfl-research's simulation, which also has its
images on the GPU. ``workers`` trains 32 of these clients in 1, 2, 4 and 8 processes on one GPU. ``compile`` compares
(c) with ``federation.compile``, and with CUDA graphs in it.

The sides alternate (A B C D A B ...); a ratio is the median over turns. Limits: (c) at least 0.95 of (b), and above
(a); (d) at least 0.95 of (c). ``--tiny`` uses a small network and small images, to try the command without a GPU; its
figures are meaningless.
"""

import argparse
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from gpu_loops import CLIENTS, Size, Turn, best, fedlit, network, pictures, plain, with_benchmark, with_pfl

from fedlit.aggregators import CODASCA, SurgicalHeads
from fedlit.core import local_model
from fedlit.core.fabric import make_fabric
from fedlit.objectives import AUCSaddle
from fedlit.schedules import ConstantSchedule, PracticeSchedule

PARTS = ("network", "small", "workers", "compile")

FULL = Size("densenet121", 224, 512, 8, 256, 8)
TINY = Size("small_cnn", 28, 16, 0, 6, 2)


def timed(sides: dict[str, Turn], turns: int, images: int, device: torch.device) -> dict[str, list[float]]:
    """Return images per second of each side and turn, without the first turn."""
    speeds: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(turns + 1):
        for side, turn in sides.items():
            wait(device)
            began = time.perf_counter()
            turn()
            wait(device)
            if number:
                speeds[side].append(images / (time.perf_counter() - began))
    for side, values in speeds.items():
        print(f"  ({side}) {statistics.median(values):,.0f} images per second")
    return speeds


def wait(device: torch.device) -> None:
    """Wait until the device has finished."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def verdict(speeds: dict[str, list[float]], side: str, other: str, limit: float) -> bool:
    """Print a ratio of two sides and its limit, and return True if it holds."""
    ratio = statistics.median(a / b for a, b in zip(speeds[side], speeds[other], strict=True))
    print(f"  ({side}) over ({other}): {ratio:.3f}, limit {limit}: {'pass' if ratio >= limit else 'FAIL'}")
    return ratio >= limit


@dataclass(frozen=True)
class Bench:
    """What all parts share.

    Attributes:
        size: Sizes of networks and data.
        turns: Turns of each side.
        fabric: Accelerator and precision.
        device: The device itself.
        folder: Where pictures lie.
    """

    size: Size
    turns: int
    fabric: tuple[str, str]
    device: torch.device
    folder: str

    @property
    def bf16(self) -> bool:
        """Whether autocast is on."""
        return self.device.type == "cuda"

    def network(self, batches: list[int], steps: int) -> Iterator[tuple[str, dict[str, list[float]]]]:
        """Compare (a) to (d)."""
        size = self.size
        window = max(1, steps // CLIENTS)
        steps = window * CLIENTS
        sets = pictures(size, self.folder, CLIENTS, size.images)
        stages, constant = PracticeSchedule(window, 10_000_000, 10_000_000), ConstantSchedule(window, "steps")
        for batch in batches:
            print(f"{size.backbone}, {size.pixels} pixels, batch {batch}:")
            plain_turn = plain(size, sets, batch, steps, self.device)
            codasca = network(size.backbone, objective=AUCSaddle())
            sides = {
                "a": with_benchmark(plain_turn, False),
                "b": best(size.backbone, sets, batch, steps, self.device, self.bf16),
                "b, launched": best(size.backbone, sets, batch, steps, self.device, self.bf16, graph=False),
                "c": fedlit(sets, batch, constant, *self.fabric, network(size.backbone), []),
                "c, 4 workers": fedlit(sets, batch, constant, *self.fabric, network(size.backbone), [], workers=4),
                "d": fedlit(sets, batch, stages, *self.fabric, codasca, [CODASCA(), SurgicalHeads()], surgical=True),
            }
            yield f"{size.backbone}, batch {batch}", timed(sides, self.turns, steps * batch, self.device)

    def small(self, batch: int) -> Iterator[tuple[str, dict[str, list[float]]]]:
        """Compare (e) with a bare loop and with pfl-research."""
        size = Size("small_cnn", 28, 0, 0, self.size.small_clients, self.size.small_steps)
        sets = pictures(size, self.folder, size.small_clients, batch * size.small_steps)
        print(f"{size.small_clients} clients of a small CNN, {size.small_steps} steps of {batch} each:")
        count = size.small_clients * size.small_steps
        schedule = ConstantSchedule(size.small_steps, "steps")
        sides = {
            "e, bare": best(size.backbone, sets, batch, count, self.device, self.bf16),
            "e": fedlit(sets, batch, schedule, *self.fabric, network(size.backbone), []),
        }
        if importlib.util.find_spec("pfl"):
            sides["e, pfl-research"] = with_pfl(size.backbone, sets, batch, self.device, self.bf16)
        else:
            print("  pfl-research is not installed")
        yield "small clients", timed(sides, self.turns, count * batch, self.device)

    def workers(self, batch: int) -> Iterator[tuple[str, dict[str, list[float]]]]:
        """Compare numbers of worker processes on one device."""
        clients, steps = min(32, self.size.small_clients), self.size.small_steps
        size = Size("small_cnn", 28, 0, 0, clients, steps)
        sets = pictures(size, self.folder, clients, batch * steps)
        print(f"{clients} clients of a small CNN, {steps} steps of {batch} each, by worker processes:")
        sides = {}
        for number in (1, 2, 4, 8)[: 2 if clients < 8 else 4]:
            schedule = ConstantSchedule(steps, "steps")
            sides[f"{number}"] = fedlit(sets, batch, schedule, *self.fabric, network(size.backbone), [], workers=number)
        yield "workers", timed(sides, self.turns, clients * steps * batch, self.device)

    def compile(self, batches: list[int], steps: int) -> Iterator[tuple[str, dict[str, list[float]]]]:
        """Compare (c) with itself compiled, and compiled to CUDA graphs."""
        size = self.size
        sets = pictures(size, self.folder, CLIENTS, size.images)
        schedule, batch = ConstantSchedule(max(1, steps // CLIENTS), "steps"), batches[0]
        print(f"{size.backbone}, {size.pixels} pixels, batch {batch}, compiled:")
        sides = {"c": fedlit(sets, batch, schedule, *self.fabric, network(size.backbone), [])}
        for name, options in (("compiled", {}), ("CUDA graphs", {"triton.cudagraphs": True})):
            local_model.COMPILING = {"options": {"fallback_random": True} | options}
            turn = fedlit(sets, batch, schedule, *self.fabric, network(size.backbone), [], compile=True)
            began = time.perf_counter()
            try:
                turn()
            except Exception as error:
                print(f"  ({name}) failed: {str(error).splitlines()[0]}")
                continue
            print(f"  ({name}) its first round took {time.perf_counter() - began:.0f} s")
            sides[name] = turn
        count = max(1, steps // CLIENTS) * CLIENTS * batch
        yield "compiled", timed(sides, self.turns, count, self.device)


def main() -> int:
    """Measure, print, and return 1 if a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"any of {', '.join(PARTS)}; by default the first three")
    parser.add_argument("--batch", type=int, nargs="+", default=[32, 128])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--json", type=Path, help="file for all speeds, by part, side and turn")
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    parts = args.parts or list(PARTS[:3])
    if unknown := set(parts) - set(PARTS):
        parser.error(f"expected any of {', '.join(PARTS)}, found {', '.join(sorted(unknown))}")
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device: expected a CUDA device, found none; use --device cpu --tiny to try the command")
    device, bf16 = make_fabric(args.device).device, args.device == "cuda"
    batches, steps, turns = ([4], CLIENTS, 1) if args.tiny else (args.batch, args.steps, args.turns)
    small = 4 if args.tiny else 32
    name = torch.cuda.get_device_name(device) if bf16 else "CPU"
    print(f"{name}, PyTorch {torch.__version__}{', tiny: the figures are meaningless' * args.tiny}")
    every, held = {}, []
    with TemporaryDirectory() as folder:
        fabric = (args.device, "bf16-mixed" if bf16 else "32-true")
        bench = Bench(TINY if args.tiny else FULL, turns, fabric, device, folder)
        made = {
            "network": lambda: bench.network(batches, steps),
            "small": lambda: bench.small(small),
            "workers": lambda: bench.workers(small),
            "compile": lambda: bench.compile(batches, steps),
        }
        for part in parts:
            for title, speeds in made[part]():
                every[title] = speeds
                if part == "network":
                    limits = (("c", "b", 0.95), ("c", "a", 1.0), ("d", "c", 0.95))
                    held += [verdict(speeds, *limit) for limit in limits]
                if args.json:
                    args.json.write_text(json.dumps({"device": name, "torch": torch.__version__, "speeds": every}))
    return int(not all(held) and not args.tiny)


if __name__ == "__main__":
    sys.exit(main())
