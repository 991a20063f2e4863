"""Writes drives as NVIDIA NCore sequences, version 4."""

import hashlib
import io
import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from ..sensors import Exposure, RollingShutterCamera, Sweep
from ._ncore_cameras import encode_camera
from ._ncore_paths import Clock, observations_of, poses_over, sampled, stored_pose
from ._ncore_poses import RIG, WORLD
from ._ncore_rays import RaysToWrite, Span
from ._zarr_writing import StoreWriter, write_folder, write_tar
from .drive import Drive

# Sensors that stand farther from where path and mount put them are not on this rig.
_APART = 1e-3


def write_ncore(
    drive: Drive,
    folder: str | os.PathLike[str],
    *,
    name: str = "drive",
    store: Literal["itar", "directory"] = "itar",
) -> pathlib.Path:
    """Writes a drive as an NCore sequence of one store.

    Times become whole microseconds and images PNG of 8 bits. A path that is no `Trajectory` is
    stored as poses 10 ms apart. Shots that are masked are left out, shots without a return are
    kept. `read_ncore` and NCore's own package read the result.

    Args:
        drive: To write; with at least one image or sweep.
        folder: Where to; it is made if it is missing.
        name: Of the sequence, and of its files.
        store: An indexed tar, or a folder of files.

    Returns:
        The JSON of the sequence.

    Raises:
        ValueError: NCore cannot hold something of the drive: a lens, rays that do not start at
            the lidar's origin, a sensor that is not where its mount says, masks that change.
        FileExistsError: The folder of the store is there already.
    """
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if not drive.exposures and not drive.sweeps:
        raise ValueError("drive: got neither images nor sweeps; give one with some")
    if store not in ("itar", "directory"):
        raise ValueError(f"store: got {store!r}; give 'itar' or 'directory'")
    content = _Content(drive, name)
    file = folder / f"{name}.ncore4.zarr{'.itar' if store == 'itar' else ''}"
    write = write_tar if store == "itar" else write_folder
    write(file, content.fill)
    meta = folder / f"{name}.json"
    partial = meta.with_name(meta.name + ".part")
    partial.write_text(json.dumps(content.meta(file), indent=2))
    os.replace(partial, meta)
    return meta


class _Content:
    """What the store of a drive consists of."""

    def __init__(self, drive: Drive, name: str):
        self._drive = drive
        self._name = name
        self._clock = Clock(drive.epoch)
        self._components: dict[str, dict[str, Any]] = {}
        self._cameras = _by_sensor(drive.exposures)
        self._lidars = _by_sensor(drive.sweeps)
        self._check()
        self._images = {
            sensor: [self._image_frame(exposure) for exposure in exposures]
            for sensor, exposures in self._cameras.items()
        }
        self._turns = {
            sensor: [RaysToWrite(sweep, self._clock.microseconds) for sweep in sweeps]
            for sensor, sweeps in self._lidars.items()
        }
        turns = [rays.frame for all_rays in self._turns.values() for rays in all_rays]
        images = [frame for frames in self._images.values() for frame in frames]
        frames = [*images, *turns]
        self._first = min(frame.start for frame in frames)
        self._last = max(frame.end for frame in frames)
        self._times, self._poses = poses_over(drive.ego, self._clock, self._first, self._last)
        self._first = min(self._first, int(self._times[0]))
        self._last = max(self._last, int(self._times[-1]))

    def fill(self, writer: StoreWriter) -> None:
        """Stores everything."""
        writer.group("", {**self._about(), "component_group_name": ""})
        self._write_poses(writer)
        self._write_intrinsics(writer)
        self._write_masks(writer)
        for sensor, exposures in self._cameras.items():
            self._write_images(writer, sensor, exposures)
        for sensor, rays in self._turns.items():
            self._write_sweeps(writer, sensor, rays)
        self._write_boxes(writer)

    def meta(self, file: pathlib.Path) -> dict[str, Any]:
        """The JSON of the sequence."""
        store = {"path": file.name, "md5": _digest(file), "components": self._components}
        return {**self._about(), "component_stores": [store]}

    def _about(self) -> dict[str, Any]:
        return {
            "sequence_id": self._name,
            "sequence_timestamp_interval_us": {"start": self._first, "stop": self._last + 1},
            "generic_meta_data": {},
            "version": "v4",
        }

    def _check(self) -> None:
        for sensor in (*self._cameras, *self._lidars):
            if sensor not in self._drive.mounts:
                raise ValueError(f"mounts: got none of {sensor!r}; give the mount of each sensor")

    def _component(self, writer: StoreWriter, kind: str, name: str) -> str:
        key = f"{kind}/{name}"
        about = {
            "component_name": kind,
            "component_instance_name": name,
            "component_version": "v1",
            "generic_meta_data": {},
        }
        writer.group(key, about)
        self._components.setdefault(kind, {})[name] = {"version": "v1", "generic_meta_data": {}}
        return key

    def _write_poses(self, writer: StoreWriter) -> None:
        key = self._component(writer, "poses", "default")
        static = {
            str((sensor, RIG)): stored_pose(self._drive.mounts[sensor])
            for sensor in (*self._cameras, *self._lidars)
        }
        origin = np.eye(4)
        origin[:3, 3] = self._drive.origin
        static[str((WORLD, "world_global"))] = stored_pose(origin)
        moving = {
            "poses": self._poses.tolist(),
            "timestamps_us": self._times.tolist(),
            "dtype": "float64",
        }
        writer.group(f"{key}/static_poses", static)
        writer.group(f"{key}/dynamic_poses", {str((RIG, WORLD)): moving})

    def _write_intrinsics(self, writer: StoreWriter) -> None:
        key = self._component(writer, "intrinsics", "default")
        writer.group(f"{key}/cameras")
        writer.group(f"{key}/lidars")
        for sensor, exposures in self._cameras.items():
            encoded = [encode_camera(sensor, exposure.camera) for exposure in exposures]
            if any(each != encoded[0] for each in encoded):
                raise ValueError(f"{sensor}: got cameras that differ; NCore has one for a sensor")
            writer.group(f"{key}/cameras/{sensor}", encoded[0])
        for sensor, rays in self._turns.items():
            grids = [each.grid for each in rays if each.grid is not None]
            if len(grids) == len(rays) and all(grid == grids[0] for grid in grids):
                writer.group(f"{key}/lidars/{sensor}", grids[0])

    def _write_masks(self, writer: StoreWriter) -> None:
        from PIL import Image

        key = self._component(writer, "masks", "default")
        writer.group(f"{key}/cameras")
        for sensor, exposures in self._cameras.items():
            masks = [exposure.mask for exposure in exposures]
            first = masks[0]
            if any((mask is None) != (first is None) for mask in masks) or any(
                not np.array_equal(mask, first) for mask in masks if mask is not None
            ):
                raise ValueError(f"{sensor}: got masks that change; NCore has one for a sensor")
            writer.group(
                f"{key}/cameras/{sensor}", {"mask_names": [] if first is None else ["ego"]}
            )
            if first is not None:
                picture = io.BytesIO()
                Image.fromarray(np.where(first, 0, 255).astype(np.uint8)).save(picture, "png")
                writer.text(f"{key}/cameras/{sensor}/ego", picture.getvalue(), {"format": "png"})

    def _image_frame(self, exposure: Exposure) -> Span:
        camera = exposure.camera
        if isinstance(camera, RollingShutterCamera):
            self._check_place(exposure, np.asarray(camera.camera.world_from_camera))
            times = [float(time + camera.offset) for time in (camera.start, camera.end)]
            return Span(*self._clock.microseconds(times).tolist())
        time = int(self._clock.microseconds(exposure.time))
        return Span(time, time)

    def _check_place(self, item: Exposure | Sweep, mount: np.ndarray) -> None:
        apart = np.abs(mount - self._drive.mounts[item.sensor]).max()
        if apart > _APART:
            raise ValueError(
                f"{item.name}: got a pose on the body {apart:.3g} off the mount of {item.sensor!r}"
                "; give the drive's mounts"
            )

    def _write_images(
        self, writer: StoreWriter, sensor: str, exposures: Sequence[Exposure]
    ) -> None:
        from PIL import Image

        key = self._component(writer, "cameras", sensor)
        frames = self._images[sensor]
        self._write_frames(writer, key, sensor, frames)
        self._check_global(sensor, exposures)
        for exposure, frame in zip(exposures, frames, strict=True):
            place = f"{key}/frames/{frame.end}"
            picture = io.BytesIO()
            pixels = np.round(np.clip(exposure.image, 0, 1) * 255).astype(np.uint8)
            Image.fromarray(pixels).save(picture, "png")
            writer.group(f"{place}/generic_data", {})
            writer.text(f"{place}/image", picture.getvalue(), {"format": "png"})

    def _check_global(self, sensor: str, exposures: Sequence[Exposure]) -> None:
        """Whether cameras without a rolling shutter are where the rig has them."""
        still = [item for item in exposures if not isinstance(item.camera, RollingShutterCamera)]
        poses, _ = sampled(self._drive.ego, np.array([exposure.time for exposure in still]))
        for exposure, expected in zip(still, poses @ self._drive.mounts[sensor], strict=True):
            camera: Any = exposure.camera
            apart = np.abs(np.asarray(camera.world_from_camera) - expected).max()
            if apart > _APART:
                raise ValueError(
                    f"{exposure.name}: got a camera {apart:.3g} from where the path and the mount "
                    f"of {sensor!r} put it; NCore has no pose for each image"
                )

    def _write_sweeps(self, writer: StoreWriter, sensor: str, rays: Sequence[RaysToWrite]) -> None:
        key = self._component(writer, "lidars", sensor)
        self._write_frames(writer, key, sensor, [each.frame for each in rays])
        for each, sweep in zip(rays, self._lidars[sensor], strict=True):
            self._check_place(sweep, each.mount)
            each.write(writer, f"{key}/frames/{each.frame.end}")

    def _write_frames(self, writer, key: str, sensor: str, frames: Sequence[Span]) -> None:
        times = np.array(frames, np.int64).reshape(-1, 2)
        if np.any(np.diff(times, axis=0) <= 0):
            raise ValueError(f"{sensor}: got frames at one time; NCore names them by their end")
        writer.group(f"{key}/frames", {"frames_timestamps_us": times.tolist()})

    def _write_boxes(self, writer: StoreWriter) -> None:
        key = self._component(writer, "cuboids", "default")
        observations = [
            observation
            for track in self._drive.tracks
            for observation in observations_of(track, self._clock, self._first, self._last)
        ]
        writer.group(f"{key}/cuboids", {"cuboid_track_observations": observations})


def _by_sensor(items: Sequence[Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for item in items:
        found.setdefault(item.sensor, []).append(item)
    return found


def _digest(path: pathlib.Path) -> str:
    """MD5 of a file, or of a folder with the names in it, as NCore has it."""
    digest = hashlib.md5()

    def add(part: pathlib.Path) -> None:
        if part.is_file():
            digest.update(part.read_bytes())
            return
        for inner in sorted(part.iterdir(), key=lambda each: str(each).lower()):
            digest.update(inner.name.encode())
            add(inner)

    add(path)
    return digest.hexdigest()
