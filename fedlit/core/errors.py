"""The errors that fedlit raises on purpose: each says what was found and what to do."""


class ConfigError(ValueError):
    """The configuration, or what it names, cannot work; nothing has been trained yet."""


class TrainingError(RuntimeError):
    """Training cannot go on (a loss or an update that is not finite, a process that died); the last checkpoint is kept."""


class WorkerError(TrainingError):
    """A worker process could not start, or died."""


class CheckpointError(ValueError):
    """A checkpoint cannot be used here: missing, of another layout, or of another configuration."""
