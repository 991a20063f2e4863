"""The synthetic street: what stands there, changed scenes, and drives along it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrec.data import Street
from jaxrec.sensors import PinholeCamera, Rays
from jaxrec.trajectory import Trajectory
from small_street import NAMES, STREET, psnr

# One image of each camera and one sweep, at the start and in the middle.
SPARSE = dataclasses.replace(STREET, rate=0.2, samples=2)


@pytest.fixture(scope="module")
def drive():
    return SPARSE.drive()


def rays(origins, directions):
    """Rays without width and times, as float32."""
    directions = np.asarray(directions, float)
    directions = directions / np.linalg.norm(directions, axis=-1, keepdims=True)
    origins = np.broadcast_to(np.asarray(origins, float), directions.shape)
    return Rays(jnp.float32(origins), jnp.float32(directions), jnp.float32([0, 1e-6]))


def test_rays_meet_what_stands_there():
    beams = [
        ((5.0, -1.0, 2.0), (0, 0, -1)),  # the road
        ((0.0, 0.0, 8.0), (1, 0, 0)),  # the house across the far end
        ((5.0, 0.0, 30.0), (1, 0, 1)),  # the sky
        ((20.0, 5.0, 0.42), (0, 1, 0)),  # a bollard's middle, at y = 5.9 - 0.42
        ((13.0, 0.0, 1.0), (0, -1, 0)),  # through the fence, to the container
        ((0.0, 0.0, 4.0), (3, 0, -4)),  # the road, at a slant of 3 to 4
    ]
    hits = STREET.cast(rays(*np.swapaxes(beams, 0, 1)), time=0.0)
    wanted = [2, 66, np.inf, 0.48, 7.57, 5]
    np.testing.assert_allclose(hits.ranges[:, 0], wanted, rtol=1e-6)
    np.testing.assert_allclose(hits.cosines[[0, 1, 3, 4, 5], 0], [1, 1, 1, 1, 0.8], rtol=1e-6)
    np.testing.assert_allclose(hits.ranges[4, 1], 12.3, rtol=1e-6)
    # Behind 0.06 m of a density of 11.5 per metre goes on what the mesh does not stop.
    share = np.exp(-11.5 * 0.06)
    np.testing.assert_allclose(hits.covers[4, :2], [1 - share, share], rtol=1e-5)
    assert hits.surfaces[0, 0] == 0 and hits.surfaces[2, 0] == -1
    assert np.all(hits.surfaces[[0, 1, 2, 3, 5], 1:] == -1) and np.all(hits.actors == -1)


def test_rays_do_not_depend_on_each_other():
    given = STREET.camera("left", 5.0).rays()
    order = np.random.default_rng(0).permutation(64 * 96)

    def shuffled(values):
        values = np.asarray(values)
        return jnp.asarray(values.reshape(-1, *values.shape[2:])[order])

    origins, directions, times = map(shuffled, (given.origins, given.directions, given.times))
    mixed = Rays(origins, directions, given.footprint, times)
    # Neighbours are followed together, among the things that some cone around them meets.
    together, apart = STREET.cast(given), STREET.cast(mixed)
    for field in ("colors", "ranges", "covers", "surfaces"):
        first, second = getattr(together, field), getattr(apart, field)
        np.testing.assert_array_equal(first.reshape(-1, first.shape[-1])[order], second)


# Other scenes, other places


def test_a_hidden_car_leaves_the_rest_as_it_was():
    camera = STREET.camera("wide", 1.0)
    actors = STREET.actors(camera, time=1.0)
    assert (actors == 0).sum() > 30
    hidden = STREET.actors(camera, time=1.0, hidden=["car-ahead"])
    assert not (hidden == 0).any()
    np.testing.assert_array_equal(hidden[actors > 0], actors[actors > 0])
    before, after = (
        STREET.cast(camera.rays(), time=1.0, hidden=ids) for ids in ((), ["car-ahead"])
    )
    gone = (before.actors == 0).any(-1)
    np.testing.assert_array_equal(after.colors[~gone], before.colors[~gone])
    np.testing.assert_array_equal(after.ranges[~gone], before.ranges[~gone])
    assert np.all(after.ranges[gone, 0] > before.ranges[gone, 0])
    # As if it had never been built: the last car's number stays its own.
    image = STREET.image(camera, time=1.0, hidden=NAMES)
    assert psnr(image, STREET.image(camera, time=1.0)) < 40
    lidar = STREET.lidar(1.0)
    returns = [STREET.sweep(lidar, hidden=ids).ranges for ids in ((), NAMES)]
    moved = (STREET.cast(lidar.rays()).actors >= 0).any(-1)
    assert moved.sum() > 10 and np.any(returns[0][moved] != returns[1][moved])


def test_a_moved_car_looks_the_same_from_a_moved_camera():
    # Turned, tilted and lifted above all roofs.
    cosine, sine = np.cos(0.5), np.sin(0.5)
    lift = np.array([[cosine, -sine, 0, 3], [sine, cosine, 0, -2], [0, 0, 1, 40], [0, 0, 0, 1.0]])
    tilt = np.array([[1, 0, 0, 0], [0, 0.8, -0.6, 0], [0, 0.6, 0.8, 0], [0, 0, 0, 1.0]])
    world = lift @ tilt
    given = STREET.camera("left", 6.3).rays()
    before = STREET.cast(given)
    chosen = before.actors[..., 0] == 2
    assert chosen.sum() > 300
    moved = Rays(
        jnp.asarray((np.asarray(given.origins) @ world[:3, :3].T + world[:3, 3])[chosen]),
        jnp.asarray((np.asarray(given.directions) @ world[:3, :3].T)[chosen]),
        given.footprint,
        jnp.asarray(np.asarray(given.times)[chosen]),
    )
    after = STREET.cast(moved, moved={"car-turning": world})
    assert np.all(after.actors[:, 0] == 2)
    np.testing.assert_allclose(after.ranges[:, 0], before.ranges[chosen, 0], rtol=1e-4)
    np.testing.assert_allclose(after.colors, before.colors[chosen], atol=2e-3)
    assert not np.any(STREET.cast(given, moved={"car-turning": world}).actors[chosen] == 2)


def test_another_lane_is_another_pose():
    plain, aside = (STREET.camera("wide", 2.0, shift=(0.0, y, 0.0)) for y in (0.0, 1.0))
    left = -plain.world_from_camera[:3, 0]
    moved = aside.world_from_camera[:3, 3] - plain.world_from_camera[:3, 3]
    np.testing.assert_allclose(moved, left, atol=1e-5)
    np.testing.assert_allclose(aside.world_from_camera[:3, :3], plain.world_from_camera[:3, :3])
    shots = [STREET.lidar(2.0, shift=(0.0, y, 0.0)).rays() for y in (0.0, 1.0)]
    away = np.linalg.norm(shots[1].origins - shots[0].origins, axis=-1)
    np.testing.assert_allclose(away, 1, atol=1e-5)


# The drive


def test_exposures_of_a_drive_are_the_cameras_of_the_street(drive):
    for exposure in drive.exposures[2:4]:
        camera = SPARSE.camera(exposure.sensor, exposure.time)
        for ours, theirs in zip(*map(jax.tree.leaves, (camera, exposure.camera)), strict=True):
            np.testing.assert_array_equal(ours, theirs)
        image = SPARSE.image(exposure.camera, time=exposure.time)
        np.testing.assert_array_equal(image, exposure.image)


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


def test_the_rig_drives_30_metres_and_turns():
    # From 0 s to 10 s, 50 poses in a second.
    poses = np.asarray(STREET.ego.world_from_body, np.float64)[10:511]
    np.testing.assert_allclose(np.asarray(STREET.ego.times)[[10, 510]], [0, 10], atol=1e-6)
    steps = np.linalg.norm(np.diff(poses[:, :3, 3], axis=0), axis=1)
    np.testing.assert_allclose(steps.sum(), 30, rtol=1e-3)
    np.testing.assert_allclose([steps.min() / 0.02, steps.max() / 0.02], [1.4, 4.6], rtol=0.02)
    # It drives where it looks.
    ahead = np.diff(poses[:, :2, 3], axis=0) / steps[:, None]
    assert np.all(np.sum(ahead * poses[:-1, :2, 0], axis=1) > 0.999)
    yaw = np.arctan2(poses[:, 1, 0], poses[:, 0, 0])
    assert np.abs(np.diff(yaw) / 0.02).max() > 0.2
    turning = np.asarray(STREET.tracks[2].path.world_from_body)[[2, -3]]
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


def test_bad_edits_are_told_by_name():
    camera = STREET.camera("wide", 1.0)
    with pytest.raises(ValueError, match="hidden: got 'truck'; give ids of .*'car-ahead'"):
        STREET.image(camera, time=1.0, hidden=["truck"])
    with pytest.raises(ValueError, match="moved: got 'truck'"):
        STREET.actors(camera, time=1.0, moved={"truck": np.eye(4)})
    with pytest.raises(ValueError, match=r"moved\['car-ahead'\]: got a rotation whose"):
        STREET.actors(camera, time=1.0, moved={"car-ahead": 2 * np.eye(4) - np.diag([0, 0, 0, 1])})
    with pytest.raises(ValueError, match="time: got none for rays without times; give the"):
        STREET.image(camera)
    with pytest.raises(ValueError, match="name: got 'rear'; give one of"):
        STREET.camera("rear", 1.0)
