"""``fedlit card``."""

from collections.abc import Sequence
from pathlib import Path

from jsonargparse import Namespace
from rich.console import Console

from fedlit.cli.commands import COMMANDS
from fedlit.core.ranges import Fraction
from fedlit.core.system.files import whole
from fedlit.experiment.parser import Parser
from fedlit.metrics.levels import DRAWS, LEVEL, Draws


def parser(argv: Sequence[str]) -> Parser:
    """Make the options of a model card."""
    options = Parser(description=COMMANDS["card"])
    options.add_argument("run", metavar="RUN", type=Path, help="Directory of a finished run.")
    file = "Markdown file to write. By default model_card.md in the run directory."
    options.add_argument("--output", type=Path | None, default=None, help=file)
    options.add_argument("--level", type=Fraction, default=LEVEL, help="Level of the confidence intervals.")
    options.add_argument("--draws", type=Draws, default=DRAWS, help="Number of bootstrap draws.")
    return options


def execute(args: Namespace, parser: Parser) -> int:
    """Write the model card; return the exit code."""
    from fedlit.reports.compare.card import model_card

    text, file = model_card(args.run, args.level, args.draws), args.output or args.run / "model_card.md"
    with whole(file) as draft:
        draft.write_text(text, encoding="utf-8")
    blanks = text.count("**[to fill in: ") - 1  # the first explains the mark
    Console(highlight=False, markup=False, soft_wrap=True).print(f"model card, with {blanks} blanks to fill in: {file}")
    return 0
