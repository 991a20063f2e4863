"""NCore sequences: written here, and read back."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from drive_files import assert_same_points, pose_at
from jaxrec.data import open_drive, write_ncore
from jaxrec.sensors import EquirectangularLens, RayBundle, SpinningLidar
from jaxrec.trajectory import Still
from ncore_files import HEIGHT, MOUNTS, WIDTH, a_drive, lenses, mount_at, of_sensor, rays_of

numcodecs = pytest.importorskip("numcodecs", reason="not installed: pip install '.[ncore]'")
pytest.importorskip("cbor2", reason="not installed: pip install '.[ncore]'")


def assert_same_values(found, truth, **tolerance):
    """All arrays of two cameras or lenses: their rays would take seconds to compile."""
    ours, theirs = (dict(jax.tree.leaves_with_path(each)) for each in (found, truth))
    assert ours.keys() == theirs.keys()
    for place, value in theirs.items():
        np.testing.assert_allclose(ours[place], value, **tolerance, err_msg=str(place))


def assert_same_drive(found, drive):
    """Within rounding: microseconds at 6 m/s, float32 of positions, 8 bits of colour."""
    assert found.epoch == drive.epoch and found.format == "ncore"
    # Its own origin is the world's: what it was moved by stays in the pose of that.
    assert found.origin == (0, 0, 0)
    assert len(found.exposures) == len(drive.exposures)
    for name in ("wide", "front", "still"):
        for ours, truth in zip(of_sensor(found, name), of_sensor(drive, name), strict=True):
            np.testing.assert_array_equal(ours.image, truth.image)
            assert ours.time == pytest.approx(truth.time, abs=2e-6)
            assert (ours.mask is None) == (truth.mask is None)
            assert ours.mask is None or np.array_equal(ours.mask, truth.mask)
            assert_same_values(ours.camera, truth.camera, rtol=1e-5, atol=2e-6)
    for ours, truth in zip(found.sweeps, drive.sweeps, strict=True):
        # Rows come back from the highest to the lowest.
        order = np.argsort(-np.asarray(truth.lidar.elevations))
        fired = truth.mask[order]
        np.testing.assert_array_equal(ours.mask, fired)
        for field in ("ranges", "returned", "intensities", "second_ranges"):
            stored = np.where(fired, getattr(truth, field)[order], 0)
            np.testing.assert_allclose(getattr(ours, field), stored, atol=1e-6)
        (origins, directions, times), (o, d, t) = map(rays_of, (ours.lidar, truth.lidar))
        np.testing.assert_allclose(directions, d[order], atol=2e-5)
        np.testing.assert_allclose(origins, o[order], atol=5e-4)
        np.testing.assert_allclose(times, t[order], atol=2e-6)
    for name, mount in drive.mounts.items():
        np.testing.assert_allclose(found.mounts[name], mount, atol=1e-6)
    tracks = {track.id: track for track in found.tracks}
    for track in drive.tracks:
        ours = tracks[track.id]
        assert ours.label == track.label
        np.testing.assert_allclose(ours.size, track.size)
        pose = pose_at(track.path, jnp.float32(0.3))
        np.testing.assert_allclose(pose_at(ours.path, jnp.float32(0.3)), pose, atol=5e-4)


@pytest.mark.parametrize("store", ["itar", "directory"])
def test_a_drive_comes_back(tmp_path, store):
    drive = a_drive()
    file = write_ncore(drive, tmp_path, name="street", store=store)
    assert file == tmp_path / "street.json"
    found = open_drive(file)
    assert_same_drive(found, drive)
    assert isinstance(found.sweeps[0].lidar, SpinningLidar)
    assert not any(".part" in part.name for part in tmp_path.iterdir())
    # The same through its folder and through its store.
    stored = next(part for part in tmp_path.iterdir() if ".ncore4.zarr" in part.name)
    for path in (tmp_path, stored):
        assert len(open_drive(path).sweeps) == 3


@pytest.mark.parametrize("name", ["backward", "fisheye", "rational", "windshield"])
def test_lenses_come_back(tmp_path, name):
    lens = lenses()[name]
    write_ncore(a_drive(lens, "bottom_to_top"), tmp_path)
    camera = of_sensor(open_drive(tmp_path), "wide")[0].camera
    assert camera.direction == "bottom_to_top" and type(camera.camera.lens) is type(lens)
    assert_same_values(camera.camera.lens, lens, rtol=1e-6, atol=1e-9)


def test_images_wait_in_their_store(tmp_path):
    write_ncore(a_drive(), tmp_path)
    exposure = open_drive(tmp_path).exposures[0]
    assert "image" not in vars(exposure)
    changed = dataclasses.replace(exposure, image=exposure.image * 0)
    assert not changed.image.any()


def test_a_sweep_in_another_order_keeps_its_rays(tmp_path):
    # Two rays in one place, and one that is not where the model says.
    write_ncore(a_drive(), tmp_path, store="directory")
    frame = next((tmp_path / "drive.ncore4.zarr" / "lidars" / "top" / "frames").glob("[0-9]*"))
    rays = frame / "ray_bundle"
    codec = numcodecs.get_codec(
        json.loads((rays / "model_element" / ".zarray").read_text())["compressor"]
    )
    chunk = rays / "model_element" / "0.0"
    elements = np.frombuffer(codec.decode(chunk.read_bytes()), np.uint16).reshape(-1, 2).copy()
    elements[5] = elements[4]
    chunk.write_bytes(codec.encode(elements))
    found = open_drive(tmp_path)
    changed = next(sweep for sweep in found.sweeps if sweep.name.endswith(frame.name))
    assert isinstance(changed.lidar, RayBundle)
    assert changed.mask.sum() == len(elements)
    said = "\n".join(found.messages)
    assert "those stored are kept" in said and "share a place: they are moved on" in said
    truth = next(s for s in a_drive().sweeps if abs(s.time - changed.time) < 1e-3)
    expected = truth.mask & truth.returned
    assert changed.returned.sum() == expected.sum()
    np.testing.assert_allclose(
        np.sort(changed.ranges[changed.returned]), np.sort(truth.ranges[expected]), rtol=1e-6
    )


def without_grid(drive):
    """The same rays as lists, and a lidar without a model."""
    sweeps = []
    for sweep in drive.sweeps:
        _, _, times = rays_of(sweep.lidar)
        still = dataclasses.replace(
            sweep.lidar, trajectory=Still(np.eye(4)), body_from_lidar=jnp.eye(4)
        )
        _, directions, _ = rays_of(still)
        bundle = RayBundle(MOUNTS["top"], drive.ego, directions, times)
        sweeps.append(dataclasses.replace(sweep, lidar=bundle))
    return dataclasses.replace(drive, sweeps=sweeps)


def test_rays_without_a_grid(tmp_path):
    drive = without_grid(a_drive())
    write_ncore(drive, tmp_path)
    found = open_drive(tmp_path)
    assert "top has no grid" in "\n".join(found.messages)
    for ours, truth in zip(found.sweeps, drive.sweeps, strict=True):
        assert ours.mask.sum() == truth.mask.sum()
        # Shots without a return are kept as such.
        assert (ours.mask & ~ours.returned).sum() == (truth.mask & ~truth.returned).sum() > 0
        points = []
        for sweep in (ours, truth):
            origins, directions, _ = rays_of(sweep.lidar)
            hit = sweep.returned & sweep.mask
            points.append((origins + sweep.ranges[..., None] * directions)[hit])
        assert_same_points(*points, atol=1e-3)


def test_other_paths_are_sampled(tmp_path):
    drive = dataclasses.replace(a_drive(), ego=Still(np.eye(4)), exposures=[], tracks=[])
    sweeps = [
        dataclasses.replace(s, lidar=dataclasses.replace(s.lidar, trajectory=drive.ego))
        for s in drive.sweeps
    ]
    write_ncore(dataclasses.replace(drive, sweeps=sweeps), tmp_path)
    found = open_drive(tmp_path)
    pose = np.asarray(pose_at(found.ego, jnp.float32(0.2)))
    np.testing.assert_allclose(pose, np.eye(4), atol=1e-6)


# What NCore cannot hold


def test_drives_that_cannot_be_written(tmp_path):
    drive = a_drive()
    panorama = EquirectangularLens.full(WIDTH, HEIGHT)
    with pytest.raises(ValueError, match="wide: got EquirectangularLens; NCore has no such lens"):
        write_ncore(a_drive(panorama), tmp_path)
    with pytest.raises(ValueError, match="neither images nor sweeps"):
        write_ncore(dataclasses.replace(drive, exposures=[], sweeps=[]), tmp_path)
    with pytest.raises(ValueError, match="mounts: got none of 'top'"):
        mounts = {name: mount for name, mount in MOUNTS.items() if name != "top"}
        write_ncore(dataclasses.replace(drive, mounts=mounts), tmp_path)
    with pytest.raises(ValueError, match="off the mount of 'wide'"):
        mounts = {**MOUNTS, "wide": mount_at(0, 0, 0)}
        write_ncore(dataclasses.replace(drive, mounts=mounts), tmp_path)
    with pytest.raises(ValueError, match="top/0: got rays that start up to 0.5 m from"):
        high = dataclasses.replace(drive.sweeps[0].lidar, heights=jnp.full(4, 0.5))
        sweeps = [dataclasses.replace(drive.sweeps[0], lidar=high)]
        write_ncore(dataclasses.replace(drive, sweeps=sweeps), tmp_path)
    with pytest.raises(ValueError, match="wide: got masks that change"):
        exposures = list(drive.exposures)
        at = next(i for i, e in enumerate(exposures) if e.sensor == "wide")
        exposures[at] = dataclasses.replace(exposures[at], mask=None)
        write_ncore(dataclasses.replace(drive, exposures=exposures), tmp_path)
    assert not list(tmp_path.iterdir())
