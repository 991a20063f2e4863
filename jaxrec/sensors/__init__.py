"""Sensors: pure functions that make rays."""

from ..geometry import look_at as look_at
from ._stream import stream_frames as stream_frames
from .camera import PinholeCamera as PinholeCamera
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
from .orthographic import OrthographicCamera as OrthographicCamera
from .pulsar import PulsarCamera as PulsarCamera
from .rays import Rays as Rays
from .rolling_shutter import RollingShutterCamera as RollingShutterCamera
from .trajectory import (
    ScrewTrajectory as ScrewTrajectory,
    Trajectory as Trajectory,
    seconds_since as seconds_since,
)
