"""From spheres and rays to pixels."""

from ._check import check as check
from .blend import Blended as Blended, blend as blend, export_checks as export_checks
from .render import Rendering as Rendering, Sensor as Sensor, render as render
