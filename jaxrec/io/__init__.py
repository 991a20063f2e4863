"""What is written to disk and read back."""

from .checkpoint import (
    CheckpointError as CheckpointError,
    Checkpoints as Checkpoints,
    Restored as Restored,
)
