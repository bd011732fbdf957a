"""The errors that fedlit raises on purpose; each names what was found and the fix."""


class ConfigError(ValueError):
    """The configuration, or something that it names, cannot work; nothing has been trained yet."""


class TrainingError(RuntimeError):
    """Training cannot continue (a loss or an update is not finite, a process died); the last checkpoint is kept."""


class WorkerError(TrainingError):
    """A worker process could not start, or died."""


class CheckpointError(ValueError):
    """A checkpoint cannot be used here: it is missing, or of another layout or configuration."""
