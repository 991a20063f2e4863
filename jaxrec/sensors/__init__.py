"""Sensors: pure functions that make rays."""

from ..geometry import look_at as look_at
from ._stream import stream_frames as stream_frames
from .camera import PinholeCamera as PinholeCamera
from .depth_image import depth_image as depth_image
from .exposure import Exposure as Exposure
from .frame import Frame as Frame
from .lens_camera import LensCamera as LensCamera
from .lenses import (
    EquirectangularLens as EquirectangularLens,
    FisheyeLens as FisheyeLens,
    FThetaBackwardLens as FThetaBackwardLens,
    FThetaLens as FThetaLens,
    Lens as Lens,
    RationalLens as RationalLens,
    StoredWindshieldLens as StoredWindshieldLens,
    WindshieldLens as WindshieldLens,
)
from .lidar import RayBundle as RayBundle, SpinningLidar as SpinningLidar, spin as spin
from .lidar_fit import (
    RowFit as RowFit,
    fit_rows as fit_rows,
    fit_rows_and_heights as fit_rows_and_heights,
)
from .orthographic import OrthographicCamera as OrthographicCamera
from .pulsar import PulsarCamera as PulsarCamera
from .rays import Rays as Rays
from .rolling_shutter import RollingShutterCamera as RollingShutterCamera
from .sweep import Sweep as Sweep
