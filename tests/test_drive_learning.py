"""What a fit of a drive learns about its rig, and what it is told to leave out, on a street."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrec.geometry import compose, rigid_from_twist, rigid_inverse, twist_from_rigid
from jaxrec.scene import STATIC, Actors
from jaxrec.sensors import RollingShutterCamera
from jaxrec.train import (
    CameraExposure,
    DriveSettings,
    DriveWeights,
    Relocation,
    RigRefinement,
    begin_drive,
    crosses_boxes,
    fit_drive,
    grow_drive,
    lidar_depths,
)
from jaxrec.train.drive_fit import drive_data
from small_street import small_drive

SETTINGS = DriveSettings(
    steps=240,
    spheres=3000,
    sky_rows=4,
    weights=DriveWeights(depth=0.05),
    exposure=CameraExposure("gain", rate=5e-3),
    rig=RigRefinement(mounts=1e-3, start=0.2),
)
# What the second camera's log says wrongly about it: 0.7 degrees of yaw and 6 cm to its right.
TWIST = np.array([0.0, 0.012, 0.0, 0.06, 0.0, 0.0], np.float32)
GAIN = 0.8


@pytest.fixture(scope="module")
def street():
    return small_drive(frames=4, cameras=("wide",), width=48, height=32, rows=16, columns=96)


@pytest.fixture(scope="module")
def drive(street):
    """A street with a second camera beside the first one: darker, and with a wrong mount."""
    found = []
    for one in street[1].exposures:
        turned = compose(one.camera.world_from_camera, rigid_from_twist(jnp.asarray(TWIST)))
        camera = dataclasses.replace(one.camera, world_from_camera=turned)
        image = np.float32(GAIN) * one.image
        found += [one, dataclasses.replace(one, camera=camera, image=image, sensor="dark")]
    return dataclasses.replace(street[1], exposures=found)


def boxes(drive):
    sizes = np.stack([track.size for track in drive.tracks]).astype(np.float32)
    return Actors.create({track.id: track.path for track in drive.tracks}), sizes


@pytest.fixture(scope="module")
def fitted(drive):
    return fit_drive(drive.exposures, drive.sweeps, drive.tracks, SETTINGS)


@pytest.mark.slow
def test_a_darker_camera_gets_its_gain(fitted):
    gains = fitted.state.calibration.describe()["gains"]
    ratio = np.asarray(gains["dark"]) / np.asarray(gains["wide"])
    np.testing.assert_allclose(ratio, GAIN, rtol=0.04)


@pytest.mark.slow
def test_a_wrong_mount_is_put_right(fitted, drive):
    wide, dark = drive.exposures[:2]
    places = [fitted.moved_sensor(one.camera, one.sensor, one.time) for one in (wide, dark)]
    poses = [place.world_from_camera for place in places]
    apart = np.asarray(twist_from_rigid(compose(rigid_inverse(poses[0]), poses[1])))
    assert np.linalg.norm(apart[:3]) < 0.4 * np.linalg.norm(TWIST[:3])
    assert fitted.state.calibration.reference == "lidar"
    assert "lidar" in fitted.state.calibration.describe()["mounts"]
    np.testing.assert_array_equal(
        fitted.moved_sensor(drive.sweeps[0].lidar, "lidar", 0.0).body_from_lidar,
        drive.sweeps[0].lidar.body_from_lidar,
    )


@pytest.mark.slow
def test_a_held_out_camera_is_seen_through_its_own_gain(fitted, drive):
    wide, dark = (np.asarray(fitted.photograph(one).color) for one in drive.exposures[:2])
    assert 0.7 < dark.mean() / wide.mean() < 0.9


def test_depths_of_images_are_those_of_the_street(street):
    street, drive = street
    depths = lidar_depths(drive.exposures, drive.sweeps, *boxes(drive), 0.1)
    errors, of_movers = [], []
    for exposure, depth in zip(drive.exposures, depths, strict=True):
        true = street.ranges(exposure.camera, time=exposure.time)
        known = (depth > 0) & np.isfinite(true)
        apart = np.abs(depth - np.where(np.isfinite(true), true, 0)) / np.maximum(depth, 1)
        errors.append(apart[known])
        actor = street.actors(exposure.camera, time=exposure.time)
        of_movers.append(apart[known & (actor >= 0)])
    assert sum(map(len, errors)) > 300 and sum(map(len, of_movers)) > 20
    # Points lie anywhere in their pixels, and the ground is seen at a slant.
    assert np.median(np.concatenate(errors)) < 0.03
    assert np.median(np.concatenate(of_movers)) < 0.03


def test_rays_across_cars_are_left_out(street):
    street, drive = street
    actors, sizes = boxes(drive)
    seen = 0
    for exposure in drive.exposures:
        crossed = crosses_boxes(exposure.camera.rays(), exposure.time, actors, sizes, 0.05)
        true = street.actors(exposure.camera, time=exposure.time) >= 0
        assert not np.any(true & ~crossed)
        assert crossed.sum() < 3 * true.sum() + 40
        seen += true.sum()
    assert seen >= 100
    masked = dataclasses.replace(SETTINGS, movers="mask", weights=DriveWeights())
    photos, scans = drive_data(drive.exposures, drive.sweeps, drive.tracks, masked)
    assert not np.any(np.asarray(photos[-1].mask) & true)
    state = begin_drive(drive.exposures, drive.sweeps, drive.tracks, masked)
    assert np.all(np.asarray(state.scene.actor) == STATIC)
    for sweep, scan in zip(drive.sweeps, scans, strict=True):
        points, _ = sweep.points()
        kept = np.asarray(scan.returned)[sweep.returned & sweep.fired()]
        assert 0 < kept.sum() < len(points)


def test_copies_of_an_actor_ride_with_it(street):
    drive = street[1]
    rule = Relocation(every=1, opacity=0.4, share=0.5)
    settings = dataclasses.replace(SETTINGS, growth=rule, weights=DriveWeights())
    state = begin_drive(drive.exposures, drive.sweeps, drive.tracks, settings)
    before = state.scene
    spheres = before.spheres.constrained()
    faint = np.asarray(spheres.opacities) < rule.opacity
    radii, owners = np.asarray(spheres.radii), np.asarray(before.actor)
    centers = np.asarray(spheres.centers)
    after = grow_drive(state, settings).scene
    moved = np.any(np.asarray(after.spheres.centers) != centers, axis=1)
    assert 0 < np.sum(moved & faint) <= faint.sum()
    # Every sphere lies within reach of one that was there, of the same owner.
    for row in np.flatnonzero(moved)[::20]:
        apart = np.linalg.norm(np.asarray(after.spheres.centers)[row] - centers, axis=1)
        near = (apart < 3 * radii) & ~faint
        assert np.asarray(after.actor)[row] in owners[near]


def test_a_path_moves_all_kinds_of_sensors_alike(street):
    street, drive = street
    settings = dataclasses.replace(SETTINGS, rig=RigRefinement(path=1e-3, every=0.2))
    state = begin_drive(drive.exposures, drive.sweeps, drive.tracks, settings, ego=drive.ego)
    rig = state.calibration
    assert rig.path.shape == (3, 6)
    # 3 cm forward and a turn at the first knot, the same backward at the last.
    twists = jnp.zeros((3, 6)).at[0].set(jnp.array([0, 0, 0.01, 0.03, 0, 0]))
    rig = dataclasses.replace(rig, path=twists - twists[::-1])
    wide, sweep, time = drive.exposures[0], drive.sweeps[0], jnp.float32(0.1)
    left = street.camera("left", 0.1)
    assert isinstance(left, RollingShutterCamera)
    motion = np.asarray(rig.motion(time))
    still = dataclasses.replace(left, start=time, end=time)
    rolled = rig.moved(still, 0, time).trajectory.at(time) @ left.camera.world_from_camera
    np.testing.assert_allclose(
        rolled, motion @ (drive.ego.at(time) @ left.camera.world_from_camera), atol=1e-3
    )
    moved = rig.moved(wide.camera, 0, time).world_from_camera
    np.testing.assert_allclose(moved, motion @ wide.camera.world_from_camera, atol=1e-5)
    path = rig.moved(sweep.lidar, 0, time).trajectory
    np.testing.assert_allclose(path.at(time), motion @ drive.ego.at(time), atol=1e-3)
    # The rig turns about its own place and is where the knots say.
    at_first = np.asarray(rig.motion(rig.first)) @ np.append(rig.places[0], 1)
    np.testing.assert_allclose(at_first[:3] - rig.places[0], [0.03, 0, 0], atol=2e-4)
    middle = jax.device_get(rig.motion(rig.first + rig.step))
    np.testing.assert_allclose(middle, np.eye(4), atol=1e-5)


def test_what_is_not_there_cannot_be_refined(street):
    drive = street[1]
    given = drive.exposures, drive.sweeps, drive.tracks
    settings = dataclasses.replace(SETTINGS, rig=RigRefinement(mounts=1e-3, reference="roof"))
    with pytest.raises(ValueError, match="rig.reference: got roof, want one of lidar, wide"):
        begin_drive(*given, settings)
    settings = dataclasses.replace(SETTINGS, rig=RigRefinement(path=1e-3))
    with pytest.raises(ValueError, match="rig.path: got no path to refine"):
        begin_drive(*given, settings)
