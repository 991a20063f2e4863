"""Looks at the synthetic street: its cameras, a sweep of its lidar, and scenes that nobody drove.

`jaxrec.data.Street` knows what any camera or lidar would measure anywhere on it, at any time, with
its cars where they drove, elsewhere, or not there at all. So a reconstruction can be judged where
no log could: in another lane, with a car removed, under a shutter that opens all lines at once.

    python examples/street.py --out street
"""

import argparse
import dataclasses
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from PIL import Image, ImageDraw
from silhouette import positive, read_options

from jaxrec.data import Street, Track
from jaxrec.sensors import RollingShutterCamera, Sweep

CAMERAS = ("left", "wide", "right")
FARTHEST = 45.0  # range in metres of the last colour
# From near to far.
COLORS = ((0.19, 0.07, 0.23), (0.16, 0.47, 0.96), (0.10, 0.90, 0.61), (0.83, 0.89, 0.21),
          (0.95, 0.45, 0.10), (0.48, 0.02, 0.01))  # fmt: skip
PIXELS_PER_METRE = 10
AHEAD, BESIDE = 40.0, 20.0  # how much is drawn from above, in metres


class Shares(NamedTuple):
    """Of the rays of a sweep."""

    returned: float
    twice: float


def pictures(street: Street, seconds: float) -> list[np.ndarray]:
    """What the cameras see, side by side: now, without cars, from another lane, without rolling."""
    cars = [track.id for track in street.tracks]
    rows = []
    for lane, hidden, frozen in ((0.0, (), False), (0.0, cars, False), (1.0, (), False),
                                 (0.0, (), True)):  # fmt: skip
        row = []
        for name in CAMERAS:
            camera = street.camera(name, seconds, shift=(0.0, lane, 0.0))
            if frozen and isinstance(camera, RollingShutterCamera):
                now = jnp.full_like(camera.start, seconds)
                camera = dataclasses.replace(camera, start=now, end=now)
            row.append(street.image(camera, time=seconds, hidden=hidden))
        rows.append(np.concatenate(row, axis=1))
    return rows


def sweep_images(sweep: Sweep) -> list[np.ndarray]:
    """Ranges, intensities and second ranges as rows and columns of the lidar."""
    assert sweep.intensities is not None and sweep.second_ranges is not None
    grey = np.repeat(sweep.intensities[..., None], 3, axis=-1)
    return [painted(sweep.ranges), np.clip(2 * grey, 0, 1), painted(sweep.second_ranges)]


def painted(ranges: np.ndarray) -> np.ndarray:
    """Colours of ranges; black where there is none."""
    places = np.linspace(0, FARTHEST, len(COLORS))
    colors = [np.interp(ranges, places, channel) for channel in np.transpose(COLORS)]
    return np.where(ranges[..., None] > 0, np.stack(colors, axis=-1), 0)


def from_above(sweep: Sweep, tracks: Sequence[Track], eye: np.ndarray) -> Image.Image:
    """Returns around a place on a map, x to the right and y up: first, second, and the cars.

    Args:
        sweep: Its first returns become white by their intensity, its second ones blue.
        tracks: Their boxes are outlined where they are in the middle of the sweep.
        eye: x and y of the middle's left third, in metres.
    """
    assert sweep.intensities is not None and sweep.second_ranges is not None
    rays = sweep.lidar.rays()
    corner = eye - np.array([AHEAD / 2, BESIDE])

    def on_map(points):
        x, y = np.moveaxis(PIXELS_PER_METRE * (points[..., :2] - corner), -1, 0)
        return np.stack([x, 2 * BESIDE * PIXELS_PER_METRE - y], axis=-1)

    width, height = (int(PIXELS_PER_METRE * side) for side in (1.5 * AHEAD, 2 * BESIDE))
    sheet = np.full((height, width, 3), 0.1)
    bright = np.clip(0.35 + 2 * sweep.intensities[..., None], 0, 1) * np.ones(3)
    for ranges, colors in (
        (sweep.second_ranges, np.broadcast_to([0.3, 0.6, 1.0], (*sweep.ranges.shape, 3))),
        (sweep.ranges, bright),
    ):
        points = on_map(np.asarray(rays.origins + ranges[..., None] * rays.directions))
        column, row = np.floor(np.moveaxis(points, -1, 0)).astype(int)
        seen = (ranges > 0) & (0 <= row) & (row < height) & (0 <= column) & (column < width)
        sheet[row[seen], column[seen]] = colors[seen]
    picture = Image.fromarray(np.round(255 * sheet).astype(np.uint8))
    draw = ImageDraw.Draw(picture)
    for track in tracks:
        pose = np.asarray(track.path.at(jnp.asarray(sweep.time, rays.origins.dtype)))
        sides = np.array([[1, 1], [1, -1], [-1, -1], [-1, 1]]) * track.size[:2] / 2
        corners = on_map(sides @ pose[:2, :2].T + pose[:2, 3])
        draw.polygon([tuple(point) for point in corners.tolist()], outline=(255, 160, 40))
    return picture


def save(path: pathlib.Path, rows: Sequence[np.ndarray], scale: int = 1) -> None:
    """Writes pictures below each other."""
    sheet = np.concatenate([np.pad(row, ((0, 2), (0, 0), (0, 0))) for row in rows])
    picture = Image.fromarray(np.round(255 * sheet).astype(np.uint8))
    size = (scale * picture.width, scale * picture.height)
    picture.resize(size, Image.Resampling.NEAREST).save(path)


def run(out: pathlib.Path, *, decisecond: int, width: int, columns: int) -> Shares:
    """Draws, prints, and returns how many rays came back.

    Args:
        out: Folder that exists.
        decisecond: When, in tenths of a second from the start.
        width: Of an image in pixels.
        columns: Of the lidar.
    """
    street = Street(width=width, height=2 * width // 3, columns=columns)
    seconds = decisecond / 10
    save(out / "cameras.png", pictures(street, seconds))
    print(f"{out / 'cameras.png'}: as recorded; no cars; 1 m to the left; a global shutter")
    sweep = street.sweep(street.lidar(seconds))
    save(out / "sweep.png", sweep_images(sweep), scale=2)
    print(f"{out / 'sweep.png'}: ranges, intensities and second ranges")
    eye = np.asarray(sweep.lidar.rays().origins).mean((0, 1))[:2]
    from_above(sweep, street.tracks, eye).save(out / "above.png")
    print(f"{out / 'above.png'}: first returns white, second ones blue, boxes of cars")
    assert sweep.second_ranges is not None
    shares = Shares(float(sweep.returned.mean()), float((sweep.second_ranges > 0).mean()))
    print(
        f"{sweep.ranges.size} rays: {100 * shares.returned:.1f} % came back, "
        f"{100 * shares.twice:.1f} % twice"
    )
    return shares


def main(arguments: Sequence[str] | None = None) -> Shares:
    """Reads the command line and runs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--decisecond", type=positive, default=55, help="tenths of a second")
    parser.add_argument("--width", type=positive, default=384, help="of an image in pixels")
    parser.add_argument("--columns", type=positive, default=512, help="of the lidar")
    return run(**read_options(parser, arguments))


if __name__ == "__main__":
    main()
