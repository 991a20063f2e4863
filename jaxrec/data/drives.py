"""Opens the log of a drive, whatever its layout is."""

import dataclasses
import os
import pathlib
from collections.abc import Callable
from typing import Any

from .._typing import positive_integer
from ..sensors import Exposure, RollingShutterCamera
from . import argoverse
from ._document import listed
from ._images import shrink_color, shrink_mask
from ._ncore_components import is_ncore
from ._stored_exposures import StoredExposure
from .argoverse import read_argoverse
from .dgp import read_dgp, scene_files
from .dgp_scene import SCENE, read_scene
from .drive import Drive
from .errors import CaptureError
from .kitti import is_kitti, read_kitti
from .kitti_sequence import SEQUENCE, read_sequence
from .ncore import read_ncore


def open_drive(path: str | os.PathLike[str], *, downscale: int = 1) -> Drive:
    """Reads the log of a drive, recognising its layout.

    A folder may hold, and the first of them that it holds is taken:

    1. `city_SE3_egovehicle.feather` (a log of Argoverse 2);
    2. `sequence.json` (a converted KITTI drive);
    3. `scene.json` (a converted DGP scene);
    4. `oxts/data` (a recording of KITTI's raw data, with its calibration in it or beside it);
    5. `scene_*.json` (a scene of a DGP data set);
    6. stores of NVIDIA NCore (`*.zarr.itar` or `*.zarr`), or the JSON of a sequence that names
       its stores.

    Where the folder holds nothing but one folder that has such a layout, that is taken.

    Args:
        path: The folder, or the document that its layout is known by.
        downscale: Images become this many times smaller, each side rounded down.

    Returns:
        The drive. Images are read from their files when they are asked for.

    Raises:
        CaptureError: The log cannot be used: one line that names the file, the field, what was
            found and what to do.
        ValueError: `downscale` is no whole number above zero.
    """
    positive_integer("downscale", downscale)
    path = pathlib.Path(path)
    if not path.exists():
        raise CaptureError(path, "", "no such file or folder", "check the path")
    drive = _open(path)
    if downscale == 1:
        return drive
    exposures: list[Exposure] = [_smaller(path, one, downscale) for one in drive.exposures]
    return dataclasses.replace(drive, exposures=exposures)


def _open(path: pathlib.Path) -> Drive:
    found = _reader(path)
    if found is not None:
        return found()
    inside = sorted(part for part in path.iterdir() if part.is_dir()) if path.is_dir() else []
    readers = [reader for reader in map(_reader, inside) if reader is not None]
    if len(readers) == 1:
        return readers[0]()
    if readers:
        several = ", ".join(part.name for part in inside if _reader(part) is not None)
        raise CaptureError(path, "", f"found several drives: {several}", "give one of them")
    raise CaptureError(
        path,
        "",
        f"found neither {argoverse.POSES} nor {SEQUENCE} nor {SCENE} nor oxts/data nor "
        "scene_*.json nor stores of NCore",
        "give the folder of a drive",
    )


def is_drive(path: str | os.PathLike[str]) -> bool:
    """Whether a path has one of the layouts that `open_drive` knows, or a folder in it has.

    Args:
        path: Of a folder or a document, which need not exist.
    """
    path = pathlib.Path(path)
    if not path.exists():
        return False
    inside = path.iterdir() if path.is_dir() else ()
    return any(_reader(part) is not None for part in (path, *filter(pathlib.Path.is_dir, inside)))


def _smaller(path: pathlib.Path, exposure: Exposure, factor: int) -> StoredExposure:
    """An exposure whose image is made smaller whenever it is asked for."""
    camera: Any = exposure.camera
    width, height = camera.width // factor, camera.height // factor
    if min(width, height) < 1:
        found = f"images of {camera.width} x {camera.height} pixels"
        raise CaptureError(path, "", found, f"they cannot become {factor} times smaller")
    if isinstance(camera, RollingShutterCamera):
        still: Any = camera.camera
        scaled = dataclasses.replace(camera, camera=still.scaled(width, height))
    else:
        scaled = camera.scaled(width, height)

    def read():
        return shrink_color(exposure.image, None, width=width, height=height)[0]

    mask = exposure.mask
    return StoredExposure.create(
        scaled,
        read,
        name=exposure.name,
        sensor=exposure.sensor,
        time=exposure.time,
        mask=None if mask is None else shrink_mask(mask, width=width, height=height),
    )


def _reader(path: pathlib.Path) -> Callable[[], Drive] | None:
    """What reads a path, or None if it has no known layout."""
    folder = path if path.is_dir() else path.parent
    layouts: dict[str, Callable[[], Drive]] = {
        argoverse.POSES: lambda: read_argoverse(folder),
        SEQUENCE: lambda: read_sequence(folder / SEQUENCE),
        SCENE: lambda: read_scene(folder / SCENE),
    }
    if path.is_dir():
        found = next((read for name, read in layouts.items() if (path / name).is_file()), None)
    else:
        found = layouts.get(path.name)
    if found is None and path.is_dir() and is_kitti(path):
        return lambda: read_kitti(path)
    scenes = scene_files(path) if path.is_dir() else [path] if path in scene_files(folder) else []
    if found is None and scenes:
        if len(scenes) > 1:
            names = listed([scene.name for scene in scenes])
            raise CaptureError(path, "", f"found several scenes: {names}", "give one of them")
        return lambda: read_dgp(scenes[0])
    if found is None and is_ncore(path):
        return lambda: read_ncore(path)
    return found
