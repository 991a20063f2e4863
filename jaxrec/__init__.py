"""Differentiable reconstruction and rendering of scenes made of spheres."""

from .metrics import psnr as psnr, ssim as ssim
from .rendering import (
    Blended as Blended,
    Rendering as Rendering,
    Sensor as Sensor,
    blend as blend,
    check as check,
    export_checks as export_checks,
    render as render,
)
from .scene import Spheres as Spheres, UnconstrainedSpheres as UnconstrainedSpheres
from .sensors import (
    Frame as Frame,
    OrthographicCamera as OrthographicCamera,
    PinholeCamera as PinholeCamera,
    PulsarCamera as PulsarCamera,
    Rays as Rays,
    look_at as look_at,
)

__version__ = "0.1.0"
