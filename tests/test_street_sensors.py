"""Cameras and the lidar of the synthetic street: what they see and hear of it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrec.data._street_grid import within_pixels
from jaxrec.sensors import RayBundle, Rays, RollingShutterCamera
from jaxrec.trajectory import Still
from small_street import STREET, outside, points_of, psnr

poses_at = jax.jit(lambda path, times: path.at(times))


# Cameras


@pytest.mark.parametrize("name", ["left", "wide", "right"])
def test_an_exposure_is_the_cast_of_its_rays(name):
    camera = STREET.camera(name, 2.0)
    hits = STREET.cast(camera.rays(), time=2.0)
    image = STREET.image(camera, time=2.0)
    assert image.dtype == np.float32 and image.shape == (64, 96, 3)
    np.testing.assert_array_equal(image, np.round(255 * hits.colors) / np.float32(255))
    np.testing.assert_allclose(hits.covers.sum(-1)[np.isfinite(hits.ranges[..., -1])], 1, rtol=1e-5)


@pytest.mark.parametrize("name", ["wide", "right"])
def test_pixels_are_means_over_their_area(name):
    # The truth from 36 rays in each pixel, whatever is in it.
    camera = STREET.camera(name, 5.0)
    middle = np.zeros((64, 96), bool)
    middle[20:44] = True
    grid, rows, columns = within_pixels(camera, middle, 6, 5.0)
    hits = STREET.cast(
        Rays(
            jnp.asarray(grid.origins),
            jnp.asarray(grid.directions),
            jnp.asarray(grid.footprint),
            jnp.asarray(grid.times, jnp.float32),
        )
    )
    truth = np.zeros((64, 96, 3))
    truth[rows, columns] = hits.colors.reshape(len(rows), 36, 3).mean(1)
    fine = dataclasses.replace(STREET, samples=3).image(camera, time=5.0)
    # 37.4 dB and 40.5 dB; with one ray in each pixel 28.5 and 33.3.
    coarse = STREET.image(camera, time=5.0)
    assert psnr(fine[20:44], truth[20:44]) > max(36, psnr(coarse[20:44], truth[20:44]) + 2)


def test_pictures_are_upright_and_not_mirrored():
    camera = STREET.camera("wide", 1.0)
    image, actors = STREET.image(camera, time=1.0), STREET.actors(camera, time=1.0)
    # Blue is above; the asphalt below is grey.
    assert np.ptp(image[:3].mean((0, 1))) > 0.1 > 0.05 > np.ptp(image[-3:].mean((0, 1)))
    where = [np.argwhere(actors == number).mean(0) for number in (0, 1)]
    # Traffic keeps to the right: who comes is on the left, and farther away.
    assert where[1][1] < where[0][1] and abs(where[0][1] - 48) < 10
    ranges = STREET.ranges(camera, time=1.0)
    assert ranges[actors == 0].max() < ranges[actors == 1].min()
    assert np.isinf(ranges[0]).any() and np.isfinite(ranges[-1]).all()
    # Of the cameras at the sides, one sees the houses at y > 0, the other those at y < 0.
    for name, side in (("left", 1), ("right", -1)):
        shutter = STREET.camera(name, 1.0)
        points = points_of(shutter.rays(), STREET.ranges(shutter))
        assert np.all(side * points[16:, :, 1][np.isfinite(points[16:, :, 1])] > side * -2.2)


def test_a_car_is_where_its_track_says_at_the_time_of_each_line():
    seen = 0
    for name, time in (("left", 4.2), ("left", 6.3), ("left", 5.0)):
        shutter = STREET.camera(name, time)
        lines = shutter.rays()
        actors, ranges = STREET.actors(shutter), STREET.ranges(shutter)
        points = points_of(lines, ranges)
        for number in np.unique(actors[actors >= 0]):
            track, chosen = STREET.tracks[number], actors == number
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
def test_a_rolling_shutter_matters(name):
    time = {"left": 5.8, "right": 8.0}[name]
    shutter = STREET.camera(name, time)
    assert isinstance(shutter, RollingShutterCamera)
    still = dataclasses.replace(shutter, start=jnp.float32(time), end=jnp.float32(time))
    rolling, whole = STREET.image(shutter), STREET.image(still)
    # 17.5 dB here and 20.3 dB there; the lines in the middle are exposed at the same time.
    assert psnr(rolling, whole) < 23
    assert psnr(rolling[31:33], whole[31:33]) > 35


def test_pixels_that_a_lens_does_not_reach_are_black():
    camera = STREET.camera("wide", 1.0)
    lens = dataclasses.replace(camera.lens, max_angle=jnp.float32(0.7))
    camera = dataclasses.replace(camera, lens=lens)
    missing = np.isnan(camera.rays().directions[..., 0])
    assert 1000 < missing.sum() < missing.size
    image = dataclasses.replace(STREET, samples=2).image(camera, time=1.0)
    # But for pixels on the rim, of which the lens reaches a part.
    outside = np.pad(missing, 1, mode="edge")
    outside = np.min([outside[i : i + 64, j : j + 96] for i in range(3) for j in range(3)], axis=0)
    assert not image[outside].any() and np.all(image[32, 30:66] > 0)
    assert np.all(np.isinf(STREET.ranges(camera, time=1.0)[missing]))


# The lidar


def test_a_sweep_lies_on_the_things_of_the_street():
    lidar = STREET.lidar(3.0)
    shots, sweep = lidar.rays(), STREET.sweep(lidar)
    times = np.asarray(shots.times, np.float64)
    np.testing.assert_allclose([times.min(), times.max()], [3, 3.1 - 0.1 / 192], atol=1e-5)
    scene = STREET._world.scene((), None)
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


def test_lost_rays_have_no_range():
    lidar = STREET.lidar(3.0)
    sweep, hits = STREET.sweep(lidar), STREET.cast(lidar.rays())
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


def test_second_returns_lie_behind_the_first():
    # To the right of the rig are the fence and the tree of the yard.
    lidar = STREET.lidar(4.5)
    sweep, hits = STREET.sweep(lidar), STREET.cast(lidar.rays())
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


def test_past_an_edge_the_rim_of_the_beam_tells_what_is_behind():
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
    sweep = STREET.sweep(bundle)
    assert sweep.second_ranges is not None
    # At 7.8 m the beam is 0.016 m wide to each side.
    np.testing.assert_array_equal(sweep.second_ranges[0, :4] > 0, [False, False, True, False])
    np.testing.assert_allclose(sweep.ranges[0, :3], np.hypot(7.81, offsets[:3]), rtol=1e-5)
    assert sweep.ranges[0, 3] > 9


def test_ranges_of_a_lidar_are_those_of_a_camera():
    camera = STREET.camera("wide", 4.0)
    grid = camera.rays()
    bundle = RayBundle(
        np.eye(4, dtype=np.float32),
        Still(jnp.eye(4)),
        grid.directions,
        jnp.full((64, 96), 4.0),
        origins=grid.origins,
        beam=(0.0, 1e-6),
    )
    sweep, ranges = STREET.sweep(bundle), STREET.ranges(camera, time=4.0)
    solid = sweep.returned & (STREET.cast(grid, time=4.0).covers[..., 0] == 1)
    assert solid.sum() > 2000
    np.testing.assert_allclose(sweep.ranges[solid], ranges[solid], rtol=1e-6)
