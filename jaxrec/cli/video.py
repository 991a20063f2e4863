"""An mp4 video, written picture by picture."""

import contextlib
import pathlib
import subprocess
import tempfile
from collections.abc import Callable, Iterator

import numpy as np
from jaxtyping import UInt8

from .errors import CommandError

Picture = UInt8[np.ndarray, "height width 3"]
# H.264's constant rate factor: at 18 losses are hard to see.
QUALITY = 18


@contextlib.contextmanager
def open_video(
    file: pathlib.Path, width: int, height: int, *, fps: int
) -> Iterator[Callable[[Picture], None]]:
    """Opens a video and gives the function that adds a picture to it.

    Args:
        file: The mp4 to write; replaced if it exists.
        width: Of the pictures, in pixels.
        height: Of the pictures, in pixels.
        fps: Pictures per second.

    Raises:
        CommandError: If ffmpeg cannot write it.
    """
    import imageio_ffmpeg

    try:
        ffmpeg = imageio_ffmpeg.get_ffmpeg_exe()
    except RuntimeError as error:
        raise CommandError(f"{file}: cannot be written without ffmpeg; install it") from error
    # Half the colour resolution, which every player knows, wants even sides.
    even = [(0, height % 2), (0, width % 2), (0, 0)]
    size = f"{width + width % 2}x{height + height % 2}"
    command = [
        *(ffmpeg, "-y", "-loglevel", "error"),
        *("-f", "rawvideo", "-pix_fmt", "rgb24", "-s", size),
        *("-r", str(fps), "-i", "-", "-an"),
        *("-c:v", "libx264", "-crf", str(QUALITY), "-pix_fmt", "yuv420p"),
        *("-movflags", "+faststart", "-f", "mp4", str(file)),
    ]
    with tempfile.TemporaryFile() as complaints:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=complaints)
        assert process.stdin is not None
        try:
            yield lambda picture: _send(process, np.pad(picture, even, mode="edge").tobytes())
        except BaseException:
            process.kill()
            raise
        finally:
            # What is left in the pipe's buffer may meet an ffmpeg that is gone.
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            code = process.wait()
        if code:
            complaints.seek(0)
            reason = complaints.read().decode(errors="replace").strip() or f"exit code {code}"
            raise CommandError(f"{file}: ffmpeg cannot write the video ({reason})")


def _send(process: subprocess.Popen, data: bytes) -> None:
    """Gives ffmpeg a picture; why it may have ended early is asked when the video is closed."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(data)
