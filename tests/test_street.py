"""The synthetic street: its truth against closed forms, and what each part of it promises."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrec.data import Street
from jaxrec.data._street_caster import (
    Ball,
    Beams,
    Box,
    Fixed,
    Ground,
    Moving,
    Scene,
    cast,
    colors,
    sorted_layers,
)
from jaxrec.data._street_grid import within_pixels
from jaxrec.data._street_paint import Plain, Sky, Touch, Waves, _band, _pulses
from jaxrec.sensors import PinholeCamera, RayBundle, Rays, RollingShutterCamera
from jaxrec.trajectory import Still, Trajectory

STREET = Street(width=96, height=64, rows=24, columns=192, samples=1)
# One image of each camera and one sweep, at the start and in the middle.
SPARSE = dataclasses.replace(STREET, rate=0.2, samples=2)
NAMES = ["car-ahead", "car-oncoming", "car-turning"]


@pytest.fixture(scope="module")
def street():
    return STREET


@pytest.fixture(scope="module")
def drive():
    return SPARSE.drive()


def rays(origins, directions, times=None):
    """Rays without width, as float32."""
    directions = np.asarray(directions, float)
    directions = directions / np.linalg.norm(directions, axis=-1, keepdims=True)
    origins = np.broadcast_to(np.asarray(origins, float), directions.shape)
    if times is not None:
        times = jnp.broadcast_to(jnp.float32(times), directions.shape[:-1])
    return Rays(jnp.float32(origins), jnp.float32(directions), jnp.float32([0, 1e-6]), times)


poses_at = jax.jit(lambda path, times: path.at(times))


def points_of(given, ranges):
    """Where rays are at ranges, in float64."""
    origins, directions = (np.asarray(v, np.float64) for v in (given.origins, given.directions))
    return origins + np.asarray(ranges, np.float64)[..., None] * directions


def psnr(first, second):
    return -10 * np.log10(np.mean((np.asarray(first, np.float64) - second) ** 2))


# ---- closed forms


def test_rays_meet_what_stands_there(street):
    beams = [
        ((5.0, -1.0, 2.0), (0, 0, -1)),  # the road
        ((0.0, 0.0, 8.0), (1, 0, 0)),  # the house across the far end
        ((5.0, 0.0, 30.0), (1, 0, 1)),  # the sky
        ((20.0, 5.0, 0.42), (0, 1, 0)),  # a bollard's middle, at y = 5.9 - 0.42
        ((13.0, 0.0, 1.0), (0, -1, 0)),  # through the fence, to the container
        ((0.0, 0.0, 4.0), (3, 0, -4)),  # the road, at a slant of 3 to 4
    ]
    hits = street.cast(rays(*np.swapaxes(beams, 0, 1)), time=0.0)
    wanted = [2, 66, np.inf, 0.48, 7.57, 5]
    np.testing.assert_allclose(hits.ranges[:, 0], wanted, rtol=1e-6)
    np.testing.assert_allclose(hits.cosines[[0, 1, 3, 4, 5], 0], [1, 1, 1, 1, 0.8], rtol=1e-6)
    np.testing.assert_allclose(hits.ranges[4, 1], 12.3, rtol=1e-6)
    # Behind 0.06 m of a density of 11.5 per metre goes on what the mesh does not stop.
    share = np.exp(-11.5 * 0.06)
    np.testing.assert_allclose(hits.covers[4, :2], [1 - share, share], rtol=1e-5)
    assert hits.surfaces[0, 0] == 0 and hits.surfaces[2, 0] == -1
    assert np.all(hits.surfaces[[0, 1, 2, 3, 5], 1:] == -1) and np.all(hits.actors == -1)


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


def outside(solid, points, times):
    """Signed distances of points from a thing, by another way than the caster's."""
    if isinstance(solid, Ground):
        return points[2]
    if isinstance(solid, Ball):
        return np.linalg.norm(points - solid.center[:, None], axis=0) - solid.radius
    place = solid.place
    if isinstance(place, Fixed):
        yaw, where = np.full(len(times), place.yaw), place.position[:, None]
    else:
        yaw = np.interp(times, place.times, place.yaws)
        where = np.stack([np.interp(times, place.times, axis) for axis in place.positions.T])
    moved = points - where
    # Complex numbers turn in the plane.
    level = (moved[0] + 1j * moved[1]) * np.exp(-1j * yaw)
    over = np.abs(np.stack([level.real, level.imag, moved[2]])) - solid.half[:, None]
    return np.linalg.norm(np.maximum(over, 0), axis=0) + np.minimum(over.max(0), 0)


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


def test_rays_do_not_depend_on_each_other(street):
    given = street.camera("left", 5.0).rays()
    order = np.random.default_rng(0).permutation(64 * 96)

    def shuffled(values):
        values = np.asarray(values)
        return jnp.asarray(values.reshape(-1, *values.shape[2:])[order])

    origins, directions, times = map(shuffled, (given.origins, given.directions, given.times))
    mixed = Rays(origins, directions, given.footprint, times)
    # Neighbours are followed together, among the things that some cone around them meets.
    together, apart = street.cast(given), street.cast(mixed)
    for field in ("colors", "ranges", "covers", "surfaces"):
        first, second = getattr(together, field), getattr(apart, field)
        np.testing.assert_array_equal(first.reshape(-1, first.shape[-1])[order], second)


# ---- patterns


def test_patterns_are_averaged_over_the_beam():
    places = np.linspace(-3, 3, 601).astype(np.float32)
    width = np.float32(0.7)
    inside = ((np.arange(4000) + 0.5) / 4000 - 0.5)[:, None] * width + places
    for found, exact in (
        (_band(places, np.full_like(places, width), -0.5, 1.0), (inside > -0.5) & (inside < 1)),
        (_pulses(places, np.full_like(places, width), 0.9, 0.2, 0.3), (inside - 0.2) % 0.9 < 0.3),
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


# ---- cameras


@pytest.mark.parametrize("name", ["left", "wide", "right"])
def test_an_exposure_is_the_cast_of_its_rays(street, name):
    camera = street.camera(name, 2.0)
    hits = street.cast(camera.rays(), time=2.0)
    image = street.image(camera, time=2.0)
    assert image.dtype == np.float32 and image.shape == (64, 96, 3)
    np.testing.assert_array_equal(image, np.round(255 * hits.colors) / np.float32(255))
    np.testing.assert_allclose(hits.covers.sum(-1)[np.isfinite(hits.ranges[..., -1])], 1, rtol=1e-5)


def test_exposures_of_a_drive_are_the_cameras_of_the_street(drive):
    for exposure in drive.exposures[2:4]:
        camera = SPARSE.camera(exposure.sensor, exposure.time)
        for ours, theirs in zip(*map(jax.tree.leaves, (camera, exposure.camera)), strict=True):
            np.testing.assert_array_equal(ours, theirs)
        image = SPARSE.image(exposure.camera, time=exposure.time)
        np.testing.assert_array_equal(image, exposure.image)


@pytest.mark.parametrize("name", ["wide", "right"])
def test_pixels_are_means_over_their_area(street, name):
    # The truth from 36 rays in each pixel, whatever is in it.
    camera = street.camera(name, 5.0)
    middle = np.zeros((64, 96), bool)
    middle[20:44] = True
    grid, rows, columns = within_pixels(camera, middle, 6, 5.0)
    hits = street.cast(
        Rays(
            jnp.asarray(grid.origins),
            jnp.asarray(grid.directions),
            jnp.asarray(grid.footprint),
            jnp.asarray(grid.times, jnp.float32),
        )
    )
    truth = np.zeros((64, 96, 3))
    truth[rows, columns] = hits.colors.reshape(len(rows), 36, 3).mean(1)
    fine = dataclasses.replace(street, samples=3).image(camera, time=5.0)
    # 37.4 dB and 40.5 dB; with one ray in each pixel 28.5 and 33.3.
    coarse = street.image(camera, time=5.0)
    assert psnr(fine[20:44], truth[20:44]) > max(36, psnr(coarse[20:44], truth[20:44]) + 2)


def test_pictures_are_upright_and_not_mirrored(street):
    camera = street.camera("wide", 1.0)
    image, actors = street.image(camera, time=1.0), street.actors(camera, time=1.0)
    # Blue is above; the asphalt below is grey.
    assert np.ptp(image[:3].mean((0, 1))) > 0.1 > 0.05 > np.ptp(image[-3:].mean((0, 1)))
    where = [np.argwhere(actors == number).mean(0) for number in (0, 1)]
    # Traffic keeps to the right: who comes is on the left, and farther away.
    assert where[1][1] < where[0][1] and abs(where[0][1] - 48) < 10
    ranges = street.ranges(camera, time=1.0)
    assert ranges[actors == 0].max() < ranges[actors == 1].min()
    assert np.isinf(ranges[0]).any() and np.isfinite(ranges[-1]).all()
    # Of the cameras at the sides, one sees the houses at y > 0, the other those at y < 0.
    for name, side in (("left", 1), ("right", -1)):
        shutter = street.camera(name, 1.0)
        points = points_of(shutter.rays(), street.ranges(shutter))
        assert np.all(side * points[16:, :, 1][np.isfinite(points[16:, :, 1])] > side * -2.2)


def test_a_car_is_where_its_track_says_at_the_time_of_each_line(street):
    seen = 0
    for name, time in (("left", 4.2), ("left", 6.3), ("left", 5.0)):
        shutter = street.camera(name, time)
        lines = shutter.rays()
        actors, ranges = street.actors(shutter), street.ranges(shutter)
        points = points_of(lines, ranges)
        for number in np.unique(actors[actors >= 0]):
            track, chosen = street.tracks[number], actors == number
            off = from_surface(track, points, lines.times)[chosen]
            np.testing.assert_allclose(off, 0, atol=1e-4)
            seen += chosen.sum()
            # At one time for all lines it is not, by the 3 m/s and more that it drives.
            off = from_surface(track, points, jnp.full_like(lines.times, time + 0.04))[chosen]
            assert np.abs(off).max() > 0.03
    assert seen > 1000


def from_surface(track, points, times):
    """Signed distances of points from the track's box at some times."""
    poses = np.asarray(poses_at(track.path, times), np.float64)
    local = np.einsum("...ji,...j->...i", poses[..., :3, :3], points - poses[..., :3, 3])
    over = np.abs(local) - track.size / 2
    return np.linalg.norm(np.maximum(over, 0), axis=-1) + np.minimum(over.max(-1), 0)


@pytest.mark.parametrize("name", ["left", "right"])
def test_a_rolling_shutter_matters(street, name):
    time = {"left": 5.8, "right": 8.0}[name]
    shutter = street.camera(name, time)
    assert isinstance(shutter, RollingShutterCamera)
    still = dataclasses.replace(shutter, start=jnp.float32(time), end=jnp.float32(time))
    rolling, whole = street.image(shutter), street.image(still)
    # 17.5 dB here and 20.3 dB there; the lines in the middle are exposed at the same time.
    assert psnr(rolling, whole) < 23
    assert psnr(rolling[31:33], whole[31:33]) > 35


def test_pixels_that_a_lens_does_not_reach_are_black(street):
    camera = street.camera("wide", 1.0)
    lens = dataclasses.replace(camera.lens, max_angle=jnp.float32(0.7))
    camera = dataclasses.replace(camera, lens=lens)
    missing = np.isnan(camera.rays().directions[..., 0])
    assert 1000 < missing.sum() < missing.size
    image = dataclasses.replace(street, samples=2).image(camera, time=1.0)
    # But for pixels on the rim, of which the lens reaches a part.
    outside = np.pad(missing, 1, mode="edge")
    outside = np.min([outside[i : i + 64, j : j + 96] for i in range(3) for j in range(3)], axis=0)
    assert not image[outside].any() and np.all(image[32, 30:66] > 0)
    assert np.all(np.isinf(street.ranges(camera, time=1.0)[missing]))


# ---- the lidar


def test_a_sweep_lies_on_the_things_of_the_street(street):
    lidar = street.lidar(3.0)
    shots, sweep = lidar.rays(), street.sweep(lidar)
    times = np.asarray(shots.times, np.float64)
    np.testing.assert_allclose([times.min(), times.max()], [3, 3.1 - 0.1 / 192], atol=1e-5)
    scene = street._scene((), None)
    for ranges in (sweep.ranges, sweep.second_ranges):
        chosen = ranges > 0
        # Second returns past an edge are those of the rim: half a beam off.
        slack = 1e-4 if ranges is sweep.ranges else 1e-4 + 1.51e-3 * ranges[chosen]
        points = points_of(shots, ranges)[chosen].T
        off = [np.abs(outside(solid, points, times[chosen])) for solid in scene.solids]
        assert np.all(np.min(off, axis=0) < slack)
    # The way that the rig drives meanwhile is in the rays: without it they miss by decimetres.
    driven = np.asarray(shots.origins, np.float64)
    driven = driven - driven[:, :1]
    assert 0.1 < np.linalg.norm(driven, axis=-1).max() < 0.5
    points = (points_of(shots, sweep.ranges) - driven)[sweep.returned].T
    off = [np.abs(outside(solid, points, times[sweep.returned])) for solid in scene.solids]
    assert np.mean(np.min(off, axis=0) > 0.02) > 0.2


def test_lost_rays_have_no_range(street):
    lidar = street.lidar(3.0)
    sweep, hits = street.sweep(lidar), street.cast(lidar.rays())
    lost = ~sweep.returned
    for values in (sweep.ranges, sweep.intensities, sweep.second_ranges):
        assert values is not None and not values[lost].any()
    assert np.all(sweep.ranges[sweep.returned] > 0) and sweep.mask is None
    sky = np.isinf(hits.ranges).all(-1)
    opaque = hits.covers[..., 0] == 1
    glass = opaque & (hits.reflectances[..., 0] < 1e-3)
    signal = hits.reflectances[..., 0] * hits.cosines[..., 0]
    weak = opaque & (signal < 0.1 * (hits.ranges[..., 0] / 40) ** 2)
    far = weak & ~glass & (hits.surfaces[..., 0] == 0)
    for reason in (sky, glass, far):
        assert reason.sum() > 20 and np.all(lost[reason])
    assert np.all(sweep.returned[opaque & ~weak])
    np.testing.assert_allclose(sweep.intensities[opaque & ~weak], signal[opaque & ~weak])
    np.testing.assert_array_equal(sweep.ranges[opaque & ~weak], hits.ranges[opaque & ~weak, 0])


def test_second_returns_lie_behind_the_first(street):
    # To the right of the rig are the fence and the tree of the yard.
    lidar = street.lidar(4.5)
    sweep, hits = street.sweep(lidar), street.cast(lidar.rays())
    assert sweep.second_ranges is not None
    second = sweep.second_ranges > 0
    assert np.all(sweep.returned[second])
    assert np.all(sweep.second_ranges[second] >= sweep.ranges[second] + 0.5)
    porous = hits.covers[..., 0] < 1
    through, past = second & porous, second & ~porous
    assert through.sum() > 30 and past.sum() > 5
    # Through gaps: another surface of the same ray.
    behind = np.abs(hits.ranges - sweep.second_ranges[..., None]).min(-1) < 1e-5
    assert behind[through].mean() > 0.9
    # A fence of mean reflectance sends less back than what it stops.
    assert np.all(sweep.intensities[through] <= 1 - hits.covers[..., 1:].sum(-1)[through] + 1e-6)


def test_past_an_edge_the_rim_of_the_beam_tells_what_is_behind(street):
    # A lamp of 0.18 m at x = 12, y = 5.9, in front of a wall: only beams at its edges get past.
    offsets = np.array([0.0, 0.06, 0.085, 0.12])
    targets = np.stack([12 + offsets, np.full(4, 5.81), np.full(4, 3.4)], axis=-1)
    origin = np.array([12.0, -2.0, 3.4])
    # Over and over: a grid like that of the next test, whose rays are compiled once.
    aimed = np.tile(targets - origin, (64, 24, 1))
    bundle = RayBundle(
        np.eye(4, dtype=np.float32),
        Still(jnp.eye(4)),
        aimed,
        np.zeros((64, 96)),
        origins=np.broadcast_to(origin, aimed.shape),
        beam=(0.0, 2e-3),
    )
    sweep = street.sweep(bundle)
    assert sweep.second_ranges is not None
    # At 7.8 m the beam is 0.016 m wide to each side.
    np.testing.assert_array_equal(sweep.second_ranges[0, :4] > 0, [False, False, True, False])
    np.testing.assert_allclose(sweep.ranges[0, :3], np.hypot(7.81, offsets[:3]), rtol=1e-5)
    assert sweep.ranges[0, 3] > 9


def test_ranges_of_a_lidar_are_those_of_a_camera(street):
    camera = street.camera("wide", 4.0)
    grid = camera.rays()
    bundle = RayBundle(
        np.eye(4, dtype=np.float32),
        Still(jnp.eye(4)),
        grid.directions,
        jnp.full((64, 96), 4.0),
        origins=grid.origins,
        beam=(0.0, 1e-6),
    )
    sweep, ranges = street.sweep(bundle), street.ranges(camera, time=4.0)
    solid = sweep.returned & (street.cast(grid, time=4.0).covers[..., 0] == 1)
    assert solid.sum() > 2000
    np.testing.assert_allclose(sweep.ranges[solid], ranges[solid], rtol=1e-6)


# ---- other scenes, other places


def test_a_hidden_car_leaves_the_rest_as_it_was(street):
    camera = street.camera("wide", 1.0)
    actors = street.actors(camera, time=1.0)
    assert (actors == 0).sum() > 30
    hidden = street.actors(camera, time=1.0, hidden=["car-ahead"])
    assert not (hidden == 0).any()
    np.testing.assert_array_equal(hidden[actors > 0], actors[actors > 0])
    before, after = (
        street.cast(camera.rays(), time=1.0, hidden=ids) for ids in ((), ["car-ahead"])
    )
    gone = (before.actors == 0).any(-1)
    np.testing.assert_array_equal(after.colors[~gone], before.colors[~gone])
    np.testing.assert_array_equal(after.ranges[~gone], before.ranges[~gone])
    assert np.all(after.ranges[gone, 0] > before.ranges[gone, 0])
    # As if it had never been built: the last car's number stays its own.
    image = street.image(camera, time=1.0, hidden=NAMES)
    assert psnr(image, street.image(camera, time=1.0)) < 40
    lidar = street.lidar(1.0)
    returns = [street.sweep(lidar, hidden=ids).ranges for ids in ((), NAMES)]
    moved = (street.cast(lidar.rays()).actors >= 0).any(-1)
    assert moved.sum() > 10 and np.any(returns[0][moved] != returns[1][moved])


def test_a_moved_car_looks_the_same_from_a_moved_camera(street):
    # Turned, tilted and lifted above all roofs.
    cosine, sine = np.cos(0.5), np.sin(0.5)
    lift = np.array([[cosine, -sine, 0, 3], [sine, cosine, 0, -2], [0, 0, 1, 40], [0, 0, 0, 1.0]])
    tilt = np.array([[1, 0, 0, 0], [0, 0.8, -0.6, 0], [0, 0.6, 0.8, 0], [0, 0, 0, 1.0]])
    world = lift @ tilt
    given = street.camera("left", 6.3).rays()
    before = street.cast(given)
    chosen = before.actors[..., 0] == 2
    assert chosen.sum() > 300
    moved = Rays(
        jnp.asarray((np.asarray(given.origins) @ world[:3, :3].T + world[:3, 3])[chosen]),
        jnp.asarray((np.asarray(given.directions) @ world[:3, :3].T)[chosen]),
        given.footprint,
        jnp.asarray(np.asarray(given.times)[chosen]),
    )
    after = street.cast(moved, moved={"car-turning": world})
    assert np.all(after.actors[:, 0] == 2)
    np.testing.assert_allclose(after.ranges[:, 0], before.ranges[chosen, 0], rtol=1e-4)
    np.testing.assert_allclose(after.colors, before.colors[chosen], atol=2e-3)
    assert not np.any(street.cast(given, moved={"car-turning": world}).actors[chosen] == 2)


def test_another_lane_is_another_pose(street):
    plain, aside = (street.camera("wide", 2.0, shift=(0.0, y, 0.0)) for y in (0.0, 1.0))
    left = -plain.world_from_camera[:3, 0]
    moved = aside.world_from_camera[:3, 3] - plain.world_from_camera[:3, 3]
    np.testing.assert_allclose(moved, left, atol=1e-5)
    np.testing.assert_allclose(aside.world_from_camera[:3, :3], plain.world_from_camera[:3, :3])
    shots = [street.lidar(2.0, shift=(0.0, y, 0.0)).rays() for y in (0.0, 1.0)]
    away = np.linalg.norm(shots[1].origins - shots[0].origins, axis=-1)
    np.testing.assert_allclose(away, 1, atol=1e-5)


# ---- the drive


def test_a_drive_holds_all_of_it_in_the_order_of_time(drive):
    assert len(drive.exposures) == 6 and len(drive.sweeps) == 2
    for measured in (drive.exposures, drive.sweeps):
        times = [one.time for one in measured]
        assert times == sorted(times) and len({one.name for one in measured}) == len(measured)
    assert {one.sensor for one in (*drive.exposures, *drive.sweeps)} == set(drive.mounts)
    assert [track.id for track in drive.tracks] == NAMES
    assert drive.format == "street" and not drive.messages
    for exposure in drive.exposures:
        assert np.isfinite(exposure.camera.rays().directions).all() and exposure.mask is None
        times = exposure.camera.rays().times
        if times is not None:
            np.testing.assert_allclose((times[0, 0] + times[-1, 0]) / 2, exposure.time, atol=1e-6)
    # Mounts and the path tell where sensors are: here in the middle between two poses.
    wide = next(one for one in drive.exposures if one.sensor == "wide")
    after = np.searchsorted(drive.ego.times, wide.time)
    pose = np.mean(drive.ego.world_from_body[after - 1 : after + 1], axis=0) @ drive.mounts["wide"]
    np.testing.assert_allclose(wide.camera.world_from_camera, pose, atol=1e-5)


def test_the_rig_drives_30_metres_and_turns(street):
    # From 0 s to 10 s, 50 poses in a second.
    poses = np.asarray(street.ego.world_from_body, np.float64)[10:511]
    np.testing.assert_allclose(np.asarray(street.ego.times)[[10, 510]], [0, 10], atol=1e-6)
    steps = np.linalg.norm(np.diff(poses[:, :3, 3], axis=0), axis=1)
    np.testing.assert_allclose(steps.sum(), 30, rtol=1e-3)
    np.testing.assert_allclose([steps.min() / 0.02, steps.max() / 0.02], [1.4, 4.6], rtol=0.02)
    # It drives where it looks.
    ahead = np.diff(poses[:, :2, 3], axis=0) / steps[:, None]
    assert np.all(np.sum(ahead * poses[:-1, :2, 0], axis=1) > 0.999)
    yaw = np.arctan2(poses[:, 1, 0], poses[:, 0, 0])
    assert np.abs(np.diff(yaw) / 0.02).max() > 0.2
    turning = np.asarray(street.tracks[2].path.world_from_body)[[2, -3]]
    np.testing.assert_allclose(turning[:, :2, 0], [[0, -1], [-1, 0]], atol=1e-6)


def test_the_same_street_is_the_same_drive(drive):
    again = dataclasses.replace(SPARSE)
    exposure, sweep = drive.exposures[-1], drive.sweeps[-1]
    np.testing.assert_array_equal(again.image(exposure.camera), exposure.image)
    measured = again.sweep(sweep.lidar)
    for field in ("ranges", "returned", "intensities", "second_ranges"):
        np.testing.assert_array_equal(getattr(measured, field), getattr(sweep, field))
    exposure = drive.exposures[1]
    other = dataclasses.replace(SPARSE, seed=1)
    assert psnr(other.image(exposure.camera, time=exposure.time), exposure.image) < 30


def test_a_short_drive_is_the_beginning_of_a_long_one():
    short, long = (Street(seconds=seconds) for seconds in (2.0, 10.0))
    pairs = [(short.ego, long.ego)]
    pairs += [(a.path, b.path) for a, b in zip(short.tracks, long.tracks, strict=True)]
    for first, second in pairs:
        assert isinstance(first, Trajectory) and isinstance(second, Trajectory)
        count = len(first.times)
        np.testing.assert_array_equal(first.times, second.times[:count])
        poses = second.world_from_body[:count]
        np.testing.assert_array_equal(first.world_from_body, poses)
        assert first.times[-1] >= 2.2 and len(second.times) > count


def test_float64_gives_the_same_pictures(x64, drive):
    shutter = drive.exposures[0].camera
    pose = np.asarray(drive.exposures[1].camera.world_from_camera, np.float64)
    narrow = shutter.camera
    doubled = PinholeCamera(
        pose, *(np.asarray(v, np.float64) for v in (narrow.focal, narrow.principal)),
        width=narrow.width, height=narrow.height,
    )  # fmt: skip
    assert doubled.rays().origins.dtype == jnp.float64
    single = dataclasses.replace(narrow, world_from_camera=jnp.asarray(pose, jnp.float32))
    images = [SPARSE.image(camera, time=1.0) for camera in (single, doubled)]
    assert np.abs(images[0] - images[1]).mean() < 1e-3


@pytest.mark.parametrize(
    "options, message",
    [
        ({"width": 7}, "width: got 7; give at least 8"),
        ({"seconds": 0.05}, "seconds: got 0.05 at a rate of 10; give at least the time of one"),
        ({"seconds": 11.0}, "time of one image, and at most 10"),
        ({"rate": 0.0}, "seconds: got 10 at a rate of 0"),
    ],
)
def test_sizes_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        Street(**options)


def test_bad_edits_are_told_by_name(street):
    camera = street.camera("wide", 1.0)
    with pytest.raises(ValueError, match="hidden: got 'truck'; give ids of .*'car-ahead'"):
        street.image(camera, time=1.0, hidden=["truck"])
    with pytest.raises(ValueError, match="moved: got 'truck'"):
        street.actors(camera, time=1.0, moved={"truck": np.eye(4)})
    with pytest.raises(ValueError, match=r"moved\['car-ahead'\]: got a rotation whose"):
        street.actors(camera, time=1.0, moved={"car-ahead": 2 * np.eye(4) - np.diag([0, 0, 0, 1])})
    with pytest.raises(ValueError, match="time: got none for rays without times; give the"):
        street.image(camera)
    with pytest.raises(ValueError, match="name: got 'rear'; give one of"):
        street.camera("rear", 1.0)
