"""Pictures of a drive: points of sweeps on images, and all of it from above."""

import colorsys

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw

from ..sensors import Exposure
from .alignment import pixels_of, pose_of, poses_at
from .contact_sheet import GAP, LABEL_HEIGHT, to_bytes
from .drive_survey import DriveSurvey, Movers, nearest_sweep, some_of
from .scene_picture import draw_dots, draw_line

_EACH, _WIDTH, _SIDE = 3, 600, 960
# Colours run from red, this near in metres, to violet, this far, evenly in the logarithm.
_NEAR, _FAR = 3.0, 80.0
_EGO, _CAMERA, _LIDAR = (20, 20, 20), (20, 60, 170), (225, 120, 20)
_BOX, _MOVER = (110, 110, 110), (200, 30, 120)
# Length of a drawn field of view, and what is drawn around the path, in metres.
_REACH, _AROUND = 6.0, 25.0
# More points hide the image, or what is drawn over them.
_MOST_ON_IMAGE, _MOST_POINTS = 6_000, 60_000
Picture = UInt8[np.ndarray, "height width 3"]

_rays = jax.jit(lambda camera, pixels: camera.rays(pixels))


def draw_sweeps(survey: DriveSurvey) -> Picture | None:
    """Draws on some images of each camera the points of the sweep that is nearest in time.

    Returns:
        A row for each camera, from its beginning to its end; points are red near by and violet
        far away. None if there are no images or no sweeps.
    """
    if not survey.cameras or not survey.lidars:
        return None
    rows = [
        [_overlay(survey, exposure) for exposure in some_of(name, survey.drive.exposures, _EACH)]
        for name in survey.cameras
    ]
    heights = [max(tile.height for tile in row) for row in rows]
    columns = max(len(row) for row in rows)
    size = (columns * (_WIDTH + GAP) + GAP, sum(heights) + GAP * (len(rows) + 1))
    sheet, top = Image.new("RGB", size, "white"), GAP
    for row, height in zip(rows, heights, strict=True):
        for column, tile in enumerate(row):
            sheet.paste(tile, (GAP + column * (_WIDTH + GAP), top))
        top += height + GAP
    return np.asarray(sheet)


def draw_above(survey: DriveSurvey) -> Picture:
    """Draws the drive from above, north (y) up.

    The path of the rig is black, fields of view of cameras blue, lidars orange, boxes grey and
    red-violet where they move, each at the middle of the drive; points are coloured by height.
    """
    drive = survey.drive
    moments = np.unique([each.time for each in (*drive.exposures, *drive.sweeps)])
    if not len(moments):
        return np.full((_SIDE, _SIDE, 3), 255, np.uint8)
    path = poses_at(drive.ego, np.linspace(moments[0], moments[-1], 200))
    path = path[np.isfinite(path).all(axis=(1, 2)), :3, 3]
    sweeps = [sweep for name in survey.lidars for sweep in some_of(name, drive.sweeps, _EACH)]
    points = np.concatenate([np.zeros((0, 3)), *(sweep.points()[0] for sweep in sweeps)])
    points = points[:: 1 + len(points) // _MOST_POINTS]
    middle, reach = _frame(path, points)
    panel = Image.new("RGB", (_SIDE, _SIDE), (250, 250, 250))
    draw = ImageDraw.Draw(panel)

    def place(positions: Float[np.ndarray, "n 3"]) -> Float[np.ndarray, "n 2"]:
        flat = (positions[:, :2] - middle) * (0.5 * _SIDE / reach)
        return 0.5 * _SIDE + flat * (1, -1)

    if len(points):
        ordered = points[np.argsort(points[:, 2])]
        low, high = np.quantile(ordered[:, 2], [0.02, 0.98])
        shares = (ordered[:, 2] - low) / max(float(high - low), 1e-6)
        draw_dots(panel, place(ordered), _pale(rainbow(1 - np.clip(shares, 0, 1))))
    time = float(moments[len(moments) // 2])
    for box, moves in _boxes(drive, time):
        flat = place(box)
        for a, b in ((0, 1), (1, 2), (2, 3), (3, 0), (4, 5)):
            draw_line(draw, flat[[a, b]], _MOVER if moves else _BOX, 2)
    for start, end in zip(path[:-1], path[1:], strict=True):
        draw_line(draw, place(np.stack([start, end])), _EGO, 3)
    for name in survey.cameras:
        exposure = min(some_of(name, drive.exposures, 10**6), key=lambda e: abs(e.time - time))
        field = _field(exposure)
        for a, b in zip(field, np.roll(field, -1, axis=0), strict=True):
            draw_line(draw, place(np.stack([a, b])), _CAMERA, 2)
    for name in survey.lidars:
        if name in drive.mounts:
            at = (poses_at(drive.ego, time) @ drive.mounts[name])[None, :3, 3]
            if np.isfinite(at).all():
                x, y = place(at)[0].tolist()
                draw.ellipse((x - 4, y - 4, x + 4, y + 4), _LIDAR, "black")
    metres = _round(reach / 2)
    draw_line(draw, np.array([[20, _SIDE - 20], [20 + metres * 0.5 * _SIDE / reach, _SIDE - 20]]),
              _EGO, 3)  # fmt: skip
    draw.text((20, _SIDE - 38), f"{metres:g} m", fill="black")
    return np.asarray(panel)


def _overlay(survey: DriveSurvey, exposure: Exposure) -> Image.Image:
    photo = Image.fromarray(to_bytes(np.asarray(exposure.image)))
    scale = _WIDTH / photo.width
    photo = photo.resize((_WIDTH, max(1, round(photo.height * scale))))
    sweep = nearest_sweep(survey.drive, None, exposure.time)
    assert sweep is not None
    points = sweep.points()[0]
    pixels, _, inside = pixels_of(exposure.camera, points)
    ranges = np.linalg.norm(points - pose_of(exposure)[:3, 3], axis=1)[inside]
    # The nearest last, over what is behind it.
    order = np.argsort(-ranges)
    order = order[:: 1 + len(order) // _MOST_ON_IMAGE]
    shares = np.log(ranges[order] / _NEAR) / np.log(_FAR / _NEAR)
    draw_dots(photo, scale * pixels[inside][order], rainbow(np.clip(shares, 0, 1)))
    tile = Image.new("RGB", (_WIDTH, photo.height + LABEL_HEIGHT), "white")
    late = 1e3 * (sweep.time - exposure.time)
    text = f"{exposure.name}  ({inside.sum()} points of {sweep.name}, {late:+.0f} ms)"
    ImageDraw.Draw(tile).text((0, 2), text, fill="black")
    tile.paste(photo, (0, LABEL_HEIGHT))
    return tile


def rainbow(shares: Float[np.ndarray, " n"]) -> UInt8[np.ndarray, "n 3"]:
    """Red for 0, over yellow, green and blue, to violet for 1."""
    table = [colorsys.hsv_to_rgb(0.78 * step / 255, 0.95, 1.0) for step in range(256)]
    return to_bytes(np.asarray([table], np.float32))[0][np.rint(255 * shares).astype(int)]


def _pale(colors: UInt8[np.ndarray, "n 3"]) -> UInt8[np.ndarray, "n 3"]:
    return 255 - (255 - colors) // 2


def _frame(path, points) -> tuple[Float[np.ndarray, "2"], float]:
    """The middle of the drive from above, and half a side of what is drawn, in metres."""
    around = path if len(path) else points
    if not len(around):
        return np.zeros(2), 1.0
    low, high = around[:, :2].min(axis=0), around[:, :2].max(axis=0)
    return (low + high) / 2, 0.5 * float((high - low).max()) + _AROUND


def _boxes(drive, time: float):
    """Corners on the ground of boxes, with a line that tells where their front is."""
    movers = Movers(drive)
    if not movers.tracks:
        return
    poses = movers.at(np.array([time - 0.1, time, time + 0.1]))
    for track, (before, now, after) in zip(movers.tracks, poses, strict=True):
        if not np.isfinite(now).all():
            continue
        x, y, _ = 0.5 * np.asarray(track.size)
        local = np.array([[x, y, 0], [-x, y, 0], [-x, -y, 0], [x, -y, 0], [0, 0, 0], [x, 0, 0]])
        moved = np.linalg.norm(after[:3, 3] - before[:3, 3])
        yield now[:3, 3] + local @ now[:3, :3].T, bool(moved > 0.1)


def _field(exposure: Exposure) -> Float[np.ndarray, "n 3"]:
    """The camera's place, and how far it looks along the middle of its image."""
    camera = exposure.camera
    x = np.linspace(0.5, camera.width - 0.5, 9)
    pixels = np.stack([x, np.full_like(x, 0.5 * camera.height)], axis=1)
    rays = _rays(camera, jnp.asarray(pixels, jnp.float32))
    origins, directions = (np.asarray(x, np.float64) for x in (rays.origins, rays.directions))
    ends = (origins + _REACH * directions)[np.isfinite(directions).all(axis=1)]
    return np.concatenate([pose_of(exposure)[None, :3, 3], ends])


def _round(metres: float) -> float:
    """A length of one digit, 1, 2 or 5, that is not longer."""
    power = 10 ** np.floor(np.log10(metres))
    return float(power * max(step for step in (1, 2, 5) if step * power <= metres))
