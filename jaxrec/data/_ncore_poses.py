"""The graph of poses of an NCore sequence."""

import ast
import pathlib
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64

from ._document import listed
from ._log_files import damaged
from ._rig import Poses, inverse_of
from ._zarr import Group
from .errors import CaptureError

WORLD, RIG = "world", "rig"


class Chain(NamedTuple):
    """How a frame stands in the world.

    Attributes:
        body: The frame whose poses in time are known; the frame itself if it stands still.
        mount: `body_from_frame`.
        poses: `world_from_body`; one alone if it stands still.
    """

    body: str
    mount: Float64[np.ndarray, "4 4"]
    poses: Poses


class PoseGraph:
    """Frames and the poses between them, static or in time.

    Raises:
        CaptureError: A pose is damaged.
    """

    def __init__(self, group: Group):
        self._file: pathlib.Path = group.store.path
        self._static: dict[tuple[str, str], Float64[np.ndarray, "4 4"]] = {}
        self._moving: dict[tuple[str, str], Poses] = {}
        for key, value in group.group("static_poses").attributes().items():
            self._static[self._frames(key)] = self._matrices(key, value, "pose")
        for key, value in group.group("dynamic_poses").attributes().items():
            matrices = self._matrices(key, value, "poses")
            with damaged(self._file, f"poses {key}"):
                times = np.asarray(value["timestamps_us"], np.int64) * 1000
            if times.shape != matrices.shape[:1] or np.any(np.diff(times) <= 0):
                raise self._error(key, "times do not increase, one for each pose")
            self._moving[self._frames(key)] = Poses(times, matrices)

    def chain(self, frame: str) -> Chain:
        """Finds a frame in the world.

        Raises:
            CaptureError: No chain of poses leads to the world, or it moves twice.
        """
        steps = self._path(frame)
        if steps is None:
            known = [str(edge) for edge in (*self._static, *self._moving)]
            raise CaptureError(
                self._file,
                "poses",
                f"no chain of poses leads from {frame!r} to {WORLD!r}",
                f"add ({frame!r}, {RIG!r}) or ({frame!r}, {WORLD!r}) to {listed(known) or 'none'}",
            )
        body, mount, poses, after = frame, np.eye(4), None, np.eye(4)
        for source, target in steps:
            moving = self._moving_pose(source, target)
            if moving is None:
                matrix = self._static_pose(source, target)
                mount, after = (matrix @ mount, after) if poses is None else (mount, matrix @ after)
            elif poses is not None:
                raise CaptureError(
                    self._file,
                    "poses",
                    f"{frame!r} moves on {source!r}, which moves itself",
                    "store its poses in the world",
                )
            else:
                body, poses = source, moving
        if poses is None:
            return Chain(frame, np.eye(4), Poses(np.zeros(1, np.int64), mount[None]))
        return Chain(body, mount, Poses(poses.times, after @ poses.world_from_body))

    def known(self, frame: str) -> bool:
        """Whether a chain of poses leads from a frame to the world."""
        return self._path(frame) is not None

    def _path(self, frame: str) -> list[tuple[str, str]] | None:
        edges = [*self._static, *self._moving]
        paths: dict[str, list[tuple[str, str]]] = {frame: []}
        queue = [frame]
        while queue:
            at = queue.pop(0)
            if at == WORLD:
                return paths[at]
            for source, target in [*edges, *((target, source) for source, target in edges)]:
                if source == at and target not in paths:
                    paths[target] = [*paths[at], (source, target)]
                    queue.append(target)
        return None

    def _static_pose(self, source: str, target: str) -> Float64[np.ndarray, "4 4"]:
        if (source, target) in self._static:
            return self._static[source, target]
        return inverse_of(self._static[target, source])

    def _moving_pose(self, source: str, target: str) -> Poses | None:
        if (source, target) in self._moving:
            return self._moving[source, target]
        back = self._moving.get((target, source))
        return None if back is None else Poses(back.times, inverse_of(back.world_from_body))

    def _frames(self, key: str) -> tuple[str, str]:
        try:
            source, target = ast.literal_eval(key)
        except (ValueError, SyntaxError, TypeError) as error:
            raise self._error(key, "no pair of frames") from error
        return str(source), str(target)

    def _matrices(self, key: str, value: Any, field: str) -> np.ndarray:
        try:
            matrices = np.asarray(value[field], np.float64)
        except (KeyError, TypeError, ValueError) as error:
            raise self._error(key, f"no {field}") from error
        turned = matrices[..., :3, :3] if matrices.shape[-2:] == (4, 4) else np.zeros((3, 3))
        with np.errstate(over="ignore", invalid="ignore"):
            off = np.abs(turned @ np.swapaxes(turned, -1, -2) - np.eye(3)).max(initial=0)
        mirrored = np.any(np.linalg.det(turned) < 0) if off < 1e-3 else False
        if not off < 1e-3 or mirrored or not (np.abs(matrices) < 1e12).all():
            raise self._error(key, f"a pose is not rigid (by {off:.2g})")
        # float32 in the file: the nearest rotation, for inverses to be exact.
        left, _, right = np.linalg.svd(turned)
        exact = matrices.copy()
        exact[..., :3, :3] = left @ right
        return exact

    def _error(self, key: str, found: str) -> CaptureError:
        return CaptureError(self._file, f"poses {key}", found, "export the sequence again")
