"""Shaders: what turns spheres' features and viewing directions into the colour of pixels."""

from .backdrop import EnvironmentMap as EnvironmentMap
from .base import Shader as Shader
from .convert import Harmonics as Harmonics, to_harmonics as to_harmonics
from .harmonics import SphericalHarmonics as SphericalHarmonics, harmonics_basis as harmonics_basis
from .plain import PlainColor as PlainColor
from .unet import UNet as UNet
from .view_mlp import ViewMLP as ViewMLP
