"""The synthetic street at a small size, and its truth by other ways than the street's own."""

import dataclasses
import pathlib

import numpy as np

from jaxrec.data import Drive, Street
from jaxrec.data._street_solids import Ball, Fixed, Ground
from jaxrec.sensors import Exposure

STREET = Street(width=96, height=64, rows=24, columns=192, samples=1)
NAMES = ["car-ahead", "car-oncoming", "car-turning"]


def points_of(given, ranges):
    """Where rays are at ranges, in float64."""
    origins, directions = (np.asarray(v, np.float64) for v in (given.origins, given.directions))
    return origins + np.asarray(ranges, np.float64)[..., None] * directions


def psnr(first, second):
    return -10 * np.log10(np.mean((np.asarray(first, np.float64) - second) ** 2))


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


def small_drive(frames=6, cameras=("left",), **size):
    """A street and a part of its log: some cameras, and the lidar."""
    given = {"width": 64, "height": 48, "rows": 16, "columns": 128, "samples": 1} | size
    street = Street(seconds=0.1 * frames, **given)
    exposures, sweeps = [], []
    for number in range(frames):
        for name in cameras:
            time = 0.1 * number + {"left": 0.04, "wide": 0.05, "right": 0.06}[name]
            camera = street.camera(name, time)
            image = street.image(camera, time=time)
            exposures.append(Exposure(camera, image, None, f"{name}-{number}", name, time))
        sweep = street.sweep(street.lidar(0.1 * number))
        sweeps.append(dataclasses.replace(sweep, name=f"lidar-{number}", sensor="lidar"))
    drive = Drive(
        exposures=exposures,
        sweeps=sweeps,
        tracks=street.tracks,
        ego=street.ego,
        mounts=dict(street.mounts),
        epoch=0,
        format="street",
        path=pathlib.Path("street"),
    )
    return street, drive
