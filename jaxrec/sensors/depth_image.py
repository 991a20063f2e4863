"""Points of a lidar as depths of a camera's pixels."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float32

from .._typing import positive_integer
from .rolling_shutter import Camera, RollingShutterCamera


def depth_image(
    camera: Camera | RollingShutterCamera,
    points: Float[np.ndarray, "n 3"],
    *,
    window: int = 5,
    margin: float = 0.1,
) -> Float32[np.ndarray, "height width"]:
    """Measures depths of pixels by points.

    A lidar sits elsewhere than the camera and sees what is hidden from it. Of the points in
    windows of pixels, those behind the nearest one are left out.

    Args:
        camera: Any camera that projects points; if it moves while it exposes, each point is seen
            from where it is then.
        points: World coordinates in metres, of what is there when the image is taken.
        window: Width and height in pixels, odd; 1 compares only points of the same pixel. As wide
            as the gap between points on near surfaces.
        margin: Share of the depth of the nearest point by which others may lie behind it.

    Returns:
        Metres along the ray of each pixel, as `render` tells them; 0 where there is no point.

    Raises:
        ValueError: If the window is not an odd number from 1, the margin is negative, or a point
            is not finite.
    """
    if positive_integer("window", window) % 2 == 0 or not margin >= 0:
        raise ValueError(
            f"depth_image: got window={window}, margin={margin}; give an odd number of pixels and "
            "a share from 0"
        )
    if not np.all(np.isfinite(points)):
        raise ValueError("points: got some that are not finite; leave them out")
    if not len(points):
        return np.zeros((camera.height, camera.width), np.float32)
    (column, row), depth = _seen(camera, np.asarray(points, np.float64))
    inside = (column >= 0) & (column < camera.width) & (row >= 0) & (row < camera.height)
    used = inside & (depth > 0)
    nearest = np.full((camera.height, camera.width), np.inf)
    np.minimum.at(nearest, (row[used], column[used]), depth[used])
    around = np.pad(nearest, window // 2, constant_values=np.inf)
    around = np.lib.stride_tricks.sliding_window_view(around, (window, window))
    shown = np.isfinite(nearest) & (nearest <= (1 + margin) * around.min(axis=(2, 3)))
    return np.where(shown, nearest, 0).astype(np.float32)


def _seen(camera: Any, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pixels of points, negative where there are none, and depths along their rays."""
    still = camera.camera if isinstance(camera, RollingShutterCamera) else camera
    # Sizes that come again, for every sweep has another number of points.
    size = 1 << (len(points) - 1).bit_length()
    there = np.concatenate([points, np.zeros((size - len(points), 3))])
    pixels = camera.project(jnp.asarray(there, still.world_from_camera.dtype))[0]
    rays = camera.rays(pixels)
    pixels, origins, directions = (
        np.asarray(x, np.float64)[: len(points)] for x in (pixels, rays.origins, rays.directions)
    )
    depth = ((points - origins) * directions).sum(axis=-1)
    known = np.isfinite(depth) & np.isfinite(pixels).all(axis=-1)
    cells = np.floor(np.where(known[:, None], pixels, -1)).astype(np.int64)
    return cells.T, np.where(known, depth, 0)
