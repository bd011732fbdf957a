from fedlit.core.errors import *  # noqa: F403
