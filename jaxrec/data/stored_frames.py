"""Frames that stay in their files until somebody looks at them."""

import collections
import concurrent.futures
import threading
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float32

from ..sensors import Frame, PinholeCamera
from ._frames import Listing, Pixels, pixel_bytes, read_pixels
from ._reading import Reading


class PixelStore:
    """Decoded pixels of listed frames, as many as a number of bytes allows.

    Files are read on threads. What was looked at last is kept longest; at least one image is
    always held. Safe to use from several threads.
    """

    def __init__(
        self, listings: Sequence[Listing], reading: Reading, transparent: bool, threads: int
    ):
        """Describes the files without reading them.

        Args:
            listings: frames of one capture.
            reading: how to read them; `image_memory` is the limit in bytes.
            transparent: whether the frames of the capture have alpha.
            threads: how many files to read at a time.
        """
        self._listings = listings
        self._reading = reading
        self._transparent = transparent
        self._limit = reading.image_memory or 0
        self._pool = concurrent.futures.ThreadPoolExecutor(threads, "jaxrec-images")
        self._lock = threading.Lock()
        self._held: collections.OrderedDict[int, concurrent.futures.Future[Pixels]]
        self._held = collections.OrderedDict()
        self._bytes = 0

    @property
    def held_bytes(self) -> int:
        """Bytes of the images held, and of those being read."""
        return self._bytes

    def get(self, index: int) -> Pixels:
        """The pixels of a frame, from memory or from its files.

        Raises:
            CaptureError: a file cannot be used, or not any more.
        """
        try:
            return self._begin(index).result()
        except Exception:
            self._drop(index)
            raise

    def request(self, index: int) -> None:
        """Begins to read the files of a frame, if it is not held."""
        self._begin(index)

    def alpha(self, pixels: Pixels) -> Float32[np.ndarray, "height width"] | None:
        """The alpha of a frame: of all of them or of none."""
        return pixels.alpha_for(self._transparent)

    def frame(self, index: int, camera: PinholeCamera, name: str) -> Frame:
        """A frame that holds its pixels."""
        return self.get(index).frame(camera, name, self._transparent)

    def _begin(self, index: int) -> "concurrent.futures.Future[Pixels]":
        with self._lock:
            future = self._held.get(index)
            if future is None:
                future = self._pool.submit(read_pixels, self._listings[index], self._reading)
                self._held[index] = future
                self._bytes += self._size(index)
            self._held.move_to_end(index)
            while self._bytes > self._limit and len(self._held) > 1:
                oldest, dropped = self._held.popitem(last=False)
                self._bytes -= self._size(oldest)
                dropped.cancel()
            return future

    def _drop(self, index: int) -> None:
        with self._lock:
            if self._held.pop(index, None) is not None:
                self._bytes -= self._size(index)

    def _size(self, index: int) -> int:
        return pixel_bytes(self._listings[index], self._reading.downscale)


class StoredFrame(Frame):
    """A frame whose pixels are read from their files whenever they are asked for.

    The pixels are the same to the bit as those of the frame in memory that `load` returns.
    """

    _store: PixelStore
    _index: int

    @classmethod
    def create(
        cls, camera: PinholeCamera, name: str, store: PixelStore, index: int
    ) -> "StoredFrame":
        """Describes a frame without reading it.

        Args:
            camera: The camera, with the final size of the image.
            name: What to call it.
            store: Where its pixels come from.
            index: Its number there.
        """
        # The fields of the class it stands for would want the pixels at once.
        frame = object.__new__(cls)
        for field, value in (("camera", camera), ("name", name), ("_store", store)):
            object.__setattr__(frame, field, value)
        object.__setattr__(frame, "_index", index)
        return frame

    @property
    def image(self) -> Float32[np.ndarray, "height width 3"]:  # pyright: ignore
        """Colour in [0, 1], straight."""
        return self._store.get(self._index).color

    @property
    def alpha(self) -> Float32[np.ndarray, "height width"] | None:  # pyright: ignore
        """Coverage in [0, 1], or none."""
        return self._store.alpha(self._store.get(self._index))

    @property
    def mask(self) -> Bool[np.ndarray, "height width"] | None:  # pyright: ignore
        """True where the pixel may be used, or none to use all."""
        return self._store.get(self._index).mask

    @property
    def depth(self) -> Float32[np.ndarray, "height width"] | None:  # pyright: ignore
        """Measured depth in metres, 0 where there is none; or none at all."""
        return self._store.get(self._index).depth

    @property
    def in_memory(self) -> bool:
        """Always false."""
        return False

    def prefetch(self) -> None:
        """Begins to read the pixels on a thread."""
        self._store.request(self._index)

    def load(self) -> Frame:
        """Reads the pixels into a frame that keeps them."""
        return self._store.frame(self._index, self.camera, self.name)
