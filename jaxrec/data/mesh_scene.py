"""A small still life of textured triangle meshes, photographed from a dome of cameras.

The scene of `jaxrec demo` and of the tests: nothing in it is made of spheres, so a fit does not
know the form of the answer. Poses and alpha are exact.
"""

import concurrent.futures
import dataclasses
import json
import pathlib

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float32, Float64

from ..sensors import Frame, PinholeCamera
from . import _textures
from ._mesh import Mesh, box, join, lathe, torus
from ._poses import FLIP
from ._rasterize import barycentric, rasterize
from .capture import Capture

FIELD_OF_VIEW = 0.66
DISTANCE = 4.1
TARGET = (0.0, 0.0, 0.15)
# Elevation in degrees and share of the cameras of each ring of the dome.
TRAIN_RINGS = ((12.0, 0.3), (30.0, 0.4), (52.0, 0.3))
TEST_RINGS = ((21.0, 0.6), (41.0, 0.4))
LIGHT = (-0.45, 0.30, -0.84)
AMBIENT = 0.45
SUPERSAMPLING = 3
SHADOW_MAP = 700


def mesh_scene(*, size: int = 128, train: int = 32, test: int = 8) -> Capture:
    """Renders the scene as a capture of square images with alpha.

    Colours and alpha are multiples of 1/255, as if they had been stored in PNG files.

    Args:
        size: Pixels along an edge of an image, at least 8.
        train: Number of views to fit, at least 3.
        test: Number of views held out, at least 2; they stand between the others.

    Returns:
        The capture; the same arguments give the same pixels.

    Raises:
        ValueError: If an argument is too small.
    """
    for name, value, least in (
        ("size", size, 8),
        ("train", train, 3),
        ("test", test, 2),
    ):
        if value < least:
            raise ValueError(f"{name}: got {value}, want at least {least}")
    scene = _Scene.build()

    def frames(split, rings, count, phase):
        poses = _dome(rings, count, phase)
        names = [f"{split}/r_{index:02d}" for index in range(count)]
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            return list(
                pool.map(
                    lambda pose, name: _photograph(scene, pose, size, name),
                    poses,
                    names,
                )
            )

    return Capture(
        frames("train", TRAIN_RINGS, train, 0.0),
        frames("test", TEST_RINGS, test, 0.5),
        format="mesh_scene",
        path=pathlib.Path("mesh_scene"),
    )


def write_blender(capture: Capture, folder: pathlib.Path) -> None:
    """Writes a capture in the layout of NeRF-synthetic: PNG images and a json for each split.

    Args:
        capture: Frames of one field of view, with square pixels, the principal point in the
            middle and no distortion, named `train/...` and `test/...`.
        folder: Where to write; made if it does not exist.
    """
    from PIL import Image

    for split, frames in (("train", capture.train), ("test", capture.test)):
        (folder / split).mkdir(parents=True, exist_ok=True)
        entries = []
        for frame in frames:
            alpha = np.ones(frame.image.shape[:2]) if frame.alpha is None else frame.alpha
            pixels = np.concatenate([frame.image, alpha[..., None]], -1)
            image = Image.fromarray(np.round(255 * pixels).astype(np.uint8))
            image.save(folder / f"{frame.name}.png")
            pose = np.asarray(frame.camera.world_from_camera, np.float64) @ FLIP
            entries.append({"file_path": f"./{frame.name}", "transform_matrix": pose.tolist()})
        camera = frames[0].camera
        angle = 2 * np.arctan(0.5 * camera.width / float(np.asarray(camera.focal)[0]))
        document = {"camera_angle_x": angle, "frames": entries}
        (folder / f"transforms_{split}.json").write_text(json.dumps(document, indent=2))


@dataclasses.dataclass(frozen=True)
class _Scene:
    """What the cameras look at; `lit` is the share of direct light seen by the shadow map."""

    mesh: Mesh
    normals: Float64[np.ndarray, "triangles 3 3"]
    textures: Float64[np.ndarray, "textures size size 3"]
    light_from_world: Float64[np.ndarray, "4 4"]
    shadow: Float64[np.ndarray, "rows columns"]

    @classmethod
    def build(cls) -> "_Scene":
        mesh, textures = _still_life()
        light_from_world = np.linalg.inv(_look_at(-2.5 * _unit(LIGHT), (0.0, 0.0, 0.0)))
        corners = _transform(light_from_world, mesh.corners)
        pixels = _shadow_pixels(corners)
        seen = rasterize(pixels, corners[..., 2] / 5.0, SHADOW_MAP, SHADOW_MAP)
        row, column = np.nonzero(seen >= 0)
        triangle = seen[row, column]
        weights = barycentric(pixels, triangle, column + 0.5, row + 0.5)
        depth = np.full(seen.shape, np.inf)
        depth[row, column] = (weights * corners[triangle, :, 2].T).sum(0)
        return cls(mesh, mesh.normals(), textures, light_from_world, depth)

    def shade(self, triangle, weights):
        """Computes colours in [0, 1] at barycentric weights of triangles."""

        def blend(values):
            return np.einsum("kp,pkc->pc", weights, values[triangle])

        albedo = _textures.sample(self.textures, self.mesh.texture[triangle], blend(self.mesh.uv))
        normal = _unit(blend(self.normals))
        facing = np.maximum(-normal @ _unit(LIGHT), 0.0)
        # Faces that look up see more of the sky.
        sky = AMBIENT * (0.75 + 0.25 * normal[:, 2])
        direct = self._lit(blend(self.mesh.corners) + 0.01 * normal)
        return np.clip(albedo * (sky + 0.75 * direct * facing)[:, None], 0, 1)

    def _lit(self, points):
        """Share of the light that arrives, from the nine entries of the map around each point."""
        seen = _transform(self.light_from_world, points)
        column, row = np.floor(_shadow_pixels(seen)).astype(np.int64).T
        lit = np.zeros(len(points))
        for dy in (-1, 0, 1):
            for dx in (-1, 0, 1):
                x = np.clip(column + dx, 0, SHADOW_MAP - 1)
                y = np.clip(row + dy, 0, SHADOW_MAP - 1)
                lit += seen[:, 2] < self.shadow[y, x] + 0.02
        return lit / 9


def _still_life() -> tuple[Mesh, Float64[np.ndarray, "textures size size 3"]]:
    """Composes the meshes (metres, z up, the table's top at z = 0) and their textures."""
    generator = np.random.default_rng(3)
    wood, brick, cone, ring, vase, roof = range(6)
    textures = [
        _textures.planks(generator),
        _textures.bricks(generator),
        _textures.bands([[0.95, 0.78, 0.20], [0.20, 0.45, 0.70], [0.93, 0.93, 0.88]]),
        _textures.checks([0.10, 0.45, 0.40], [0.95, 0.85, 0.55], 2),
        _textures.dots([0.20, 0.28, 0.60], [0.95, 0.90, 0.82]),
        _textures.checks([0.35, 0.12, 0.18], [0.62, 0.30, 0.25], 4),
    ]
    profile = [
        (0.0, 0.0), (0.15, 0.0), (0.22, 0.09), (0.255, 0.20), (0.24, 0.31), (0.16, 0.42),
        (0.10, 0.49), (0.095, 0.55), (0.14, 0.62), (0.10, 0.63), (0.0, 0.60),
    ]  # fmt: skip
    square = np.pi / 4
    parts = [
        box((1.8, 1.8, 0.1), texture=wood, repeats=0.8).moved((0.0, 0.0, -0.1), turn=0.2),
        box((0.5, 0.5, 0.45), texture=brick, repeats=2.0).moved((-0.42, -0.38, 0.0), turn=0.5),
        lathe(
            [(0.0, 0.0), (0.42, 0.0), (0.0, 0.34)],
            texture=roof,
            repeats=(4, 2.0),
            segments=4,
        ).moved((-0.42, -0.38, 0.45), turn=0.5 + square),
        lathe([(0.0, 0.0), (0.27, 0.0), (0.0, 0.72)], texture=cone, repeats=(3, 3.0)).moved(
            (0.45, 0.42, 0.0)
        ),
        torus(0.24, 0.095, texture=ring, repeats=(8, 3)).moved((0.42, -0.42, 0.0)),
        lathe(profile, texture=vase, repeats=(5, 5.0)).moved((-0.40, 0.45, 0.0)),
    ]
    return join(parts), np.stack(textures)


def _photograph(scene: _Scene, world_from_camera, size: int, name: str) -> Frame:
    """Renders one view with `SUPERSAMPLING` squared samples in each pixel."""
    focal = 0.5 * size / np.tan(0.5 * FIELD_OF_VIEW)
    fine = SUPERSAMPLING * size
    corners = _transform(np.linalg.inv(world_from_camera), scene.mesh.corners)
    depth = corners[..., 2]
    pixels = SUPERSAMPLING * (focal * corners[..., :2] / depth[..., None] + 0.5 * size)
    seen = rasterize(pixels, 1 - depth.min() / depth, fine, fine)
    row, column = np.nonzero(seen >= 0)
    triangle = seen[row, column]
    weights = barycentric(pixels, triangle, column + 0.5, row + 0.5)
    # Screen-space weights are linear in 1 / depth on the surface.
    weights = weights / depth[triangle].T
    weights /= weights.sum(0)
    samples = np.zeros((fine, fine, 4))
    samples[row, column, :3] = scene.shade(triangle, weights)
    samples[row, column, 3] = 1.0
    blocks = samples.reshape(size, SUPERSAMPLING, size, SUPERSAMPLING, 4).mean((1, 3))
    color = blocks[..., :3] / np.maximum(blocks[..., 3:], 1e-9)
    camera = PinholeCamera(
        world_from_camera=jnp.asarray(world_from_camera, jnp.float32),
        focal=jnp.full(2, focal, jnp.float32),
        principal=jnp.full(2, 0.5 * size, jnp.float32),
        width=size,
        height=size,
    )
    return Frame(
        camera=camera,
        image=_rounded(color),
        alpha=_rounded(blocks[..., 3]),
        mask=None,
        name=name,
    )


def _rounded(values) -> Float32[np.ndarray, "..."]:
    """Rounds to the nearest of the 256 levels of a PNG file."""
    return np.round(255 * values).astype(np.float32) / np.float32(255)


def _dome(rings, count: int, phase: float) -> list[Float64[np.ndarray, "4 4"]]:
    """Places cameras on rings around the scene; `phase` turns them by a share of a step."""
    shares = np.array([share for _, share in rings])
    ends = np.round(count * np.cumsum(shares) / shares.sum()).astype(int)
    poses = []
    for index, (degrees, begin, end) in enumerate(
        zip((d for d, _ in rings), np.r_[0, ends[:-1]], ends, strict=True)
    ):
        elevation = np.deg2rad(degrees)
        for step in range(end - begin):
            azimuth = 2 * np.pi * (step + phase + index / len(rings)) / (end - begin)
            direction = np.array(
                [
                    np.cos(elevation) * np.cos(azimuth),
                    np.cos(elevation) * np.sin(azimuth),
                    np.sin(elevation),
                ]
            )
            poses.append(_look_at(np.array(TARGET) + DISTANCE * direction, TARGET))
    return poses


def _look_at(eye, target) -> Float64[np.ndarray, "4 4"]:
    """Returns `world_from_camera` (x right, y down, z forward) with z as the world's up."""
    forward = _unit(np.asarray(target) - np.asarray(eye))
    right = _unit(np.cross(forward, [0.0, 0.0, 1.0]))
    pose = np.eye(4)
    pose[:3, :3] = np.stack([right, np.cross(forward, right), forward], -1)
    pose[:3, 3] = eye
    return pose


def _shadow_pixels(points):
    """Projects points in the light's frame onto the shadow map, which spans 4 metres."""
    return SHADOW_MAP * (points[..., :2] / 4.0 + 0.5)


def _transform(matrix, points):
    return points @ matrix[:3, :3].T + matrix[:3, 3]


def _unit(vectors):
    vectors = np.asarray(vectors, float)
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
