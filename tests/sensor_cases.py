"""One sensor of each kind, for the tests."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxrec.geometry import matrix_from_axis_angle, rigid
from jaxrec.sensors import (
    EquirectangularLens,
    FisheyeLens,
    FThetaBackwardLens,
    FThetaLens,
    LensCamera,
    OrthographicCamera,
    PinholeCamera,
    PulsarCamera,
    RationalLens,
    RollingShutterCamera,
    SpinningLidar,
    WindshieldLens,
    spin,
)
from jaxrec.trajectory import (
    ScrewTrajectory,
    Trajectory,
)

# instant-ngp's fox, and lenses that bend more than any photographer accepts.
FOX = (0.0578421, -0.0805099, -0.000980296, 0.00015575, 0.0)
LENSES = {
    "fox": FOX,
    "barrel": (-0.3, 0.1, 0.001, -0.002, 0.0),
    "pincushion": (0.5, 0.1, -0.002, 0.001, 0.05),
    "moustache": (-0.4, 0.2, 0.0, 0.0, -0.04),
    "decentred": (-0.2, 0.05, 0.02, -0.015, 0.01),
}
VECTOR = np.array([1, 2, -3, 0.97, 0.1, -0.12, -0.05, 0.97, 0.1, 4, 2.4, 0, 0])


@jax.jit
def pose_of(twist):
    return rigid(matrix_from_axis_angle(twist[:3]), twist[3:])


def pose(dtype=jnp.float32):
    return pose_of(jnp.asarray([0.3, -0.5, 0.2, 1.0, -2.0, 0.5], dtype))


def pinhole(lens=None, dtype=jnp.float32, width=9, height=7):
    return PinholeCamera(
        pose(dtype),
        jnp.asarray([8.0, 8.5], dtype),
        jnp.asarray([4.2, 3.6], dtype),
        None if lens is None else jnp.asarray(lens, dtype),
        width=width,
        height=height,
    )


FOCAL, PRINCIPAL = np.array([8.0, 8.5]), np.array([4.2, 3.6])
LINEAR = np.array([[1.02, 0.01], [-0.02, 1.0]])


def arrays(dtype, *values):
    return [jnp.asarray(np.asarray(value), dtype) for value in values]


def rational(dtype=jnp.float32):
    radial, prism = (0.3, -0.1, 0.02, 0.5, 0.04, -0.01), (0.01, -0.004, -0.008, 0.002)
    return RationalLens(*arrays(dtype, FOCAL, PRINCIPAL, radial, (0.004, -0.003), prism))


def fisheye(dtype=jnp.float32):
    coefficients = (0.1, -0.04, 0.02, -0.006)
    return FisheyeLens(*arrays(dtype, FOCAL, PRINCIPAL, coefficients, 2.8))


def ftheta(dtype=jnp.float32):
    coefficients = (0.0, 7.0, 0.1, -0.15, 0.05, -0.01)
    return FThetaLens(*arrays(dtype, PRINCIPAL, coefficients, 3.0, LINEAR))


def ftheta_backward(dtype=jnp.float32):
    # The distance is measured in units of 6 pixels; the corners look back.
    coefficients = (0.0, 1.9, 0.1, 0.05, -0.02, 0.01)
    return FThetaBackwardLens(*arrays(dtype, PRINCIPAL, coefficients, 3.1, 6 * LINEAR))


def windshield(dtype=jnp.float32):
    horizontal = (0.004, 1.01, 0.02, -0.03, 0.006, 0.01, 0.02, -0.01, 0.03, 0.004)
    vertical = (-0.003, 0.005, 0.01, 0.99, -0.02, 0.03)
    return WindshieldLens(rational(dtype), *arrays(dtype, horizontal, vertical))


LENS_VALUES = {
    "rational": rational,
    "fisheye": fisheye,
    "ftheta": ftheta,
    "ftheta-backward": ftheta_backward,
    "windshield": windshield,
    "equirectangular": lambda dtype=jnp.float32: EquirectangularLens.full(9, 7, dtype),
}


def with_lens(lens, dtype=jnp.float32):
    return LensCamera(pose(dtype), lens(dtype), width=9, height=7)


def orthographic(dtype=jnp.float32):
    return OrthographicCamera(pose(dtype), jnp.asarray(0.25, dtype), width=9, height=7)


vector_camera = jax.jit(PulsarCamera.from_vector, static_argnums=(1, 2, 3, 4))


def pulsar(orthographic=False, right_handed=False, dtype=jnp.float32):
    vector = VECTOR * (1 - orthographic * (np.arange(13) == 9))
    return vector_camera(jnp.asarray(vector, dtype), 9, 7, orthographic, right_handed)


SENSORS = {
    "pinhole": pinhole,
    **{
        f"pinhole-{name}": lambda lens=lens, **kwargs: pinhole(lens, **kwargs)
        for name, lens in LENSES.items()
    },
    **{
        name: lambda lens=lens, **kwargs: with_lens(lens, **kwargs)
        for name, lens in LENS_VALUES.items()
    },
    "orthographic": orthographic,
    "pulsar": pulsar,
    "pulsar-right-handed": lambda **kwargs: pulsar(right_handed=True, **kwargs),
    "pulsar-orthographic": lambda **kwargs: pulsar(orthographic=True, **kwargs),
}
CAMERAS = [name for name in SENSORS if not name.startswith("pulsar")]


def pixel_centers(width=9, height=7):
    x, y = np.meshgrid(np.arange(width) + 0.5, np.arange(height) + 0.5)
    return np.stack([x, y], axis=-1).astype(np.float32)


# What moves while it measures: its rays have times, and its arrays those of a path.
POSE_TIMES = np.array([0.0, 5.0, 10.0])


def path(kind=Trajectory, dtype=jnp.float32, **kwargs):
    twists = [
        [0.3, -0.5, 0.2, 1, -2, 0.5],
        [0.2, -0.4, 0.3, 1.5, -2, 1],
        [0.5, -0.3, 0.3, 2, -1, 1],
    ]
    poses = jax.vmap(pose_of)(jnp.asarray(np.array(twists), dtype))
    return kind(poses, POSE_TIMES, **kwargs)


def mount(dtype=jnp.float32):
    return pose_of(jnp.asarray([0.02, 0.1, -0.05, 0.3, 0.1, -0.2], dtype))


def rolling(camera=pinhole, direction="top_to_bottom", kind=Trajectory, dtype=jnp.float32):
    still = dataclasses.replace(camera(dtype=dtype), world_from_camera=mount(dtype))
    start, end, offset = (jnp.asarray(value, dtype) for value in (1.0, 8.2, 0.1))
    return RollingShutterCamera(
        still, path(kind, dtype), start, end, offset=offset, direction=direction
    )


ROLLING = {
    "top_to_bottom": lambda **kwargs: rolling(**kwargs),
    "bottom_to_top": lambda **kwargs: rolling(direction="bottom_to_top", **kwargs),
    "left_to_right-fisheye": lambda **kwargs: rolling(
        SENSORS["fisheye"], "left_to_right", **kwargs
    ),
    "right_to_left-screw": lambda **kwargs: rolling(
        pinhole, "right_to_left", ScrewTrajectory, **kwargs
    ),
    "top_to_bottom-orthographic": lambda **kwargs: rolling(orthographic, **kwargs),
}


ELEVATIONS = np.array([0.2, 0.05, -0.1, -0.4])
OFFSETS = np.array([0.02, -0.03, 0.01, 0.0])
HEIGHTS = np.array([0.2, 0.15, 0.1, -0.1])


def spinning(direction="cw", dtype=jnp.float32, trajectory=None):
    return SpinningLidar(
        mount(dtype),
        path(dtype=dtype) if trajectory is None else trajectory,
        ELEVATIONS,
        spin(7, direction),
        azimuth_offsets=OFFSETS,
        heights=HEIGHTS,
        delays=np.array([0.0, 0.1, 0.2, 0.3]),
        start=1.0,
        end=8.0,
        offset=0.15,
        beam=(0.01, 0.0015),
    )


rays_of = jax.jit(lambda camera: camera.rays())
project = jax.jit(lambda camera, points: camera.project(points))


def origins_and_directions(camera):
    rays = camera.rays()
    return rays.origins, rays.directions
