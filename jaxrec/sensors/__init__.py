"""Sensors: pure functions that make rays."""

from ..geometry import look_at as look_at
from ._stream import stream_frames as stream_frames
from .camera import PinholeCamera as PinholeCamera
from .frame import Frame as Frame
from .orthographic import OrthographicCamera as OrthographicCamera
from .pulsar import PulsarCamera as PulsarCamera
from .rays import Rays as Rays
