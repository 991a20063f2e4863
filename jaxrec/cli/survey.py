"""What a capture holds, as numbers that `jaxrec check` judges and draws."""

import dataclasses

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Float32

from ..data import Capture
from ..sensors import Frame, PinholeCamera
from ..train.rig import Rig
from .depth_survey import depth_factor
from .pixels import LUMINANCE, in_image, ray_directions, spread_evenly

# Points and pixels beyond these numbers change no verdict.
_MOST_POINTS = 5000
_MOST_PIXELS = 200
# Half the edge of the cube about the middle of the scene that stands for missing points, in
# distances from a camera to it.
_CUBE = 0.3


@dataclasses.dataclass(frozen=True, eq=False)
class Photo:
    """What the pixels of one image say.

    Attributes:
        brightness: Mean luminance of what may be used, in [0, 1].
        sharpness: Mean squared difference of neighbouring pixels over the mean squared luminance.
        used: Share of the pixels that masks and alpha leave.
        white: Share of the used pixels that are as bright as can be in a channel.
        dark_corners: Whether all four corners are black.
    """

    brightness: float
    sharpness: float
    used: float
    white: float
    dark_corners: bool


@dataclasses.dataclass(frozen=True, eq=False)
class Survey:
    """A capture in numbers; cameras in the order of `Capture.frames`, those to fit first.

    Attributes:
        capture: What was surveyed.
        names: Of the images.
        train: How many of them are to be fitted.
        poses: Camera to world, OpenCV axes, float64.
        fields: Horizontal field of view of an ideal lens, in radians.
        blind: Share of each image's pixels that the lens model gives no ray.
        rig: What the poses say of the scene.
        up: The world's up, as a unit vector, as the cameras are held.
        extent: Median distance of the cameras from their median, in the capture's units.
        points: Some of the capture's points, or of a cube about the middle of the scene.
        colors: Of the points; none for the cube.
        seen: Which camera has which point in its image.
        photos: What the pixels say.
        depth_factor: See `jaxrec.cli.depth_survey.depth_factor`; None where nothing is known.
    """

    capture: Capture
    names: list[str]
    train: int
    poses: Float[np.ndarray, "cameras 4 4"]
    fields: Float[np.ndarray, " cameras"]
    blind: Float[np.ndarray, " cameras"]
    rig: Rig
    up: Float[np.ndarray, "3"]
    extent: float
    points: Float32[np.ndarray, "points 3"]
    colors: Float32[np.ndarray, "points 3"] | None
    seen: Bool[np.ndarray, "cameras points"]
    photos: list[Photo]
    depth_factor: float | None

    @property
    def positions(self) -> Float[np.ndarray, "cameras 3"]:
        """Where the cameras are."""
        return self.poses[:, :3, 3]

    @property
    def axes(self) -> Float[np.ndarray, "cameras 3"]:
        """Unit optical axes."""
        return self.poses[:, :3, 2]


def survey(capture: Capture) -> Survey:
    """Looks at all cameras, points and pixels of a capture."""
    frames = capture.frames
    cameras = [frame.camera for frame in frames]
    poses = np.stack([np.asarray(camera.world_from_camera, np.float64) for camera in cameras])
    rig = Rig.from_cameras(cameras)
    positions = poses[:, :3, 3]
    middle = np.median(positions, axis=0)
    points, colors = _points(capture, rig)
    return Survey(
        capture=capture,
        names=[frame.name for frame in frames],
        train=len(capture.train),
        poses=poses,
        fields=np.asarray([2 * np.arctan2(c.width / 2, float(c.focal[0])) for c in cameras]),
        blind=np.asarray([_blind(camera) for camera in cameras]),
        rig=rig,
        up=_up(poses),
        extent=float(np.median(np.linalg.norm(positions - middle, axis=1))),
        points=points,
        colors=colors,
        seen=np.stack([in_image(camera, points)[1] for camera in cameras]),
        photos=[_photo(frame) for frame in frames],
        depth_factor=depth_factor(sorted(frames, key=lambda frame: frame.name)),
    )


def _points(
    capture: Capture, rig: Rig
) -> tuple[Float32[np.ndarray, "points 3"], Float32[np.ndarray, "points 3"] | None]:
    cloud = capture.points
    if cloud is not None and len(cloud.positions):
        some = spread_evenly(len(cloud.positions), _MOST_POINTS)
        return cloud.positions[some], cloud.colors[some]
    ahead = 0 if rig.inward else rig.distance
    middle = rig.center + ahead * rig.axes.mean(axis=0)
    side = np.linspace(-_CUBE, _CUBE, 9) * rig.distance
    cube = np.stack(np.meshgrid(side, side, side, indexing="ij"), axis=-1).reshape(-1, 3)
    return (middle + cube).astype(np.float32), None


def _up(poses: Float[np.ndarray, "cameras 4 4"]) -> Float[np.ndarray, "3"]:
    up = -poses[:, :3, 1].mean(axis=0)
    length = float(np.linalg.norm(up))
    return up / length if length > 1e-6 else np.asarray([0.0, 0.0, 1.0])


def _blind(camera: PinholeCamera) -> float:
    if camera.distortion is None:
        return 0.0
    grid = np.stack(
        np.meshgrid(
            np.linspace(0.5, camera.width - 0.5, 24), np.linspace(0.5, camera.height - 0.5, 24)
        ),
        axis=-1,
    ).reshape(-1, 2)
    directions = np.asarray(ray_directions(camera, jnp.asarray(grid, jnp.float32)))
    return float(np.mean(~np.isfinite(directions).all(axis=1)))


def _photo(frame: Frame) -> Photo:
    frame = frame.load()
    step = max(1, max(frame.image.shape[:2]) // _MOST_PIXELS)
    image = frame.image[::step, ::step]
    usable = np.ones(image.shape[:2], bool)
    if frame.mask is not None:
        usable &= frame.mask[::step, ::step]
    if frame.alpha is not None:
        usable &= frame.alpha[::step, ::step] > 0.5
    corners = frame.image[[0, 0, -1, -1], [0, -1, 0, -1]]
    dark = bool((corners < 3 / 255).all()) and frame.alpha is None
    if not usable.any():
        return Photo(0.0, 0.0, 0.0, 0.0, dark)
    gray = frame.image @ LUMINANCE
    used = image[usable]
    return Photo(
        brightness=float((used @ LUMINANCE).mean()),
        sharpness=_sharpness(gray),
        used=float(usable.mean()),
        white=float((used >= 1).any(axis=1).mean()),
        dark_corners=dark,
    )


def _sharpness(gray: Float32[np.ndarray, "height width"]) -> float:
    steps = [np.diff(gray, axis=axis) for axis in (0, 1) if gray.shape[axis] > 1]
    change = sum(float(np.square(step).mean()) for step in steps)
    return change / max(float(np.square(gray).mean()), 1e-6)
