"""Where the clock of the rays meets that of the spheres."""

import dataclasses

from ..scene import Spheres
from ..sensors import Rays


def since_spheres(rays: Rays, spheres: Spheres) -> Rays:
    """The rays with times that count from when the spheres are at their centers."""
    if spheres.velocities is None or spheres.time is None or rays.times is None:
        return rays
    return dataclasses.replace(rays, times=rays.times - spheres.time)
