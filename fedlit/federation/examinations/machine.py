"""What a machine may lack for what the settings ask for."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fedlit.core.aggregator import Aggregator
from fedlit.core.flat import FlatModel
from fedlit.core.graphs import RECORDERS, capture_obstacle, capture_refused
from fedlit.core.optimizer import FlatOptimizer
from fedlit.federation.examinations.examination import Examination


@dataclass(frozen=True)
class Recorded:
    """Steps that are to be recorded as a CUDA graph.

    Attributes:
        device: Where models are trained.
        model: What is trained.
        optimizer: Its optimizer.
        aggregators: The federation's algorithms.
    """

    device: torch.device
    model: FlatModel
    optimizer: FlatOptimizer
    aggregators: Sequence[Aggregator]


class Recording(Examination[Recorded]):
    """Steps can be recorded, as far as that is known before the first one; looked at with cuda_graph: true."""

    name = "recorded steps"
    advice = "leave federation.cuda_graph out"

    def found(self, given: Recorded) -> str:
        """Give the reason."""
        if given.device.type not in RECORDERS:
            return (
                f"federation.cuda_graph: true is for models that train on a CUDA GPU, and these train on {given.device}; set "
                "fabric.accelerator: cuda, or leave it out"
            )
        reason = capture_obstacle(given.model, given.optimizer, given.aggregators)
        return capture_refused(type(given.model.module).__name__, reason) if reason else ""


class Compiler(Examination[torch.device]):
    """A CPU that a forward pass is compiled for has a compiler; looked at with compile: true."""

    name = "compiler"
    advice = "install g++ or clang, or leave federation.compile out"

    def found(self, device: torch.device) -> str:
        """Ask PyTorch for one."""
        if device.type != "cpu":
            return ""
        from torch._inductor.cpp_builder import get_cpp_compiler
        from torch._inductor.exc import InvalidCxxCompiler

        try:
            get_cpp_compiler()
        except InvalidCxxCompiler:
            return (
                "federation.compile: PyTorch finds no C++ compiler, which it needs on a CPU; install g++ or clang, or leave "
                "compile out"
            )
        return ""
