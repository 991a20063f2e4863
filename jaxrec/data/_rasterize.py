"""A z-buffer rasteriser of triangles, in NumPy."""

import numpy as np
from jaxtyping import Float64, Int64

# Barycentric weight, well above rounding, by which a triangle reaches over its edges.
ON_EDGE = 1e-8


def rasterize(
    corners: Float64[np.ndarray, "triangles 3 2"],
    order: Float64[np.ndarray, "triangles 3"],
    width: int,
    height: int,
) -> Int64[np.ndarray, "height width"]:
    """Finds the triangle that is seen at the centre of each pixel.

    Both triangles of a shared edge cover a centre that lies on it, so a closed mesh has no cracks.

    Args:
        corners: Projected corners in pixels; the centre of pixel (0, 0) is (0.5, 0.5). Triangles
            that run counter-clockwise on the screen (x right, y down) are drawn.
        order: Depth of each corner in [0, 1], a quantity that is linear on the screen; the
            smallest is in front.
        width: Pixels in a row.
        height: Pixels in a column.

    Returns:
        Index of the visible triangle, or -1 where there is none.
    """
    area = _cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    size = np.array([width, height])
    low = np.clip(np.ceil(corners.min(1) - 0.5), 0, size).astype(np.int64)
    high = np.clip(np.floor(corners.max(1) - 0.5) + 1, 0, size).astype(np.int64)
    extent = np.maximum(high - low, 0)
    drawn = np.flatnonzero((area < 0) & (extent.prod(-1) > 0))

    triangle, column, row = _fragments(drawn, low, extent)
    weights = barycentric(corners, triangle, column + 0.5, row + 0.5)
    inside = (weights > -ON_EDGE).all(0)
    triangle, column, row, weights = (
        triangle[inside],
        column[inside],
        row[inside],
        weights[:, inside],
    )
    depth = (weights * order.T[:, triangle]).sum(0)
    # One integer holds depth above index: its minimum is the nearest triangle, ties by index.
    key = (np.clip(depth, 0, 1) * (2**31 - 1)).astype(np.int64) << 32 | triangle
    nothing = np.iinfo(np.int64).max
    buffer = np.full(width * height, nothing)
    np.minimum.at(buffer, row * width + column, key)
    visible = np.where(buffer == nothing, -1, buffer & 0xFFFFFFFF)
    return visible.reshape(height, width)


def barycentric(
    corners: Float64[np.ndarray, "triangles 3 2"],
    triangle: Int64[np.ndarray, " points"],
    x: Float64[np.ndarray, " points"],
    y: Float64[np.ndarray, " points"],
) -> Float64[np.ndarray, "3 points"]:
    """Computes the screen-space barycentric weights of points, each in a triangle of its own."""
    after, opposite = corners[:, [1, 2, 0]], corners[:, [2, 0, 1]]
    edge = opposite - after
    area = _cross(after - corners, edge)
    with np.errstate(divide="ignore", invalid="ignore"):
        slope_x, slope_y = (-edge[..., 1] / area).T, (edge[..., 0] / area).T
    start_x, start_y = after[..., 0].T, after[..., 1].T
    return slope_x[:, triangle] * (x - start_x[:, triangle]) + slope_y[:, triangle] * (
        y - start_y[:, triangle]
    )


def _fragments(drawn, low, extent):
    """Lists every (triangle, pixel) pair of the triangles' bounding boxes."""
    count = extent[drawn].prod(-1)
    triangle = np.repeat(drawn, count)
    within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    row, column = np.divmod(within, extent[triangle, 0])
    return triangle, column + low[triangle, 0], row + low[triangle, 1]


def _cross(a, b):
    return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]
