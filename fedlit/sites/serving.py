"""A site that answers from its own file, whichever process it runs in."""

from collections.abc import Callable
from pathlib import Path

import torch

from fedlit.core.errors import ConfigError
from fedlit.sites.envelope import Envelope
from fedlit.sites.messages import FAILED, Failure
from fedlit.sites.reaching import kit_of
from fedlit.sites.settings import read_settings
from fedlit.sites.site import Site


def answering(file: Path) -> Callable[[bytes], bytes]:
    """Give what answers messages for the site of a file; a file that cannot be read is an answer too.

    Args:
        file: The site's own file.
    """
    torch.set_num_threads(1)
    try:
        kit = kit_of(file.absolute().parent.parent)  # the folder of a site has the file in local/
        until = kit.certificate().until.timestamp() if kit else None
        return Site(read_settings(file), until=until).answer_bytes
    except (ConfigError, ValueError, OSError) as error:
        reason = str(error)
        return lambda content: Envelope.of(FAILED, Failure("unfit", reason)).to_bytes()
