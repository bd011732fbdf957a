"""Count how often a reader moves from file to file between ``fedlit fit`` and the loop of rounds.

    python tests/benchmarks/moves.py [--list]

It follows a trial run of the quickstart. Counted are the calls and returns between functions that lead from one file
of fedlit's command line or experiment to another, from ``execute`` to the first round.
"""

import argparse
import contextlib
import io
import sys
from itertools import groupby
from pathlib import Path
from types import FrameType

import fedlit

PACKAGE = Path(fedlit.__file__).parent
START, END = ("cli/commands/fit.py", "execute"), ("federation/federation.py", "_rounds")
ROOMS = ("cli", "experiment")


def visited() -> list[str]:
    """Return the files of the rooms in the order of the visits, each once per visit."""
    seen: list[str] = []
    counting = False

    def follow(frame: FrameType, event: str, _: object) -> None:
        nonlocal counting
        places = (frame, frame.f_back) if event == "return" else (frame,) if event == "call" else ()
        if not places or not all(p and p.f_code.co_filename.startswith(str(PACKAGE)) for p in places):
            return
        file = Path(places[-1].f_code.co_filename).relative_to(PACKAGE).as_posix()
        if event == "call" and (file, frame.f_code.co_name) in (START, END):
            counting = (file, frame.f_code.co_name) == START
        if counting:
            seen.append(file)

    from fedlit.cli.main import main

    argv = ["fit", "--config", str(PACKAGE.parent / "configs/quickstart.yaml"), "--fast_dev_run", "true"]
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        sys.setprofile(follow)
        try:
            main(argv)
        finally:
            sys.setprofile(None)
    return [file for file, _ in groupby(file for file in seen if file.split("/")[0] in ROOMS)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print the files in the order of the visits")
    options, files = parser.parse_args(), visited()
    print("\n".join(files) if options.list else f"{len(files) - 1} moves between {len(set(files))} files")
