"""Shaders: what turns spheres' features and viewing directions into the colour of pixels."""

from .base import Shader as Shader
from .harmonics import SphericalHarmonics as SphericalHarmonics, harmonics_basis as harmonics_basis
from .plain import PlainColor as PlainColor
from .view_mlp import ViewMLP as ViewMLP
