"""Pictures of sweeps that a person can open: ranges, their errors, and points from above."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float32, UInt8

from ..train import SweepView
from .contact_sheet import GAP, LABEL_HEIGHT, heat, to_bytes
from .drive_picture import rainbow

# Errors of this many metres, or more, are white.
ERROR_RANGE = 1.0
# Colours run from red, this near in metres, to violet, this far, evenly in the logarithm.
_NEAR, _FAR = 1.0, 80.0
# Lidars have few rows and many columns: rows are drawn as high as this many pixels in all.
_LEAST_HEIGHT, _LEAST_WIDTH = 96, 600
# Half a side of what is drawn from above, in metres.
_AROUND = 30.0
_SIDE = 600
_TRUE, _RENDERED = (60, 60, 60), (215, 40, 120)

Picture = UInt8[np.ndarray, "height width 3"]


def range_picture(
    ranges: Float32[np.ndarray, "rows columns"], shown: Bool[np.ndarray, "rows columns"]
) -> Picture:
    """Draws ranges as rows and columns of the lidar: red near by, violet far away, else black.

    Args:
        ranges: In metres.
        shown: Rays that come back.
    """
    known = shown & (ranges > 0)
    shares = np.log(np.where(known, ranges, 1) / _NEAR) / np.log(_FAR / _NEAR)
    colors = rainbow(np.clip(shares, 0, 1).ravel()).reshape(*ranges.shape, 3)
    return _larger(np.where(known[..., None], colors, 0).astype(np.uint8))


def sweep_sheet(views: Sequence[SweepView]) -> Picture:
    """Draws for each sweep its ranges, those rendered, and the error; and one from above.

    Args:
        views: At least one.

    Returns:
        The sheet on white. Errors run from black (none) over red to white (1 m, or a return that
        is missing); from above the points of the middle sweep are grey and rendered ones red.
    """
    from PIL import Image, ImageDraw

    tiles = []
    for view in views:
        known = view.fired & view.heard
        error = np.abs(view.ranges - view.sweep.ranges) / ERROR_RANGE
        error = np.where(known & view.returned, error, (known != view.returned) & view.fired)
        median = np.median(np.abs(view.ranges - view.sweep.ranges)[view.returned])
        tiles += [
            (f"measured  {view.name}", range_picture(view.sweep.ranges, view.returned)),
            (f"rendered  median error {median:.3f} m", range_picture(view.ranges, known)),
            (f"error  0 - {ERROR_RANGE:g} m", _larger(to_bytes(heat(error.astype(np.float32))))),
        ]
    middle = views[len(views) // 2]
    tiles.append((f"from above  measured grey, rendered red  {middle.name}", _above(middle)))
    width = max(tile.shape[1] for _, tile in tiles) + 2 * GAP
    height = sum(tile.shape[0] + LABEL_HEIGHT + GAP for _, tile in tiles) + GAP
    sheet = Image.new("RGB", (width, height), "white")
    draw, top = ImageDraw.Draw(sheet), GAP
    for label, tile in tiles:
        draw.text((GAP, top + 2), label, fill="black")
        sheet.paste(Image.fromarray(tile), (GAP, top + LABEL_HEIGHT))
        top += tile.shape[0] + LABEL_HEIGHT + GAP
    return np.asarray(sheet)


def _above(view: SweepView) -> Picture:
    middle = np.nanmedian(view.origins[view.fired], axis=0)[:2]
    picture = np.full((_SIDE, _SIDE, 3), 255, np.uint8)
    for points, color in ((view.true_points(), _TRUE), (view.points(), _RENDERED)):
        flat = (points[:, :2] - middle) * (0.5 * _SIDE / _AROUND)
        column = np.floor(0.5 * _SIDE + flat[:, 0]).astype(int)
        row = np.floor(0.5 * _SIDE - flat[:, 1]).astype(int)
        seen = (column >= 0) & (column < _SIDE) & (row >= 0) & (row < _SIDE)
        picture[row[seen], column[seen]] = color
    return picture


def _larger(picture: Picture) -> UInt8[np.ndarray, "larger_height larger_width 3"]:
    """Pixels repeated until the picture can be looked at."""
    down = max(1, -(-_LEAST_HEIGHT // picture.shape[0]))
    across = max(1, -(-_LEAST_WIDTH // picture.shape[1]))
    return np.repeat(np.repeat(picture, down, axis=0), across, axis=1)
