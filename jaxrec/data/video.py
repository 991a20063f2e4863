"""Photographs out of a video: the sharpest picture of each stretch of time."""

import pathlib
import subprocess
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float32, UInt8

from .errors import CaptureError

EXTENSIONS = (".mp4", ".mov", ".m4v", ".mkv", ".avi", ".webm")
# Size to which pictures are brought to compare their sharpness; their shape does not matter.
_WIDTH, _HEIGHT = 320, 240
# ffmpeg's scale of JPEG quality: 2 is the best that every decoder reads.
_QUALITY = "2"


def is_video(path: pathlib.Path) -> bool:
    """Whether a path is a video by its name."""
    return path.suffix.lower() in EXTENSIONS and path.is_file()


def extract_frames(video: pathlib.Path, folder: pathlib.Path, *, most: int) -> list[pathlib.Path]:
    """Writes the sharpest pictures of a video as JPEG files, upright as it is played.

    The video is cut into `most` stretches of equal length, and each gives its sharpest picture.

    Args:
        video: The file.
        folder: Where to write `frame_000123.jpg`, after the picture's number in the video.
        most: How many pictures to take at most, at least 1.

    Returns:
        The files in the order of the video.

    Raises:
        CaptureError: The video cannot be decoded, or there is no ffmpeg.
    """
    sharpness = np.asarray([sharpness_of(picture) for picture in _small_pictures(video)])
    if not len(sharpness):
        raise CaptureError(video, "", "found no picture", "give a video that players can show")
    chosen = choose_sharpest(sharpness, most)
    folder.mkdir(parents=True, exist_ok=True)
    selection = "+".join(f"eq(n,{index})" for index in chosen)
    _run(
        video,
        *("-vf", f"select='{selection}'", "-fps_mode", "passthrough"),
        *("-q:v", _QUALITY, str(folder / "part_%06d.jpg")),
    )
    files = sorted(folder.glob("part_*.jpg"))
    if len(files) != len(chosen):
        found = f"ffmpeg gave {len(files)} of {len(chosen)} pictures"
        raise CaptureError(video, "", found, "convert the video to mp4 and try again")
    return [
        file.replace(folder / f"frame_{index:06d}.jpg")
        for file, index in zip(files, chosen, strict=True)
    ]


def choose_sharpest(sharpness: Sequence[float] | np.ndarray, most: int) -> list[int]:
    """Chooses the sharpest of each of `most` stretches, the first of equals.

    Args:
        sharpness: Of each picture, in the order of the video.
        most: How many to choose at most.

    Returns:
        Their numbers in the video, ascending.
    """
    stretches = np.array_split(np.arange(len(sharpness)), min(most, len(sharpness)))
    values = np.asarray(sharpness)
    return [int(stretch[np.argmax(values[stretch])]) for stretch in stretches]


def sharpness_of(gray: UInt8[np.ndarray, "height width"] | Float32[np.ndarray, "h w"]) -> float:
    """The variance of the Laplacian: large for crisp pictures, small for blurred ones.

    References:
        Pech-Pacheco et al., "Diatom autofocusing in brightfield microscopy", ICPR 2000.
    """
    values = gray.astype(np.float32)
    middle = values[1:-1, 1:-1]
    around = values[:-2, 1:-1] + values[2:, 1:-1] + values[1:-1, :-2] + values[1:-1, 2:]
    return float(np.var(around - 4 * middle))


def _small_pictures(video: pathlib.Path) -> Iterator[UInt8[np.ndarray, "height width"]]:
    command = [
        *(_ffmpeg(video), "-loglevel", "error", "-nostdin", "-i", str(video)),
        *("-vf", f"scale={_WIDTH}:{_HEIGHT}:flags=area", "-fps_mode", "passthrough"),
        *("-pix_fmt", "gray", "-f", "rawvideo", "-"),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        while len(data := process.stdout.read(_WIDTH * _HEIGHT)) == _WIDTH * _HEIGHT:
            yield np.frombuffer(data, np.uint8).reshape(_HEIGHT, _WIDTH)
        complaint = process.stderr.read()
    _check(video, process.returncode, complaint)


def _run(video: pathlib.Path, *options: str) -> None:
    command = [_ffmpeg(video), "-loglevel", "error", "-nostdin", "-i", str(video), *options]
    done = subprocess.run(command, capture_output=True)
    _check(video, done.returncode, done.stderr)


def _check(video: pathlib.Path, code: int, complaint: bytes) -> None:
    if code:
        lines = complaint.decode(errors="replace").strip().splitlines() or [f"exit code {code}"]
        found = f"ffmpeg cannot decode the video ({lines[-1]})"
        raise CaptureError(video, "", found, "check that it plays, or convert it to mp4")


def _ffmpeg(video: pathlib.Path) -> str:
    import imageio_ffmpeg

    try:
        return imageio_ffmpeg.get_ffmpeg_exe()
    except RuntimeError as error:
        raise CaptureError(
            video, "", "there is no ffmpeg to decode it", "install ffmpeg"
        ) from error
