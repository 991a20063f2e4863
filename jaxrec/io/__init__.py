"""What is written to disk and read back."""

from .checkpoint import (
    CheckpointError as CheckpointError,
    Checkpoints as Checkpoints,
    Restored as Restored,
)
from .ply import StoredSpheres as StoredSpheres, read_ply as read_ply, write_ply as write_ply
