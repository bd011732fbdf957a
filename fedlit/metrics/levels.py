"""Defaults of intervals, apart from their computation: options of commands do not import PyTorch."""

from typing import Annotated

from fedlit.core.ranges import Within

LEVEL = 0.95
DRAWS = 2000
Draws = Annotated[int, Within("[100, inf)", f"; the default is {DRAWS}")]
