"""What beams meet on the street, and the patterns they see there, against closed forms."""

import numpy as np
import pytest

from jaxrec.data._street_caster import Scene, cast, colors, sorted_layers
from jaxrec.data._street_paint import Plain, Sky
from jaxrec.data._street_patterns import Touch, Waves, band, pulses
from jaxrec.data._street_solids import Ball, Beams, Box, Fixed, Ground, Moving
from small_street import outside

RIPPLES = Waves.random(np.random.default_rng(0), 2.0, 1.0, 0.1)
GREY = Plain(np.full(3, 0.5, np.float32), 0.4, RIPPLES)
TURNED = Box(Fixed(np.array([1.0, 2.0, 1.5]), 0.6), np.array([1.0, 0.5, 1.5]), GREY)
GONE = Moving(np.array([0.0, 1.0]), np.array([[0.0, 0, 1], [4.0, 2, 1]]), np.array([0.0, 1.0]))
SOLIDS = {
    "ground": Ground(GREY),  # pyright: ignore
    "ball": Ball(np.array([0.5, -0.3, 1.0]), 0.8, GREY),  # pyright: ignore
    "turned box": TURNED,
    "moving box": Box(GONE, np.array([1.0, 0.5, 0.5]), GREY),  # pyright: ignore
}


@pytest.mark.parametrize("name", SOLIDS)
def test_a_thing_is_entered_where_its_surface_is(name):
    solid, random = SOLIDS[name], np.random.default_rng(0)
    origins = random.normal(size=(3, 4000)) * 4 + np.array([[0.0], [0], [4]])
    directions = np.array([[1.0], [1], [1]]) + random.normal(size=(3, 4000)) - origins
    directions /= np.linalg.norm(directions, axis=0)
    beams = Beams(origins, directions, random.uniform(0, 1, 4000), (0.0, 0.0))
    beams = beams.only(outside(solid, origins, beams.times) > 0)
    entry, leave = solid.cross(beams)
    hit = np.isfinite(entry)
    assert 300 < hit.sum() < hit.size
    some = beams.only(hit)
    for place in (entry[hit], leave[hit]):
        there = some.origins + place * some.directions
        np.testing.assert_allclose(outside(solid, there, some.times), 0, atol=1e-12)
    # Before that, and all along beams that miss, they are outside; between the two, inside.
    for share in np.linspace(0, 1, 30):
        far = share * np.where(hit, entry, 20.0)
        assert np.all(outside(solid, origins_at(beams, far), beams.times) > -1e-9)
    if not isinstance(solid, Ground):
        middle = outside(solid, origins_at(some, (entry + leave)[hit] / 2), some.times)
        assert np.all(middle < 0)
    points, _, normals = solid.touch(some, entry[hit])
    assert points.shape == normals.shape == some.directions.shape
    assert np.all(np.abs(np.linalg.norm(normals, axis=0) - 1) < 1e-12)


def origins_at(beams, far):
    return beams.origins + far * beams.directions


def test_a_moving_thing_is_nowhere_before_and_after():
    beams = Beams(
        np.tile([[0.0], [0.0], [9.0]], 3),
        np.tile([[0.0], [0.0], [-1.0]], 3),
        np.array([-0.01, 0.0, 1.01]),
        (0.0, 0.0),
    )
    np.testing.assert_array_equal(
        np.isfinite(SOLIDS["moving box"].cross(beams)[0]), [False, True, False]
    )


def test_what_gets_through_leaves_depends_on_the_way_through_them():
    # Leaves of a density of 1.2 around a box, then a fence: through the edge, past the box.
    leaves = Ball(np.zeros(3), 1.0, GREY, density=1.2)
    trunk = Box(Fixed(np.zeros(3)), np.array([0.2, 0.2, 0.2]), GREY)
    fence = Box(Fixed(np.array([3.0, 0, 0])), np.array([0.05, 2, 2]), GREY, density=7.0)
    scene = Scene([fence, trunk, leaves], Sky(RIPPLES))
    origins = np.array([[-4.0, 0.1, 0.1], [-4.0, 0.6, 0.0], [-4.0, 1.5, 0.0]]).T
    beams = Beams(origins, np.tile([[1.0], [0], [0]], 3), np.zeros(3), (0.0, 0.0))
    ranges, shares, _, _, solids = sorted_layers(cast(scene, beams), 4)
    enter = np.sqrt(1 - 0.02)
    mesh = -np.expm1(-0.7)
    np.testing.assert_array_equal(solids.T, [[2, 1, -1, -1], [2, 0, -1, -1], [0, -1, -1, -1]])
    wanted = [[4 - enter, 3.8], [3.2, 6.95], [6.95, np.inf]]
    np.testing.assert_allclose(ranges[:2].T, wanted, rtol=1e-6)
    through = [np.exp(-1.2 * (enter - 0.2)), np.exp(-1.2 * 1.6)]
    wanted = [[1 - through[0], through[0]], [1 - through[1], through[1] * mesh], [mesh, 0]]
    np.testing.assert_allclose(shares[:2].T, wanted, rtol=1e-6)
    # A camera sees the same shares, and the sky behind the rest.
    layers = cast(scene, beams)
    sky = scene.sky.at(beams.directions.astype(np.float32))
    left = 1 - shares.sum(0)
    seen = colors(scene, layers, beams) - left * sky
    np.testing.assert_allclose(seen[:, 2], mesh * layers[0].colors[:, 2], atol=1e-6)
    assert left[0] < 1e-6 < left[1] < left[2]


@pytest.mark.parametrize("spread", ["directions", "origins", "times"])
def test_no_thing_beside_the_cone_of_beams_is_passed_over(spread):
    # Each beam aims at a small thing of its own, the outermost on the rim of the cone of all.
    random, count = np.random.default_rng(0), 30
    origins, times = np.zeros((3, count)), np.zeros(count)
    aims = random.normal(size=(3, count)) * np.array([[0.1], [3], [3]]) + [[10.0], [0], [0]]
    places = [Fixed(aim) for aim in aims.T]
    if spread == "origins":
        origins = aims - [[10.0], [0], [0]]
    elif spread == "times":
        # All at once in the same place, each at its own time.
        times = np.linspace(0, 1, count)
        knots = np.array([0.0, 1.0])
        velocities = random.normal(size=(count, 3)) * 20
        aims = np.tile([[10.0], [0], [0]], count) + np.linspace(0, 0.5, count) * [[0], [1], [0]]
        places = [
            Moving(knots, aim + np.stack([-time * v, (1 - time) * v]), np.zeros(2))
            for aim, time, v in zip(aims.T, times, velocities, strict=True)
        ]
    directions = (aims - origins) / np.linalg.norm(aims - origins, axis=0)
    scene = Scene([Box(place, np.full(3, 0.005), GREY) for place in places], Sky(RIPPLES))
    (layer,) = cast(scene, Beams(origins, directions, times, (0.0, 0.0)))
    np.testing.assert_array_equal(layer.solids, np.arange(count))
    np.testing.assert_allclose(layer.ranges, np.linalg.norm(aims - origins, axis=0), atol=0.01)


# Patterns


def test_patterns_are_averaged_over_the_beam():
    places = np.linspace(-3, 3, 601).astype(np.float32)
    width = np.float32(0.7)
    inside = ((np.arange(4000) + 0.5) / 4000 - 0.5)[:, None] * width + places
    for found, exact in (
        (band(places, np.full_like(places, width), -0.5, 1.0), (inside > -0.5) & (inside < 1)),
        (pulses(places, np.full_like(places, width), 0.9, 0.2, 0.3), (inside - 0.2) % 0.9 < 0.3),
    ):
        np.testing.assert_allclose(found, exact.mean(0), atol=2e-3)


def test_waves_fade_as_their_mean_over_a_slanted_beam():
    waves = Waves.random(np.random.default_rng(1), 2.0, 0.4, 0.2, 6)
    direction = np.array([0.6, 0.0, -0.8])
    across = np.array([[0.8, 0.0, 0.6], [0.0, 1.0, 0.0]])
    foot, width = np.array([0.3, -0.2, 0.0]), 0.15
    u, v = np.meshgrid(*2 * [(np.arange(100) + 0.5) / 100 - 0.5])
    shifts = width * (u.ravel()[:, None] * across[0] + v.ravel()[:, None] * across[1])
    # Along each beam to z = 0 again.
    shifts = shifts - direction * (shifts[:, 2:] / direction[2])

    def touch(points, width):
        count = len(points)
        along, up = (np.tile(vector, (count, 1)).T for vector in (direction, [0.0, 0.0, 1.0]))
        return Touch(
            np.asarray(points, np.float32).T,
            along.astype(np.float32),
            up.astype(np.float32),
            np.full(count, -0.8, np.float32),
            np.full(count, width, np.float32),
        )

    sharp = waves.at(touch(foot + shifts, 1e-6)).mean(1)
    faded = waves.at(touch(foot[None], width))[:, 0]
    np.testing.assert_allclose(faded, sharp, atol=1e-3)
    # It matters: in the middle of the beam they are otherwise.
    assert np.abs(waves.at(touch(foot[None], 1e-6))[:, 0] - sharp).max() > 0.01
