"""The start of ``fedlit fit`` without a run: the fork server of a sweep imports it, and its runs start with the result.

Parsing imports the built-in classes and reads their signatures and docstrings, which a process does once.
"""

from fedlit.cli.main import parse

parse(["fit"])
