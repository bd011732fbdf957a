"""What the process imports from which workers are forked: torch, Lightning, and what a client's round needs of fedlit."""

import gc

gc.disable()  # collecting while thousands of modules load takes a fifth of the time and finds nothing

import fedlit.federation.engines.pool  # noqa: E402, F401

gc.enable()
