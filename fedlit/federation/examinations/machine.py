"""Checks that the machine supports the settings."""

import torch

from fedlit.federation.examinations.examination import Examination


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
