"""Spheres are drawn front to back, whatever their depths are like."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrec import Rays, blend

pytestmark = pytest.mark.optimized

COUNT, SIDE, RADIUS = 300_000, 4, np.float32(0.02)
# Of the spheres whose depths decide how a GPU splits all of them (ffi/cuda/prepare.cuh).
SAMPLES = 2048


def equal(random):
    return np.full(COUNT, 10, np.float32)


def mostly_equal(random):
    depths = random.uniform(5, 15, COUNT).astype(np.float32)
    return np.where(random.random(COUNT) < 0.7, np.float32(10), depths)


def close_but_for_two(random):
    depths = np.float32(10) + random.integers(0, 64, COUNT).astype(np.float32) * np.float32(2**-20)
    depths[:2] = 1, 900
    return depths


def far_where_sampled(random):
    depths = random.uniform(5, 6, COUNT).astype(np.float32)
    i = np.arange(SAMPLES, dtype=np.int64)
    begin, end = i * COUNT // SAMPLES, (i + 1) * COUNT // SAMPLES
    noise = ((i + 1) * 2654435761 % 2**32 >> 8) % (end - begin)
    depths[begin + noise] = random.uniform(20, 30, SAMPLES)
    return depths


def composited(centers, opacities, features, pixels):
    """Colours by the definition, in double precision: parallel rays along z."""
    rank = np.lexsort((np.arange(COUNT), centers[:, 2] - RADIUS))
    centers, opacities, features = (np.float64(x)[rank] for x in (centers, opacities, features))
    out = []
    for pixel in pixels:
        square = np.sum((centers[:, :2] - pixel) ** 2, axis=1) / np.float64(RADIUS) ** 2
        hits = np.flatnonzero(square < 1)
        alpha = opacities[hits] * (1 - square[hits]) ** 2
        passed = np.concatenate([[1.0], np.cumprod(1 - alpha)[:-1]])
        out.append(np.sum((passed * alpha)[:, None] * features[hits], axis=0))
    return np.stack(out)


@pytest.mark.parametrize("depths", [equal, mostly_equal, close_but_for_two, far_where_sampled])
def test_spheres_are_drawn_front_to_back(depths):
    random = np.random.default_rng(7)
    z = depths(random)
    across = random.uniform(-1, 1, (COUNT, 2)).astype(np.float32)
    centers = np.concatenate([across, z[:, None]], axis=1)
    opacities = random.uniform(0.02, 0.3, COUNT).astype(np.float32)
    features = random.random((COUNT, 3)).astype(np.float32)
    place = np.linspace(-0.9, 0.9, SIDE, dtype=np.float32)
    pixels = np.stack(np.meshgrid(place, place), axis=-1)
    origins = np.concatenate([pixels, np.zeros((SIDE, SIDE, 1), np.float32)], axis=-1)[None]
    rays = Rays(
        jnp.asarray(origins),
        jnp.broadcast_to(jnp.float32([0, 0, 1]), origins.shape),
        jnp.float32([[1e-4, 0]]),
    )
    out = blend(
        *map(jnp.asarray, (centers, np.full(COUNT, RADIUS), opacities, features)),
        rays,
        jnp.zeros(3),
        near=0.1,
        far=1000.0,
        gamma=0.1,
        kind="alpha",
    )
    expected = composited(centers, opacities, features, pixels.reshape(-1, 2))
    # Rays stop at a transmittance of 1e-4.
    np.testing.assert_allclose(out.features.reshape(-1, 3), expected, rtol=0, atol=2e-4)
