"""Pictures of a capture: cameras and points from three sides, points on photos, coverage."""

import math
from collections.abc import Iterator

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw

from .contact_sheet import GAP, LABEL_HEIGHT, heat, to_bytes
from .pixels import in_image, spread_evenly
from .survey import Survey

PANEL = 480
_TRAIN, _TEST, _AXES = (40, 90, 200), (225, 120, 20), ((210, 40, 40), (30, 150, 50), (40, 60, 220))
_MOST_FRUSTA = 400
# Length of a drawn frustum, in distances from a camera to the scene.
_FRUSTUM = 0.12
_PHOTOS, _PHOTO_WIDTH = 6, 400
Picture = UInt8[np.ndarray, "height width 3"]


def draw_scene(survey: Survey) -> Picture:
    """Draws cameras and points without perspective: from above, from two sides and aslant.

    Frusta to fit are blue, held-out ones orange; the world's x, y and z axes red, green and blue.
    """
    sheet = Image.new("RGB", (2 * PANEL + 3 * GAP, 2 * (PANEL + LABEL_HEIGHT) + 3 * GAP), "white")
    draw = ImageDraw.Draw(sheet)
    for place, (label, view) in enumerate(_views(survey)):
        row, column = divmod(place, 2)
        left = GAP + column * (PANEL + GAP)
        top = GAP + row * (PANEL + LABEL_HEIGHT + GAP)
        draw.text((left, top + 2), label, fill="black")
        sheet.paste(_panel(survey, view), (left, top + LABEL_HEIGHT))
    return np.asarray(sheet)


def draw_points(survey: Survey) -> Picture | None:
    """Draws the points over some of the photos, each in its colour in a ring.

    Returns:
        Photos on the left, with the points on the right; none if the capture holds no points.
    """
    if survey.colors is None:
        return None
    rows = [_overlay(survey, index) for index in spread_evenly(len(survey.names), _PHOTOS)]
    height = sum(row.height for row in rows) + GAP * (len(rows) + 1)
    sheet = Image.new("RGB", (max(row.width for row in rows) + 2 * GAP, height), "white")
    top = GAP
    for row in rows:
        sheet.paste(row, (GAP, top))
        top += row.height + GAP
    return np.asarray(sheet)


def draw_coverage(survey: Survey) -> Picture:
    """Draws from where the cameras see the scene, and how many see each part of it.

    Left, the directions from the middle of the scene to the cameras, azimuth to the right and
    height upward. Right, the points from above, black for none to white for all cameras to fit.
    """
    sheet = Image.new("RGB", (2 * PANEL + 3 * GAP, PANEL + LABEL_HEIGHT + 2 * GAP), "white")
    draw = ImageDraw.Draw(sheet)
    left, right, top = GAP, 2 * GAP + PANEL, GAP + LABEL_HEIGHT
    draw.text((left, GAP + 2), "cameras: azimuth -180 to 180, height -90 to 90 degrees", "black")
    draw.text((right, GAP + 2), "points from above: how many cameras see them", "black")
    sheet.paste(_directions(survey), (left, top))
    sheet.paste(_seen_points(survey), (right, top))
    return np.asarray(sheet)


def _views(survey: Survey) -> Iterator[tuple[str, Float[np.ndarray, "2 3"]]]:
    """Names of views with the world's directions to the right and upward in them."""
    up = survey.up
    # The front is where cameras that look one way stand.
    ahead = survey.axes.mean(axis=0)
    if np.linalg.norm(np.cross(up, ahead)) < 0.3:
        ahead = np.eye(3)[np.argmin(np.abs(up))]
    right = np.cross(ahead, up)
    right /= np.linalg.norm(right)
    ahead = np.cross(up, right)
    yield "from above", np.stack([right, ahead])
    yield "from the front", np.stack([right, up])
    yield "from the side", np.stack([ahead, up])
    aslant = math.radians(30)
    turned = math.cos(aslant) * right + math.sin(aslant) * ahead
    away = np.cross(up, turned)
    tilted = math.cos(aslant) * up + math.sin(aslant) * away
    yield "aslant", np.stack([turned, tilted])


def _panel(survey: Survey, view: Float[np.ndarray, "2 3"]) -> Image.Image:
    panel = Image.new("RGB", (PANEL, PANEL), (250, 250, 250))
    draw = ImageDraw.Draw(panel)
    middle, reach = _frame(survey)

    def place(points):
        flat = (np.atleast_2d(points) - middle) @ view.T * (0.5 * PANEL / reach)
        return np.stack([0.5 * PANEL + flat[:, 0], 0.5 * PANEL - flat[:, 1]], axis=1)

    if survey.colors is not None:
        draw_dots(panel, place(survey.points), to_bytes(survey.colors[None])[0])
    length = _FRUSTUM * min(survey.rig.distance, reach)
    origin = middle if np.abs(middle).max() > 20 * reach else np.zeros(3)
    for axis, color in zip(np.eye(3), _AXES, strict=True):
        draw_line(draw, place(np.stack([origin, origin + 2 * length * axis])), color, 2)
    chosen = spread_evenly(len(survey.poses), _MOST_FRUSTA)
    # Held-out cameras last: there are fewer of them.
    for index in chosen:
        corners = _frustum(survey, index, length)
        color = _TRAIN if index < survey.train else _TEST
        flat = place(corners)
        for a, b in ((0, 1), (0, 2), (0, 3), (0, 4), (1, 2), (2, 3), (3, 4), (4, 1)):
            draw_line(draw, flat[[a, b]], color, 1)
    return panel


def _frame(survey: Survey) -> tuple[Float[np.ndarray, "3"], float]:
    """The middle of what is drawn, and how far it reaches: a lost camera does not shrink all."""
    everything = survey.positions
    if survey.colors is not None or survey.rig.inward:
        # As many weights for the points as for the cameras.
        some = spread_evenly(len(survey.points), len(everything))
        everything = np.concatenate([everything, survey.points[some]])
    low, high = np.quantile(everything, [0.02, 0.98], axis=0)
    middle = 0.5 * (low + high)
    reach = float(np.quantile(np.linalg.norm(everything - middle, axis=1), 0.95))
    return middle, 1.25 * max(reach, 1e-9)


def _frustum(survey: Survey, index: int, length: float) -> Float[np.ndarray, "5 3"]:
    """The camera's place and the corners of its image at a distance, clockwise."""
    camera = survey.capture.frames[index].camera
    edges = np.asarray([[0, 0], [1, 0], [1, 1], [0, 1]]) * (camera.width, camera.height)
    offset = (edges - np.asarray(camera.principal)) / np.asarray(camera.focal)
    corners = length * np.concatenate([offset, np.ones((4, 1))], axis=1)
    pose = survey.poses[index]
    return np.concatenate([pose[None, :3, 3], pose[:3, 3] + corners @ pose[:3, :3].T])


def draw_dots(panel: Image.Image, places: np.ndarray, colors: np.ndarray) -> None:
    """Draws dots of 2 x 2 pixels, later ones over earlier ones; those outside are left out."""
    pixels = np.array(panel)
    cells = np.floor(places).astype(np.int64)
    inside = ((cells >= 0) & (cells < (panel.width - 1, panel.height - 1))).all(axis=1)
    for x, y in ((0, 0), (1, 0), (0, 1), (1, 1)):
        pixels[cells[inside, 1] + y, cells[inside, 0] + x] = colors[inside]
    panel.paste(Image.fromarray(pixels))


def draw_line(draw: ImageDraw.ImageDraw, ends: np.ndarray, color, width: int) -> None:
    """Draws a line, unless an end of it is very far outside: that overflows in Pillow."""
    if np.abs(ends).max() < 1e5:
        draw.line([tuple(end) for end in ends.tolist()], fill=color, width=width)


def _overlay(survey: Survey, index: int) -> Image.Image:
    frame = survey.capture.frames[index].load()
    assert survey.colors is not None
    pixels, inside = in_image(frame.camera, survey.points)
    photo = Image.fromarray(to_bytes(frame.over((1.0, 1.0, 1.0))))
    scale = _PHOTO_WIDTH / photo.width
    photo = photo.resize((_PHOTO_WIDTH, max(1, round(photo.height * scale))))
    row = Image.new("RGB", (2 * _PHOTO_WIDTH + GAP, photo.height + LABEL_HEIGHT), "white")
    draw = ImageDraw.Draw(row)
    split = "to fit" if index < survey.train else "held out"
    draw.text((0, 2), f"{frame.name}  ({split}, {int(inside.sum())} points)", fill="black")
    row.paste(photo, (0, LABEL_HEIGHT))
    row.paste(photo, (_PHOTO_WIDTH + GAP, LABEL_HEIGHT))
    for (x, y), color in zip(
        scale * pixels[inside], to_bytes(survey.colors[None])[0][inside], strict=True
    ):
        x, y = x + _PHOTO_WIDTH + GAP, y + LABEL_HEIGHT
        draw.ellipse((x - 2, y - 2, x + 2, y + 2), tuple(color.tolist()), "black")
    return row


def _directions(survey: Survey) -> Image.Image:
    panel = Image.new("RGB", (PANEL, PANEL), (250, 250, 250))
    draw = ImageDraw.Draw(panel)
    for part in range(1, 4):
        line = part * PANEL / 4
        draw.line([(line, 0), (line, PANEL)], fill=(215, 215, 215))
        draw.line([(0, line), (PANEL, line)], fill=(215, 215, 215))
    view = dict(_views(survey))
    right, ahead = view["from above"]
    lines = survey.positions - np.median(survey.points.astype(np.float64), axis=0)
    height = np.arctan2(lines @ survey.up, np.hypot(lines @ right, lines @ ahead))
    azimuth = np.arctan2(lines @ ahead, lines @ right)
    x = PANEL * (0.5 + azimuth / (2 * math.pi))
    y = PANEL * (0.5 - height / math.pi)
    for index, center in enumerate(np.stack([x, y], axis=1).tolist()):
        color = _TRAIN if index < survey.train else _TEST
        draw.ellipse([value + side for side in (-3, 3) for value in center], fill=color)
    return panel


def _seen_points(survey: Survey) -> Image.Image:
    panel = Image.new("RGB", (PANEL, PANEL), (120, 120, 120))
    view = dict(_views(survey))["from above"]
    count = survey.seen[: survey.train].sum(axis=0)
    order = np.argsort(count)
    flat = survey.points[order].astype(np.float64) @ view.T
    low, high = np.quantile(flat, [0.01, 0.99], axis=0)
    reach = max(float((high - low).max()), 1e-9)
    places = (flat - 0.5 * (low + high)) * (0.9 * PANEL / reach)
    places = np.stack([0.5 * PANEL + places[:, 0], 0.5 * PANEL - places[:, 1]], axis=1)
    shares = (count[order] / survey.train).astype(np.float32)
    draw_dots(panel, places, to_bytes(heat(shares[None]))[0])
    return panel
