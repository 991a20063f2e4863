"""Fitting a drive: a street whose truth is known, its cameras and its lidar together."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrec.scene import STATIC
from jaxrec.train import (
    DriveSettings,
    every_other,
    fit_drive,
    score_exposures,
    score_sweeps,
    start_drive,
)
from small_street import small_drive


@pytest.fixture(scope="module")
def drive():
    """A part of a street: one camera whose lines roll, and the lidar."""
    return small_drive()[1]


SETTINGS = DriveSettings(steps=150, spheres=6000, sky_rows=8)


@pytest.fixture(scope="module")
def fitted(drive):
    exposures, _ = every_other(drive.exposures)
    sweeps, _ = every_other(drive.sweeps)
    return fit_drive(exposures, sweeps, drive.tracks, SETTINGS)


def test_spheres_begin_on_what_the_lidar_met(drive):
    scene = start_drive(drive.exposures, drive.sweeps, drive.tracks, SETTINGS)
    spheres = scene.spheres.constrained()
    solid = np.asarray(spheres.opacities) > 0.5
    assert solid.sum() > 0.5 * SETTINGS.spheres
    actor = np.asarray(scene.actor)
    for number, track in enumerate(drive.tracks):
        inside = np.abs(np.asarray(spheres.centers)[actor == number]) - track.size / 2
        assert np.all(inside <= SETTINGS.margin + 1e-3)
    assert np.any(actor[solid] != STATIC)
    # Points of sweeps, or of the boxes' frames: each solid sphere of the world is one of them.
    points = np.concatenate([sweep.points()[0] for sweep in drive.sweeps])
    some = np.asarray(spheres.centers)[solid & (actor == STATIC)][::50]
    apart = np.linalg.norm(points[None] - some[:, None], axis=-1).min(axis=1)
    assert apart.max() < 1e-4


@pytest.mark.slow
def test_a_fit_shows_what_was_held_out(drive, fitted):
    exposures, sweeps = every_other(drive.exposures)[1], every_other(drive.sweeps)[1]
    found = np.mean([score.psnr for score in score_exposures(fitted, exposures)])
    # A picture of the mean colour has 13 dB.
    assert found > 21
    score = score_sweeps(fitted, sweeps, farthest=30.0)
    # Beams are 2.8 degrees apart: 1.5 m at 30 m.
    assert score.range_median_abs_m < 0.15
    assert score.intensity_rmse < 0.12
    assert score.drop_accuracy > 0.9


@pytest.mark.slow
def test_an_actor_that_is_taken_out_is_not_seen(drive, fitted):
    sweep = drive.sweeps[-1]
    ranges = jax.jit(lambda scene: scene.sweep(sweep.lidar, jnp.float32(sweep.time)).ranges)
    whole = ranges(fitted.scene)
    empty = ranges(fitted.without([track.id for track in drive.tracks]).scene)
    scene = fitted.scene
    spheres = dataclasses.replace(
        scene.spheres, alive=scene.spheres.alive & (scene.actor == STATIC)
    )
    alone = ranges(dataclasses.replace(scene, spheres=spheres))
    np.testing.assert_array_equal(empty, alone)
    # What is behind the cars is further away.
    assert np.sum(np.asarray(empty - whole) > 1) >= 5


def test_halves_alternate_in_time(drive):
    fitted, held_out = every_other(drive.sweeps)
    assert [one.time for one in fitted] == [one.time for one in drive.sweeps[::2]]
    assert [one.time for one in held_out] == [one.time for one in drive.sweeps[1::2]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"near": 300.0}, "near: got 300.0, want >= 0 and below far, 200.0"),
        ({"scattered": 1.0}, "scattered: got 1.0, want 0 to below 1"),
        ({"steps": 0}, "steps: got 0, want >= 1"),
    ],
)
def test_bad_settings_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        DriveSettings(**change)


def test_a_drive_without_returns_is_refused(drive):
    with pytest.raises(ValueError, match="give at least one return of a lidar"):
        start_drive(drive.exposures, [], drive.tracks, SETTINGS)
