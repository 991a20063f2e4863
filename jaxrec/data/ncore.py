"""NVIDIA NCore, version 4: sequences of sensor data in zarr stores, read without its package."""

import pathlib
from collections.abc import Callable, Mapping

import numpy as np
from jaxtyping import Bool, Float32, Float64

from ..sensors import Exposure, RollingShutterCamera, Sweep
from ..trajectory import Path
from ._document import listed
from ._images import decode_image
from ._log_files import damaged
from ._ncore_cameras import StoredCamera, decode_camera
from ._ncore_components import Components
from ._ncore_lidars import Grid, RayList, agreement, decode_lidar, is_spun, read_rays, sweep_from
from ._ncore_poses import RIG, WORLD, Chain, PoseGraph
from ._rig import Anchor, Sighting, rigid_of, tracks_of
from ._stored_exposures import StoredExposure
from ._zarr import Group
from .drive import Drive
from .errors import CaptureError

# The mask that covers the car itself; others mean what their maker wants.
_EGO = "ego"
_UNREAD = ("radars", "point_clouds", "camera_labels")


def read_ncore(path: pathlib.Path) -> Drive:
    """Reads an NCore sequence.

    Lines of rolling shutters and columns of spinning lidars are timed by the models that the
    sequence stores. Where stored rays of a lidar are not those of its model, they are kept.

    Args:
        path: The JSON of the sequence, one of its stores, or the folder that holds them.

    Raises:
        CaptureError: A store is damaged or missing, or a pose or a calibration is.
    """
    components = Components(path)
    graph = PoseGraph(components.only("poses"))
    cameras, lidars = components.all("cameras"), components.all("lidars")
    chains = {sensor: graph.chain(sensor) for sensor in (*cameras, *lidars)}
    ego = _ego_chain(graph, chains, path)
    anchor = Anchor(components.start, Anchor.of(ego.poses).origin)
    paths: dict[str, Path] = {}
    for chain in (ego, *chains.values()):
        paths.setdefault(chain.body, anchor.path(chain.poses, edge="extrapolate"))
    messages = []
    exposures: list[Exposure] = []
    for sensor, group in cameras.items():
        chain = chains[sensor]
        found, told = _exposures(components, sensor, group, chain, paths[chain.body], anchor)
        exposures += found
        messages += told
    sweeps: list[Sweep] = []
    for sensor, group in lidars.items():
        chain = chains[sensor]
        found, told = _sweeps(components, sensor, group, chain, paths[chain.body], anchor)
        sweeps += found
        messages += told
    tracks, about_tracks = tracks_of(_sightings(components, graph), anchor)
    unread = [f"{kind} {name}" for kind in _UNREAD for name in components.all(kind)]
    if unread:
        messages.append(f"not read: {listed(unread)}")
    return Drive(
        exposures=sorted(exposures, key=lambda exposure: exposure.time),
        sweeps=sorted(sweeps, key=lambda sweep: sweep.time),
        tracks=tracks,
        ego=paths[ego.body],
        mounts={sensor: chain.mount for sensor, chain in chains.items() if chain.body == ego.body},
        epoch=anchor.epoch,
        format="ncore",
        path=path,
        origin=anchor.origin,
        messages=[*messages, *about_tracks, *anchor.message()],
    )


def _ego_chain(graph: PoseGraph, chains: Mapping[str, Chain], path: pathlib.Path) -> Chain:
    """The body that the drive is about: the rig, or else what the first sensor is on."""
    if graph.known(RIG):
        return graph.chain(RIG)
    if not chains:
        raise CaptureError(path, "", "found neither cameras nor lidars", "give all its stores")
    return next(iter(chains.values()))


def _frames(group: Group) -> list[tuple[int, int]]:
    """Start and end of each frame in microseconds; a frame is named by its end."""
    frames = group.group("frames")
    with damaged(group.store.path, f"{frames.key}/.zattrs"):
        times = np.array(frames.attribute("frames_timestamps_us"), np.int64).reshape(-1, 2)
        # Nanoseconds have to fit, too.
        if np.any(np.abs(times) > 2**63 // 1000 - 1):
            raise OverflowError("times beyond 64 bits")
    return [(start, end) for start, end in times.tolist()]


def _beyond(sensor: str, frames: list[tuple[int, int]], chain: Chain) -> list[str]:
    """What to say of frames that poses do not cover."""
    if len(chain.poses.times) < 2:
        return []
    first, last = (int(time) // 1000 for time in chain.poses.times[[0, -1]])
    outside = [max(first - start, end - last) for start, end in frames]
    count = sum(1 for by in outside if by > 1000)
    if not count:
        return []
    return [
        f"{count} of {len(frames)} frames of {sensor} lie up to {max(outside) / 1e6:.3g} s beyond "
        f"the poses of {chain.body}: its motion goes on there"
    ]


def _exposures(
    components: Components,
    sensor: str,
    group: Group,
    chain: Chain,
    path: Path,
    anchor: Anchor,
) -> tuple[list[Exposure], list[str]]:
    frames = _frames(group)
    fields = components.model("cameras", sensor)
    if fields is None:
        raise CaptureError(
            components.path, f"intrinsics cameras/{sensor}", "found nothing", "add its model"
        )
    stored = decode_camera(fields)
    mask, messages = _ego_mask(components, sensor, stored)
    exposures: list[Exposure] = []
    for start, end in frames:
        begin, finish = anchor.seconds([start * 1000, end * 1000]).tolist()
        if stored.direction is None:
            # NCore's global shutter opens at the start of the frame.
            finish = begin
            pose = chain.poses.mounted(chain.mount).at(np.array([start * 1000]))[0]
            camera = stored.at(anchor.local(pose))
        else:
            camera = RollingShutterCamera(
                stored.at(chain.mount),
                path,
                begin,
                finish,
                direction=stored.direction,
            )
        exposures.append(
            StoredExposure.create(
                camera,
                _image_reader(group.group("frames", str(end)), stored),
                name=f"{sensor}/{end}",
                sensor=sensor,
                time=(begin + finish) / 2,
                mask=mask,
            )
        )
    return exposures, [*messages, *_beyond(sensor, frames, chain)]


def _image_reader(
    frame: Group, stored: StoredCamera
) -> Callable[[], Float32[np.ndarray, "height width 3"]]:
    """What decodes the image of a frame."""

    def read() -> Float32[np.ndarray, "height width 3"]:
        color, _ = decode_image(frame.store.path, frame.text("image"))
        if color.shape[:2] != (stored.height, stored.width):
            found = f"the image has {color.shape[1]} x {color.shape[0]} pixels"
            wanted = f"wanted the camera's {stored.width} x {stored.height}"
            raise frame.error("image", found, wanted)
        return color

    return read


def _ego_mask(
    components: Components, sensor: str, stored: StoredCamera
) -> tuple[Bool[np.ndarray, "height width"] | None, list[str]]:
    """Which pixels do not show the car itself, and what is not used."""
    mask, unused = None, []
    for component in components.all("masks").values():
        group = component.find("cameras", sensor)
        names = [] if group is None else group.attributes().get("mask_names")
        for name in names if isinstance(names, list) else []:
            if name != _EGO or group is None:
                unused.append(str(name))
                continue
            color, _ = decode_image(group.store.path, group.text(name))
            mask = np.asarray(color.max(axis=-1) == 0)
            if mask.shape != (stored.height, stored.width):
                found = f"the mask has {mask.shape[1]} x {mask.shape[0]} pixels"
                wanted = f"wanted the camera's {stored.width} x {stored.height}"
                raise group.error(name, found, wanted)
    told = [f"masks of {sensor} that are not used: {listed(unused)}"] if unused else []
    return mask, told


def _sweeps(
    components: Components,
    sensor: str,
    group: Group,
    chain: Chain,
    path: Path,
    anchor: Anchor,
) -> tuple[list[Sweep], list[str]]:
    frames = _frames(group)
    fields = components.model("lidars", sensor) if components.all("intrinsics") else None
    grid = None if fields is None else decode_lidar(fields)
    read = []
    for _, end in frames:
        with damaged(group.store.path, f"{group.key}/frames/{end}"):
            read.append(read_rays(group.group("frames", str(end))))
    lists = [rays for rays, _ in read]
    for (_, end), rays in zip(frames, lists, strict=True):
        _check_elements(group, grid, rays, end)
    spun, messages = _is_model(sensor, grid, lists, frames)
    beyond = sum(count for _, count in read)
    if beyond:
        messages.append(f"{beyond} returns of {sensor} beyond the second are not used")
    sweeps = [
        sweep_from(
            rays,
            grid,
            spun,
            mount=chain.mount,
            path=path,
            anchor=anchor,
            start=start * 1000,
            end=end * 1000,
            name=f"{sensor}/{end}",
            sensor=sensor,
        )
        for rays, (start, end) in zip(lists, frames, strict=True)
    ]
    return sweeps, [*messages, *_beyond(sensor, frames, chain)]


def _check_elements(group: Group, grid: Grid | None, rays: RayList, end: int) -> None:
    if grid is None or rays.elements is None or not len(rays.elements):
        return
    shape = np.array([len(grid.elevations), len(grid.azimuths)])
    if np.any(rays.elements >= shape):
        found = f"has places up to {rays.elements.max(axis=0).tolist()}"
        wanted = f"wanted rows and columns below {shape.tolist()}"
        raise group.error(f"frames/{end}/ray_bundle/model_element", found, wanted)


def _is_model(
    sensor: str, grid: Grid | None, lists: list[RayList], frames: list[tuple[int, int]]
) -> tuple[bool, list[str]]:
    """Whether the rays of a lidar are those of its model, and what there is to say."""
    if not lists:
        return False, [f"{sensor} has no sweeps"]
    if grid is None or any(rays.elements is None for rays in lists):
        return False, [
            f"{sensor} has no grid: rows are made by elevation and columns by azimuth, and the "
            "shots that are not stored are masked"
        ]
    found = [
        agreement(grid, rays, start * 1000, end * 1000)
        for rays, (start, end) in zip(lists, frames, strict=True)
    ]
    angle, late, shared = (max(column) for column in zip(*found, strict=True))
    if is_spun(angle, late, int(shared)):
        return True, []
    told = [
        f"rays of {sensor} are up to {np.rad2deg(angle):.3g} degrees and {1e3 * late:.3g} ms off "
        "its model: those stored are kept"
    ]
    if shared:
        told.append(f"up to {shared} rays of a sweep of {sensor} share a place: they are moved on")
    return False, told


def _sightings(components: Components, graph: PoseGraph) -> list[Sighting]:
    entries: list[tuple[Group, dict]] = []
    for component in components.all("cuboids").values():
        group = component.group("cuboids")
        with damaged(group.store.path, f"{group.key}/.zattrs"):
            boxes = list(group.attribute("cuboid_track_observations"))
        entries += [(group, box) for box in boxes]
    sources, sightings = set(), []
    for group, entry in entries:
        with damaged(group.store.path, f"{group.key}/.zattrs: a box"):
            sources.add(str(entry["source"]))
    for group, entry in entries:
        with damaged(group.store.path, f"{group.key}/.zattrs: a box"):
            sightings.append(_sighting(graph, entry, several=len(sources) > 1))
    return sightings


def _sighting(graph: PoseGraph, entry: dict, several: bool) -> Sighting:
    from scipy.spatial.transform import Rotation

    box = entry["bbox3"]
    parts = [np.array(box[part], np.float64).reshape(3) for part in ("centroid", "dim", "rot")]
    if not (np.abs(parts) < 1e9).all():
        raise ValueError("a number is not finite")
    centroid, size, angles = parts
    local = rigid_of(Rotation.from_euler("xyz", angles).as_matrix(), centroid)
    frame = entry["reference_frame_id"]
    place = np.eye(4) if frame == WORLD else _placed(graph, frame, entry)
    name = str(entry["track_id"])
    return Sighting(
        id=f"{name} ({entry['source']})" if several else name,
        label=str(entry["class_id"]),
        size=size.tolist(),
        time=int(np.int64(int(entry["timestamp_us"]) * 1000)),
        world_from_box=place @ local,
    )


def _placed(graph: PoseGraph, frame: str, entry: dict) -> Float64[np.ndarray, "4 4"]:
    chain = graph.chain(frame)
    time = np.array([int(entry["reference_frame_timestamp_us"]) * 1000])
    return chain.poses.mounted(chain.mount).at(time)[0]
