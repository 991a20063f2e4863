"""Writes small captures of their own for the tests of the readers."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from jaxrec.data import CaptureError, open_capture

WIDTH, HEIGHT = 12, 8
SHARED = {"fl_x": 10.0, "fl_y": 11.0, "cx": 6.5, "cy": 3.5, "w": WIDTH, "h": HEIGHT}
ANGLE = {"camera_angle_x": 0.8}


def pose(angle):
    """Camera-to-world with OpenGL axes, four units from the origin and looking at it."""
    back = np.asarray([math.cos(angle), math.sin(angle), 0.5])
    back = back / np.linalg.norm(back)
    right = np.cross([0.0, 0.0, 1.0], back)
    right = right / np.linalg.norm(right)
    matrix = np.eye(4)
    matrix[:3] = np.stack([right, np.cross(back, right), back, 4 * back], axis=1)
    return matrix


def frame_entry(name, index=0, **fields):
    return {"file_path": name, "transform_matrix": pose(index).tolist(), **fields}


def write_image(file, size=(WIDTH, HEIGHT), mode="RGB"):
    file.parent.mkdir(parents=True, exist_ok=True)
    seed = sum(file.name.encode())
    shape = (size[1], size[0], len(mode)) if len(mode) > 1 else size[::-1]
    pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    Image.fromarray(pixels).save(file)
    return pixels


def write_capture(folder, frames=None, shared=SHARED, name="transforms.json", mode="RGB"):
    """Writes a transforms file and an image for each of its frames."""
    if frames is None:
        frames = [frame_entry(f"images/{index:02d}.png", index) for index in range(10)]
    for entry in frames:
        path = folder / entry["file_path"].replace("\\", "/")
        write_image(path if path.suffix else path.with_suffix(".png"), mode=mode)
    (folder / name).write_text(json.dumps({**shared, "frames": frames}))
    return folder / name


def write_splits(folder, train=3, test=2, **options):
    for split, count in (("train", train), ("test", test)):
        frames = [frame_entry(f"./{split}/r_{index}", index) for index in range(count)]
        write_capture(folder, frames, ANGLE, f"transforms_{split}.json", **options)


def edited(folder, *, first=None, shared=None):
    """A sound capture with some fields changed; the first frame listed is `frames[0]`."""
    frames = [frame_entry(f"images/{index:02d}.png", index) for index in range(3)]
    frames[0].update(first or {})
    return write_capture(folder, frames, {**SHARED, **(shared or {})})


def assert_error(path, *fragments, **options):
    with pytest.raises(CaptureError) as caught:
        open_capture(path, **options)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(str(caught.value.file))
    for fragment in fragments:
        assert fragment in text
    return text


@jax.jit
def _project(camera, points):
    return camera.project(points)


def project(camera, points):
    """Pixels and depths of points in the image of a camera."""
    return tuple(np.asarray(part) for part in _project(camera, jnp.asarray(points, jnp.float32)))
