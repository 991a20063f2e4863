"""NCore sequences that are damaged, or whose poses have another shape than those written here."""

import json
import lzma
import tarfile

import jax.numpy as jnp
import numpy as np
import pytest

from drive_files import assert_error, pose_at
from jaxrec.data import CaptureError, open_drive, write_ncore
from ncore_files import MOUNTS, a_drive, change, of_sensor, rays_of

pytest.importorskip("numcodecs", reason="not installed: pip install '.[ncore]'")
cbor2 = pytest.importorskip("cbor2", reason="not installed: pip install '.[ncore]'")

CAMERA = "intrinsics/default/cameras/wide/.zattrs"
STATIC, MOVING = "poses/default/static_poses/.zattrs", "poses/default/dynamic_poses/.zattrs"


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
    own = (np.asarray(rig["poses"]) @ MOUNTS["front"]).tolist()
    change(tmp_path, STATIC, lambda poses: poses.pop("('front', 'rig')"))
    change(
        tmp_path, MOVING, lambda poses: poses.update({"('front', 'world')": {**rig, "poses": own}})
    )
    found = open_drive(tmp_path)
    # It is not on the rig; its rays are the same.
    assert sorted(found.mounts) == ["still", "top", "wide"]
    for ours, truth in zip(of_sensor(found, "front"), of_sensor(drive, "front"), strict=True):
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
