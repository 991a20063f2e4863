"""Frames in the order in which they are used, read ahead where they lie on a disk."""

import collections
import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from .frame import Frame

READ_AHEAD = 4


def stream_frames(
    frames: Sequence[Frame],
    order: Iterable[Iterable[int | np.integer]],
    *,
    ahead: int = READ_AHEAD,
) -> Iterator[list[Frame]]:
    """Gives the frames of each step, with their pixels in memory.

    Frames that are not in memory are read on threads while earlier steps are computed. Order and
    pixels are the same to the bit wherever the frames lie.

    Args:
        frames: Frames, in memory or not.
        order: For each step, the places in `frames` of those that it sees; may be endless.
        ahead: Steps to begin reading before they are due.

    Yields:
        The frames of a step.
    """
    steps = iter(order)
    coming: collections.deque[list[Frame]] = collections.deque()
    while True:
        for places in itertools.islice(steps, 1 + ahead - len(coming)):
            coming.append([frames[int(place)] for place in places])
            for frame in coming[-1]:
                frame.prefetch()
        if not coming:
            return
        yield [frame.load() for frame in coming.popleft()]
