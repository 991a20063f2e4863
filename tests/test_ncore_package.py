"""NCore sequences, exchanged with NVIDIA's `nvidia-ncore`."""

import dataclasses
import importlib.util
import io
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from drive_files import pose_at
from jaxrec.data import open_drive, write_ncore
from jaxrec.sensors import SpinningLidar, spin
from ncore_files import (
    EPOCH,
    FORWARD,
    HEIGHT,
    MOUNTS,
    TIMES,
    WIDTH,
    a_drive,
    ego_poses,
    of_sensor,
    picture,
)

pytest.importorskip("numcodecs", reason="not installed: pip install '.[ncore]'")
pytest.importorskip("cbor2", reason="not installed: pip install '.[ncore]'")


@pytest.fixture(scope="module")
def ncore():
    """The package's modules of data and of the fourth version."""
    missing = [name for name in ("torch", "ncore") if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"the oracle is not installed: no {missing[0]}; pip install '.[oracle]'")
    # Installed, it has to work: what fails from here on is no reason to skip.
    return importlib.import_module("ncore.data"), importlib.import_module("ncore.data.v4")


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
