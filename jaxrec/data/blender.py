"""The layout of NeRF-synthetic (Blender): one transforms file for each split."""

import pathlib

from ._reading import Reading
from .capture import Capture
from .transforms import read_splits, whole_file


def read_blender(train_file: pathlib.Path, reading: Reading) -> Capture:
    """Reads `transforms_train.json`, and `transforms_test.json` beside it as what is held out.

    Where there is no test file, every 8th frame of the training file is held out.

    Args:
        train_file: the json of the training split.
        reading: how to read the images.

    Raises:
        CaptureError: a file cannot be used, or a split is empty.
    """
    folder = train_file.parent
    messages = []
    if train_file.name != "transforms_train.json":
        messages.append(f"{train_file.name} is taken for transforms_train.json")
    whole = whole_file(folder)
    if whole is not None:
        messages.append(f"{whole.name} is not used: {train_file.name} comes first")
    return read_splits(
        train_file, format="blender", path=folder, messages=messages, reading=reading
    )
