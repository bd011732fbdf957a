"""Checks that the machine supports the settings."""

from collections.abc import Sequence

import torch

from fedlit.core.aggregator import Aggregator
from fedlit.core.flat import FlatModel
from fedlit.core.optimizer import FlatOptimizer
from fedlit.federation.engines.captured import RECORDERS, capture_obstacle, capture_refused
from fedlit.federation.examinations.examination import Examination

CaptureRequest = tuple[torch.device, FlatModel, FlatOptimizer, Sequence[Aggregator]]
"""The device that trains, the model, its optimizer, and the algorithms."""


class StepCapture(Examination[CaptureRequest]):
    """Steps can be captured, as far as this is known before the first one; checked with ``cuda_graph: true``."""

    name = "captured steps"
    advice = "leave federation.cuda_graph out"

    def problem(self, request: CaptureRequest) -> str:
        """Return the reason why steps cannot be captured."""
        device, model, *trained_by = request
        if device.type not in RECORDERS:
            return (
                f"federation.cuda_graph: expected training on a CUDA GPU, found {device}; set "
                "fabric.accelerator: cuda, or leave it out"
            )
        reason = capture_obstacle(model, *trained_by)
        return capture_refused(type(model.module).__name__, reason) if reason else ""


class Compiler(Examination[torch.device]):
    """A machine that compiles the forward pass for a CPU has a C++ compiler; checked with ``compile: true``."""

    name = "compiler"
    advice = "install g++ or clang, or leave federation.compile out"

    def problem(self, device: torch.device) -> str:
        """Ask PyTorch for a compiler."""
        if device.type != "cpu":
            return ""
        from torch._inductor.cpp_builder import get_cpp_compiler
        from torch._inductor.exc import InvalidCxxCompiler

        try:
            get_cpp_compiler()
        except InvalidCxxCompiler:
            return (
                "federation.compile: expected a C++ compiler, which PyTorch needs on a CPU, found none; install g++ or "
                "clang, or leave compile out"
            )
        return ""
