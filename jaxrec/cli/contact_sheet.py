"""A picture of held-out views that a person can open: truth, render and error."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, UInt8

GAP = 6
LABEL_HEIGHT = 16
MOST_ROWS = 8
# An error of this much, or more, is shown as white.
ERROR_RANGE = 0.25
# Black, violet, red, yellow, white: brightness grows all along.
_HEAT = np.array(
    [
        [0.0, 0.0, 0.0],
        [0.35, 0.05, 0.45],
        [0.85, 0.15, 0.2],
        [1.0, 0.75, 0.1],
        [1.0, 1.0, 1.0],
    ]
)


class Row(NamedTuple):
    """One view of the sheet; `psnr` in decibels over what may be measured."""

    name: str
    truth: Float32[np.ndarray, "height width 3"]
    render: Float32[np.ndarray, "height width 3"]
    psnr: float


def choose_rows(psnr: Sequence[float], most: int = MOST_ROWS) -> list[int]:
    """Picks views for the sheet, in order: evenly spaced ones, the worst always among them."""
    count = len(psnr)
    if count <= most:
        return list(range(count))
    chosen = {int(index) for index in np.linspace(0, count - 1, most - 1).round()}
    return sorted(chosen | {int(np.argmin(psnr))})


def contact_sheet(rows: Sequence[Row]) -> UInt8[np.ndarray, "height width 3"]:
    """Draws a row for each view: what was photographed, what is rendered, and the error.

    Args:
        rows: At least one view, colours in [0, 1].

    Returns:
        The sheet on white. Errors run from black (none) over red to white (`ERROR_RANGE`).
    """
    from PIL import Image, ImageDraw

    widths = [row.truth.shape[1] for row in rows]
    heights = [row.truth.shape[0] for row in rows]
    width = 3 * max(widths) + 4 * GAP
    height = sum(heights) + len(rows) * (LABEL_HEIGHT + GAP) + GAP
    sheet = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(sheet)
    top = GAP
    for row in rows:
        labels = (
            "truth  " + row.name,
            f"render  {row.psnr:.2f} dB",
            f"error  0 - {ERROR_RANGE:g}",
        )
        error = np.abs(row.render - row.truth).mean(-1)
        for column, pixels in enumerate((row.truth, row.render, heat(error / ERROR_RANGE))):
            left = GAP + column * (max(widths) + GAP)
            draw.text((left, top + 2), _fit(draw, labels[column], max(widths)), fill="black")
            sheet.paste(Image.fromarray(to_bytes(pixels)), (left, top + LABEL_HEIGHT))
        top += row.truth.shape[0] + LABEL_HEIGHT + GAP
    return np.asarray(sheet)


def heat(
    values: Float32[np.ndarray, "height width"],
) -> Float32[np.ndarray, "height width 3"]:
    """Maps values in [0, 1] to colours."""
    stops = np.linspace(0, 1, len(_HEAT))
    channels = [np.interp(values, stops, _HEAT[:, channel]) for channel in range(3)]
    return np.stack(channels, -1).astype(np.float32)


def to_bytes(
    image: Float32[np.ndarray, "height width 3"],
) -> UInt8[np.ndarray, "height width 3"]:
    """Rounds colours, clipped to [0, 1], to 8 bits."""
    return np.round(255 * np.clip(image, 0, 1)).astype(np.uint8)


def _fit(draw, text: str, width: int) -> str:
    """Cuts a text from the left until it fits."""
    while len(text) > 1 and draw.textlength(text) > width:
        text = text[1:]
    return text
