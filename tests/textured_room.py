"""Photographs of the corner of a room whose walls are painted at random: easy to place."""

import numpy as np
from PIL import Image

WIDTH, HEIGHT, FOCAL = 240, 180, 200.0


def poses(count, spread=0.5):
    """Camera to world with OpenCV axes, on an arc about the corner."""
    found = []
    for angle in np.linspace(-spread, spread, count):
        eye = np.asarray([3.2 * np.cos(0.8 + angle), 3.2 * np.sin(0.8 + angle), 2.0 + 0.5 * angle])
        forward = np.asarray([0.5, 0.5, 0.6]) - eye
        forward /= np.linalg.norm(forward)
        right = np.cross(forward, [0.0, 0.0, 1.0])
        right /= np.linalg.norm(right)
        pose = np.eye(4)
        pose[:3] = np.stack([right, np.cross(forward, right), forward, eye], axis=1)
        found.append(pose)
    return found


def paint(seed, size=512):
    """A texture with detail of every size."""
    random = np.random.default_rng(seed)
    total = np.zeros((size, size, 3))
    for cells in (8, 32, 64, 128):
        coarse = random.random((cells, cells, 3)).repeat(size // cells, 0).repeat(size // cells, 1)
        total += coarse / 4
    return total


def photograph(pose, textures):
    """What a pinhole camera sees of the planes x = 0, y = 0 and z = 0."""
    return photograph_depth(pose, textures)[0]


def photograph_depth(pose, textures):
    """The same, and depths along the optical axis."""
    columns, rows = np.meshgrid(np.arange(2 * WIDTH) + 0.5, np.arange(2 * HEIGHT) + 0.5)
    rays = np.stack([columns / 2 - WIDTH / 2, rows / 2 - HEIGHT / 2, 0 * rows + FOCAL], axis=-1)
    rays = rays @ pose[:3, :3].T
    eye = pose[:3, 3]
    image, nearest = np.zeros((*rays.shape[:2], 3)), np.full(rays.shape[:2], np.inf)
    for axis, texture in enumerate(textures):
        distance = -eye[axis] / np.where(rays[..., axis] < 0, rays[..., axis], -1e-9)
        point = eye + distance[..., None] * rays
        place = np.delete(point, axis, axis=-1)
        u, v = (np.floor(place * 128).astype(np.int64) % 512).transpose(2, 0, 1)
        closer = distance < nearest
        image[closer] = texture[u, v][closer]
        nearest[closer] = distance[closer]
    # Each pixel is the mean of four rays, all of length FOCAL along the axis.
    image = image.reshape(HEIGHT, 2, WIDTH, 2, 3).mean(axis=(1, 3))
    depth = FOCAL * nearest.reshape(HEIGHT, 2, WIDTH, 2).mean(axis=(1, 3))
    return np.round(255 * image).astype(np.uint8), depth


def write_photos(folder, count=8, **options):
    """Writes `00.png`, `01.png`, ... and returns their poses."""
    folder.mkdir(parents=True, exist_ok=True)
    textures = [paint(seed) for seed in range(3)]
    found = poses(count, **options)
    for index, pose in enumerate(found):
        Image.fromarray(photograph(pose, textures)).save(folder / f"{index:02d}.png")
    return found
