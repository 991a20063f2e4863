"""NCore sequences: written and read here, and exchanged with NVIDIA's `nvidia-ncore`."""

import dataclasses
import importlib.util
import io
import json
import lzma
import pathlib
import tarfile
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from drive_files import assert_same_points, pose_at
from jaxrec.data import CaptureError, Drive, Track, open_drive, write_ncore
from jaxrec.sensors import (
    EquirectangularLens,
    Exposure,
    FisheyeLens,
    FThetaBackwardLens,
    FThetaLens,
    LensCamera,
    PinholeCamera,
    RationalLens,
    RayBundle,
    RollingShutterCamera,
    SpinningLidar,
    StoredWindshieldLens,
    Sweep,
    spin,
)
from jaxrec.trajectory import Still, Trajectory

numcodecs = pytest.importorskip("numcodecs", reason="not installed: pip install '.[ncore]'")
cbor2 = pytest.importorskip("cbor2", reason="not installed: pip install '.[ncore]'")

EPOCH = 1_700_000_000_123_456_000
WIDTH, HEIGHT = 24, 16
FORWARD = [0.0, 9.0, 0.2, -0.3, 0.05, -0.01]
TIMES = np.linspace(0, 1, 11)


@pytest.fixture(scope="module")
def ncore():
    """The package's modules of data and of the fourth version."""
    missing = [name for name in ("torch", "ncore") if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"the oracle is not installed: no {missing[0]}; pip install '.[oracle]'")
    # Installed, it has to work: what fails from here on is no reason to skip.
    return importlib.import_module("ncore.data"), importlib.import_module("ncore.data.v4")


def ego_poses():
    poses = np.zeros((len(TIMES), 4, 4))
    angle = 0.4 * TIMES
    poses[:, 0, 0] = poses[:, 1, 1] = np.cos(angle)
    poses[:, 1, 0], poses[:, 0, 1] = np.sin(angle), -np.sin(angle)
    poses[:, 2, 2] = poses[:, 3, 3] = 1
    poses[:, :3, 3] = TIMES[:, None] * [6.0, 1, 0.1] + [2000.0, -3000, 40]
    return poses


def mount_at(*place):
    """Looks ahead with OpenCV axes."""
    pose = np.eye(4)
    pose[:3] = np.array([[0, 0, 1, 0], [-1, 0, 0, 0], [0, -1, 0, 0]])
    pose[:3, 3] = place
    return pose


MOUNTS = {
    "front": mount_at(1.5, 0.1, 1.4),
    "wide": mount_at(1.4, -0.2, 1.5),
    "still": mount_at(0.3, 0.2, 1.6),
    "top": np.array([[0, -1, 0, 0.5], [1, 0, 0, 0], [0, 0, 1, 1.9], [0, 0, 0, 1.0]]),
}


def lenses():
    shield = StoredWindshieldLens(
        RationalLens([20, 21], [12.2, 7.9], [0.1, -0.02, 0.01, 0.05, 0, 0], [1e-3, 0], [0.0] * 4),
        *([0.001, 1.01, 0.002], [0.0, 0.003, 0.99], [-0.001, 0.99, 0.0], [0.0, -0.003, 1.01]),
    )
    return {
        "ftheta": FThetaLens([12.5, 8.1], FORWARD, 1.2, [[1.01, 0.002], [-0.001, 1.0]]),
        "backward": FThetaBackwardLens([12.5, 8.1], [0.0, 0.11, 1e-3, 0, 0, 0], 1.3),
        "fisheye": FisheyeLens([9, 9.2], [12, 8], [0.01, -0.002, 0.0, 0.0], 1.4),
        "rational": shield.lens,
        "windshield": shield,
    }


def picture(seed):
    pixels = np.random.default_rng(seed).integers(0, 256, (HEIGHT, WIDTH, 3))
    return pixels.astype(np.float32) / np.float32(255)


def a_drive(lens=None, direction="top_to_bottom"):
    """Three cameras, a lidar with second returns and shots that meet nothing, and two boxes."""
    origin = np.array([2000.0, -3000, 40])
    local = ego_poses()
    local[:, :3, 3] -= origin
    ego = Trajectory(local, TIMES)
    size = {"width": WIDTH, "height": HEIGHT}
    lens = lenses()["ftheta"] if lens is None else lens
    exposures, sweeps = [], []
    mask = np.ones((HEIGHT, WIDTH), np.bool_)
    mask[-3:] = False
    for frame in range(3):
        time = 0.1 + 0.3 * frame
        wide = LensCamera(MOUNTS["wide"], lens, **size)
        front = PinholeCamera(MOUNTS["front"], [20, 21], [11.7, 8.2], **size)
        for name, camera, way in (("wide", wide, direction), ("front", front, "left_to_right")):
            shutter = RollingShutterCamera(camera, ego, time, time + 0.03, direction=way)
            exposures.append(
                Exposure(
                    shutter,
                    picture(frame),
                    mask if name == "wide" else None,
                    f"{name}/{frame}",
                    name,
                    time + 0.015,
                )
            )
        pose = np.asarray(pose_at(ego, jnp.float32(time))) @ MOUNTS["still"]
        still = PinholeCamera(pose, [18, 18], [12, 8], [0.1, -0.05, 1e-3, 2e-3, 0.01], **size)
        exposures.append(Exposure(still, picture(7 + frame), None, "", "still", time))
        sweeps.append(a_sweep(ego, frame, 0.05 + 0.3 * frame))
    boxes = np.tile(np.eye(4), (3, 1, 1))
    boxes[:, :3, 3] = [[10, 2, 1], [11, 2.5, 1], [12, 3, 1.1]]
    boxes[:, :2, :2] = [[0.8, -0.6], [0.6, 0.8]]
    tracks = [
        Track("7", "car", np.array([4.2, 1.8, 1.5]), Trajectory(boxes, np.array([0.1, 0.5, 0.9]))),
        Track("8", "rider", np.array([1.8, 0.6, 1.7]), Still(boxes[0])),
    ]
    exposures.sort(key=lambda exposure: exposure.time)
    return Drive(
        exposures=exposures,
        sweeps=sweeps,
        tracks=tracks,
        ego=ego,
        mounts=dict(MOUNTS),
        epoch=EPOCH,
        format="made",
        path=pathlib.Path("made"),
        origin=tuple(origin.tolist()),
    )


def a_sweep(ego, seed, start, direction="cw"):
    random = np.random.default_rng(seed)
    shape = (4, 32)
    lidar = SpinningLidar(
        MOUNTS["top"],
        ego,
        np.deg2rad([-8.0, 2, 9, -1]),  # in no order
        spin(32, direction),
        azimuth_offsets=[0.01, -0.02, 0.0, 0.03],
        start=start,
        end=start + 0.1,
    )
    returned = random.uniform(size=shape) < 0.7
    second = returned & (random.uniform(size=shape) < 0.3)
    ranges = np.where(returned, random.uniform(2, 50, shape), 0).astype(np.float32)
    return Sweep(
        lidar=lidar,
        ranges=ranges,
        returned=returned,
        intensities=np.where(returned, random.uniform(0, 1, shape), 0).astype(np.float32),
        second_ranges=np.where(second, ranges + 3, 0).astype(np.float32),
        mask=random.uniform(size=shape) < 0.9,
        name=f"top/{seed}",
        sensor="top",
        time=start + 0.05,
    )


def rays_of(sensor):
    rays = sensor.rays()
    return np.asarray(rays.origins), np.asarray(rays.directions), rays.times


def of_sensor(drive, name):
    return [item for item in (*drive.exposures, *drive.sweeps) if item.sensor == name]


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


# Written and read here


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


# Damaged sequences


def assert_error(path, *fragments):
    with pytest.raises(CaptureError) as caught:
        open_drive(path)
    text = str(caught.value)
    assert "\n" not in text
    for fragment in fragments:
        assert fragment in text


def change(folder, key, edit):
    file = folder / "drive.ncore4.zarr" / key
    values = json.loads(file.read_text())
    edit(values)
    file.write_text(json.dumps(values))


CAMERA = "intrinsics/default/cameras/wide/.zattrs"


@pytest.mark.parametrize(
    "key, edit, fragments",
    [
        (".zattrs", lambda v: v.update(version="v3"), ["found version 'v3'; wanted an NCore"]),
        (
            "poses/default/static_poses/.zattrs",
            lambda v: v.pop("('wide', 'rig')"),
            ["no chain of poses leads from 'wide' to 'world'; add ('wide', 'rig')"],
        ),
        (
            "poses/default/dynamic_poses/.zattrs",
            lambda v: v["('rig', 'world')"]["timestamps_us"].reverse(),
            ["poses ('rig', 'world'): times do not increase"],
        ),
        (
            "poses/default/static_poses/.zattrs",
            lambda v: v["('top', 'rig')"]["pose"][0].__setitem__(0, 3.0),
            ["poses ('top', 'rig'): a pose is not rigid"],
        ),
        (CAMERA, lambda v: v.update(camera_model_type="new"), ["found 'new'; wanted ftheta"]),
        (
            CAMERA,
            lambda v: v["camera_model_parameters"].pop("shutter_type"),
            ["camera_model_parameters.shutter_type: found nothing; wanted a shutter's name"],
        ),
        (
            CAMERA,
            lambda v: v["camera_model_parameters"].update(max_angle=-1.0),
            ["max_angle: found -1; wanted an angle, above zero"],
        ),
        (
            "intrinsics/default/lidars/top/.zattrs",
            lambda v: v["lidar_model_parameters"].update(spinning_direction="up"),
            ["spinning_direction: found 'up'; wanted cw or ccw"],
        ),
        (
            "cuboids/default/cuboids/.zattrs",
            lambda v: v["cuboid_track_observations"][0].pop("bbox3"),
            ["cuboids/default/cuboids/.zattrs: a box: damaged (KeyError: 'bbox3')"],
        ),
        (
            "cuboids/default/cuboids/.zattrs",
            lambda v: v["cuboid_track_observations"][0].update(reference_frame_id="moon"),
            ["no chain of poses leads from 'moon' to 'world'"],
        ),
    ],
)
def test_damaged_documents(tmp_path, key, edit, fragments):
    write_ncore(a_drive(), tmp_path, store="directory")
    change(tmp_path, key, edit)
    assert_error(tmp_path, *fragments)


def test_damaged_arrays(tmp_path):
    write_ncore(a_drive(), tmp_path, store="directory")
    frames = tmp_path / "drive.ncore4.zarr" / "lidars" / "top" / "frames"
    frame = sorted(frames.glob("[0-9]*"))[0]
    (frame / "ray_bundle" / "direction" / "0.0").write_bytes(b"not compressed")
    place = f"lidars/top/frames/{frame.name}/ray_bundle/direction"
    assert_error(tmp_path, place, "cannot be decoded", "copy it again")
    (frame / "ray_bundle" / "direction" / ".zarray").unlink()
    assert_error(tmp_path, f"{place}: no such array")
    images = tmp_path / "drive.ncore4.zarr" / "cameras" / "wide" / "frames"
    write_ncore(a_drive(), tmp_path / "other", store="directory")
    image = sorted((tmp_path / "other" / images.relative_to(tmp_path)).glob("[0-9]*"))[0] / "image"
    drive = open_drive(tmp_path / "other")
    (image / "0").write_bytes(b"x" * (image / "0").stat().st_size)
    with pytest.raises(CaptureError, match="an image in it is of no known format"):
        _ = of_sensor(drive, "wide")[0].image


def test_damaged_tars(tmp_path):
    file = write_ncore(a_drive(), tmp_path)
    stored = tmp_path / "drive.ncore4.zarr.itar"
    whole = stored.read_bytes()
    # It is an ordinary tar for everything else.
    with tarfile.open(stored) as archive:
        assert ".zgroup" in archive.getnames()
    stored.write_bytes(whole[:-512])
    assert_error(file, f"{stored}: the last block is no index of an indexed tar")
    stored.write_bytes(whole[:100])
    assert_error(file, "has 100 bytes only")
    at = whole.rindex(b"\xfd7zXZ")
    stored.write_bytes(whole[:at] + b"\0" * 16 + whole[at + 16 :])
    assert_error(file, "the index is damaged")
    stored.unlink()
    assert_error(file, "component_stores: no such store: drive.ncore4.zarr.itar; copy all of them")


def test_metadata_is_in_one_place_too(tmp_path):
    write_ncore(a_drive(), tmp_path, store="directory")
    root = tmp_path / "drive.ncore4.zarr"
    table = cbor2.loads(lzma.decompress((root / ".zmetadata.cbor.xz").read_bytes()))
    assert table["zarr_consolidated_format"] == 1
    documents = [file for name in (".zgroup", ".zarray", ".zattrs") for file in root.rglob(name)]
    for file in documents:
        key = str(file.relative_to(root))
        assert table["metadata"][key] == json.loads(file.read_text())
    assert len(table["metadata"]) == len(documents)


# Poses in other shapes

STATIC, MOVING = "poses/default/static_poses/.zattrs", "poses/default/dynamic_poses/.zattrs"


def inverted(matrices):
    return np.linalg.inv(np.asarray(matrices)).tolist()


def test_poses_may_be_stored_the_other_way_round(tmp_path):
    drive = a_drive()
    write_ncore(drive, tmp_path, store="directory")

    def turn_mount(poses):
        stored = poses.pop("('wide', 'rig')")
        poses["('rig', 'wide')"] = {**stored, "pose": inverted(stored["pose"])}

    def turn_path(poses):
        stored = poses.pop("('rig', 'world')")
        poses["('world', 'rig')"] = {**stored, "poses": inverted(stored["poses"])}

    change(tmp_path, STATIC, turn_mount)
    change(tmp_path, MOVING, turn_path)
    found = open_drive(tmp_path)
    for name, mount in MOUNTS.items():
        np.testing.assert_allclose(found.mounts[name], mount, atol=1e-6)
    expected = pose_at(drive.ego, jnp.float32(0.33))
    np.testing.assert_allclose(pose_at(found.ego, jnp.float32(0.33)), expected, atol=1e-5)


def test_a_sensor_may_move_by_itself(tmp_path):
    drive = a_drive()
    write_ncore(drive, tmp_path, store="directory")
    path = "drive.ncore4.zarr/" + MOVING
    rig = json.loads((tmp_path / path).read_text())["('rig', 'world')"]
    own = (np.asarray(rig["poses"]) @ MOUNTS["wide"]).tolist()
    change(tmp_path, STATIC, lambda poses: poses.pop("('wide', 'rig')"))
    change(
        tmp_path, MOVING, lambda poses: poses.update({"('wide', 'world')": {**rig, "poses": own}})
    )
    found = open_drive(tmp_path)
    # It is not on the rig; its rays are the same.
    assert sorted(found.mounts) == ["front", "still", "top"]
    for ours, truth in zip(of_sensor(found, "wide"), of_sensor(drive, "wide"), strict=True):
        (origins, directions, _), (o, d, _) = map(rays_of, (ours.camera, truth.camera))
        np.testing.assert_allclose(origins, o, atol=1e-4)
        np.testing.assert_allclose(directions, d, atol=2e-5)


def test_a_rig_may_stand_still(tmp_path):
    write_ncore(a_drive(), tmp_path, store="directory")
    place = np.eye(4)
    place[:3, 3] = [5000.0, 100, 3]
    pose = {"pose": place.tolist(), "dtype": "float64"}
    change(tmp_path, MOVING, lambda poses: poses.clear())
    change(tmp_path, STATIC, lambda poses: poses.update({"('rig', 'world')": pose}))
    found = open_drive(tmp_path)
    assert found.epoch > 1.6e18 and found.origin == (5000, 100, 3)
    expected = MOUNTS["top"][:3, 3]
    np.testing.assert_allclose(rays_of(found.sweeps[0].lidar)[0][0, 0], expected, atol=1e-5)
    still = of_sensor(found, "still")[0].camera.world_from_camera
    np.testing.assert_allclose(still, MOUNTS["still"], atol=1e-5)


def test_frames_beyond_the_poses_are_told(tmp_path):
    write_ncore(a_drive(), tmp_path, store="directory")

    def shorten(poses):
        stored = poses["('rig', 'world')"]
        for key in ("poses", "timestamps_us"):
            stored[key] = stored[key][:7]

    change(tmp_path, MOVING, shorten)
    said = "\n".join(open_drive(tmp_path).messages)
    assert "1 of 3 frames of wide lie up to 0.13 s beyond the poses of rig" in said
    assert "1 of 3 frames of top lie up to 0.15 s beyond" in said


def test_what_is_not_read_is_told(tmp_path):
    write_ncore(a_drive(), tmp_path, store="directory")
    root = tmp_path / "drive.ncore4.zarr"
    (root / "radars" / "nose").mkdir(parents=True)
    for folder in (root / "radars", root / "radars" / "nose"):
        (folder / ".zgroup").write_text('{"zarr_format": 2}')
    change(tmp_path, "masks/default/cameras/wide/.zattrs", lambda v: v["mask_names"].append("sky"))
    said = "\n".join(open_drive(tmp_path).messages)
    assert "not read: radars nose" in said and "masks of wide that are not used: sky" in said


# Exchanged with the package


def loader(ncore, file):
    _, v4 = ncore
    reader = v4.SequenceComponentGroupsReader([file])
    return v4.SequenceLoaderV4(reader)


@pytest.mark.slow
def test_the_package_reads_what_is_written(tmp_path, ncore):
    drive = a_drive()
    sequence = loader(ncore, write_ncore(drive, tmp_path, name="street"))
    assert sorted(sequence.camera_ids) == ["front", "still", "wide"]
    assert sequence.lidar_ids == ["top"]
    rig = sequence.pose_graph
    micro = EPOCH // 1000
    for time in (0.13, 0.5, 0.77):
        pose = rig.evaluate_poses("rig", "world", np.array(micro + round(1e6 * time), np.uint64))
        np.testing.assert_allclose(pose, pose_at(drive.ego, jnp.float32(time)), atol=1e-5)
    for name in ("front", "still", "wide"):
        camera = sequence.get_camera_sensor(name)
        truth = of_sensor(drive, name)
        assert camera.frames_count == len(truth)
        for frame, exposure in enumerate(truth):
            image = np.asarray(camera.get_frame_image(frame))
            np.testing.assert_array_equal(image, np.round(exposure.image * 255))
        mount = rig.evaluate_poses(name, "rig", np.array(micro + 10, np.uint64))
        np.testing.assert_allclose(mount, MOUNTS[name], atol=1e-6)
    mask = np.asarray(sequence.get_camera_sensor("wide").get_mask_images()["ego"])
    np.testing.assert_array_equal(mask == 0, of_sensor(drive, "wide")[0].mask)
    lidar = sequence.get_lidar_sensor("top")
    for frame, sweep in enumerate(drive.sweeps):
        order = np.argsort(-np.asarray(sweep.lidar.elevations))
        at = tuple(lidar.get_frame_ray_bundle_model_element(frame).astype(int).T)
        assert len(at[0]) == sweep.mask.sum() and np.all(sweep.mask[order][at])
        valid = lidar.get_frame_ray_bundle_return_valid_mask(frame)
        np.testing.assert_array_equal(valid, sweep.returned[order][at])
        distances = lidar.get_frame_ray_bundle_return_distance_m(frame)
        np.testing.assert_allclose(distances[valid], sweep.ranges[order][at][valid])
    boxes = list(sequence.get_cuboid_track_observations())
    assert {box.track_id for box in boxes} == {"7", "8"}
    # The sensors' models as the package evaluates them.
    sensors = importlib.import_module("ncore.sensors")
    torch = importlib.import_module("torch")
    for name in ("front", "wide"):
        model = sensors.camera_model_from_parameters(
            sequence.get_camera_sensor(name).model_parameters, device="cpu", dtype=torch.float64
        )
        pixels = np.random.default_rng(0).uniform(1, [WIDTH - 1, HEIGHT - 1], (200, 2))
        theirs = model.image_points_to_camera_rays(pixels).numpy()
        exposure = of_sensor(drive, name)[0]
        still = dataclasses.replace(exposure.camera.camera, world_from_camera=jnp.eye(4))
        ours = np.asarray(still.rays(jnp.asarray(pixels, jnp.float32)).directions)
        seen = np.isfinite(ours).all(axis=-1)
        assert seen.mean() > 0.5
        np.testing.assert_allclose(ours[seen], theirs[seen], atol=1e-3)


def write_with_the_package(folder, ncore, store, profile="default"):
    """A sequence of two cameras and a lidar, as the package's own writer stores it."""
    data, v4 = ncore
    start, stop = EPOCH // 1000, EPOCH // 1000 + 1_000_001
    interval = importlib.import_module("ncore.impl.common.transformations").HalfClosedInterval
    writer = v4.SequenceComponentGroupsWriter(
        output_dir_path=importlib.import_module("upath").UPath(folder),
        store_base_name="theirs",
        sequence_id="theirs",
        sequence_timestamp_interval_us=interval(start, stop),
        generic_meta_data={},
        store_type=store,
    )
    groups = {name: None if profile == "default" else name for name in ("poses", "wide", "top")}
    stamps = (start + np.round(TIMES * 1e6)).astype(np.uint64)
    poses = writer.register_component_writer(v4.PosesComponent.Writer, "default", groups["poses"])
    poses.store_dynamic_pose("rig", "world", ego_poses(), stamps)
    for name in ("wide", "top"):
        poses.store_static_pose(name, "rig", MOUNTS[name].astype(np.float32))
    intrinsics = writer.register_component_writer(
        v4.IntrinsicsComponent.Writer, "default", groups["poses"]
    )
    intrinsics.store_camera_intrinsics("wide", camera_parameters(data))
    elevations = np.deg2rad([9.0, 2, -1, -8]).astype(np.float32)
    azimuths = spin(32, "cw").astype(np.float32)
    offsets = np.array([0.0, -0.02, 0.03, 0.01], np.float32)
    intrinsics.store_lidar_intrinsics(
        "top",
        data.RowOffsetStructuredSpinningLidarModelParameters(
            spinning_frequency_hz=10.0, spinning_direction="cw", n_rows=4, n_columns=32,
            row_elevations_rad=elevations, column_azimuths_rad=azimuths,
            row_azimuth_offsets_rad=offsets,
        ),
    )  # fmt: skip
    masks = writer.register_component_writer(v4.MasksComponent.Writer, "default", groups["poses"])
    covered = np.zeros((HEIGHT, WIDTH), np.uint8)
    covered[-4:] = 255
    masks.store_camera_masks("wide", {"ego": Image.fromarray(covered)})
    camera = writer.register_component_writer(
        v4.CameraSensorComponent.Writer, "wide", groups["wide"]
    )
    lidar = writer.register_component_writer(v4.LidarSensorComponent.Writer, "top", groups["top"])
    truth: dict[str, Any] = {"images": [], "sweeps": []}
    for frame in range(2):
        begin = start + 100_000 + 400_000 * frame
        times = np.array([begin, begin + 30_000], np.uint64)
        pixels = np.round(picture(frame) * 255).astype(np.uint8)
        encoded = io.BytesIO()
        Image.fromarray(pixels).save(encoded, "png")
        camera.store_frame(encoded.getvalue(), "png", times, {}, {})
        truth["images"].append(pixels)
        truth["sweeps"].append(store_sweep(lidar, frame, begin, elevations, azimuths, offsets))
    cuboids = writer.register_component_writer(
        v4.CuboidsComponent.Writer, "default", groups["poses"]
    )
    cuboids.store_observations(
        [
            data.CuboidTrackObservation(
                track_id="3", class_id="car", timestamp_us=start + time, reference_frame_id="top",
                reference_frame_timestamp_us=start + time,
                bbox3=data.BBox3((10.0, -1.0, 0.5), (4.0, 2.0, 1.5), (0.1, 0.2, 0.7)),
                source=data.LabelSource.GT_ANNOTATION,
            )
            for time in (200_000, 600_000)
        ]
    )  # fmt: skip
    return writer.finalize(), truth


def camera_parameters(data):
    kind = data.FThetaCameraModelParameters
    forward = np.float32(FORWARD)
    angle = np.linspace(0, 1.2, 500)
    distance = np.polyval(forward[::-1].astype(np.float64), angle)
    terms = distance[:, None] ** np.arange(1, 6)
    inverse = np.linalg.lstsq(terms, angle, rcond=None)[0]
    return kind(
        resolution=np.array([WIDTH, HEIGHT], np.uint64),
        shutter_type=data.ShutterType.ROLLING_TOP_TO_BOTTOM,
        external_distortion_parameters=None,
        principal_point=np.float32([12.0, 7.6]),
        reference_poly=kind.PolynomialType.ANGLE_TO_PIXELDIST,
        pixeldist_to_angle_poly=np.concatenate([[0], inverse]).astype(np.float32),
        angle_to_pixeldist_poly=forward,
        max_angle=1.2,
        linear_cde=np.float32([1.01, 0.002, -0.001]),
    )


def store_sweep(lidar, frame, begin, elevations, azimuths, offsets):
    random = np.random.default_rng(frame)
    rows, columns = np.nonzero(random.uniform(size=(4, 32)) < 0.9)
    mixed = random.permutation(len(rows))
    rows, columns = rows[mixed], columns[mixed]
    azimuth = azimuths[columns] + offsets[rows]
    level, up = np.cos(elevations[rows]), np.sin(elevations[rows])
    directions = np.stack([level * np.cos(azimuth), level * np.sin(azimuth), up], axis=-1)
    times = begin + np.round(100_000 * columns / 31)
    distances = random.uniform(2, 40, (2, len(rows))).astype(np.float32)
    absent = random.uniform(size=distances.shape) < 0.4
    # No second return without a first.
    absent[1] |= absent[0]
    distances[absent] = np.nan
    intensities = np.where(absent, np.nan, random.uniform(0, 1, distances.shape))
    lidar.store_frame(
        directions.astype(np.float32),
        times.astype(np.uint64),
        np.stack([rows, columns], axis=-1).astype(np.uint16),
        distances,
        intensities.astype(np.float32),
        np.array([begin, begin + 100_000], np.uint64),
        {},
        {},
    )
    return {"rows": rows, "columns": columns, "distances": distances, "intensities": intensities}


@pytest.mark.slow
@pytest.mark.parametrize(
    "store, profile", [("itar", "default"), ("itar", "separate"), ("directory", "default")]
)
def test_what_the_package_writes_is_read(tmp_path, ncore, store, profile):
    paths, truth = write_with_the_package(tmp_path, ncore, store, profile)
    drive = open_drive(tmp_path)
    assert len(paths) == (1 if profile == "default" else 3)
    for exposure, pixels in zip(drive.exposures, truth["images"], strict=True):
        np.testing.assert_array_equal(np.round(exposure.image * 255), pixels)
        np.testing.assert_array_equal(exposure.mask[-5:, 0], [True] + 4 * [False])
    for sweep, stored in zip(drive.sweeps, truth["sweeps"], strict=True):
        assert isinstance(sweep.lidar, SpinningLidar)
        at = stored["rows"], stored["columns"]
        assert sweep.mask.sum() == len(at[0])
        two = np.sort(np.where(np.isnan(stored["distances"]), np.inf, stored["distances"]), axis=0)
        two[np.isinf(two)] = 0
        np.testing.assert_array_equal(sweep.ranges[at], two[0])
        np.testing.assert_array_equal(sweep.second_ranges[at], two[1])
        assert (sweep.mask & ~sweep.returned).sum() > 0
    # World rays against the package's: camera, lidar and box.
    sequence = loader(ncore, paths[0]) if profile == "default" else None
    if sequence is None:
        return
    sensors = importlib.import_module("ncore.sensors")
    torch = importlib.import_module("torch")
    origin = np.asarray(drive.origin)
    assert origin.any()
    make = {"device": "cpu", "dtype": torch.float64}
    camera = sequence.get_camera_sensor("wide")
    model = sensors.camera_model_from_parameters(camera.model_parameters, **make)
    times = camera.frames_timestamps_us[1]
    graph = sequence.pose_graph
    ends = graph.evaluate_poses("wide", "world", np.asarray(times, np.uint64))
    pixels = np.random.default_rng(1).uniform(1, [WIDTH - 1, HEIGHT - 1], (300, 2))
    theirs = model.image_points_to_world_rays_shutter_pose(pixels, *ends).world_rays.numpy()
    ours = drive.exposures[1].camera.rays(jnp.asarray(pixels, jnp.float32))
    seen = np.isfinite(ours.directions).all(axis=-1)
    assert seen.mean() > 0.5
    # Half a centimetre: in float32, and theirs interpolates between two poses only.
    np.testing.assert_allclose(np.asarray(ours.origins)[seen] + origin, theirs[seen, :3], atol=5e-3)
    np.testing.assert_allclose(ours.directions[seen], theirs[seen, 3:], atol=1e-4)
    box = np.asarray(pose_at(drive.tracks[0].path, jnp.float32(0.2)), np.float64)
    observation = next(iter(sequence.get_cuboid_track_observations()))
    moved = observation.transform("world", observation.timestamp_us, graph)
    np.testing.assert_allclose(box[:3, 3] + origin, moved.bbox3.centroid, atol=1e-3)
