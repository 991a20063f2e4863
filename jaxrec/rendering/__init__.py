"""From spheres and rays to pixels."""

from ._check import check as check
from .blend import Blended as Blended, blend as blend, export_checks as export_checks
from .lidar import (
    LidarRendering as LidarRendering,
    first_surface as first_surface,
    render_lidar as render_lidar,
    second_return as second_return,
)
from .render import Rendering as Rendering, Sensor as Sensor, render as render
