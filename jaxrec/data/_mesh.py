"""Triangle meshes of simple solids, in NumPy."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, Int64


@dataclasses.dataclass(frozen=True)
class Mesh:
    """Closed triangle mesh: a row per triangle, so that a corner may differ between its faces.

    Attributes:
        corners: Corner positions in metres, counter-clockwise when seen from outside.
        uv: Texture coordinates at each corner, in repeats of the texture.
        texture: Index of the texture of each triangle.
    """

    corners: Float64[np.ndarray, "triangles 3 3"]
    uv: Float64[np.ndarray, "triangles 3 2"]
    texture: Int64[np.ndarray, " triangles"]

    def moved(self, offset: Sequence[float], *, turn: float = 0.0) -> "Mesh":
        """Returns the mesh turned about the z axis (radians), then moved by `offset` (metres)."""
        c, s = np.cos(turn), np.sin(turn)
        rotation = np.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])
        return dataclasses.replace(self, corners=self.corners @ rotation.T + np.asarray(offset))

    def normals(self, *, crease: float = 0.7) -> Float64[np.ndarray, "triangles 3 3"]:
        """Computes the outward unit normal at each corner.

        Args:
            crease: Faces that meet at more than this angle (radians) keep an edge between them;
                the normals of all others are blended, weighted by area.
        """
        scaled = np.cross(
            self.corners[:, 1] - self.corners[:, 0],
            self.corners[:, 2] - self.corners[:, 0],
        )
        unit = scaled / np.linalg.norm(scaled, axis=-1, keepdims=True)
        positions = np.round(self.corners.reshape(-1, 3), 9) + 0.0
        _, group, count = np.unique(positions, axis=0, return_inverse=True, return_counts=True)
        group = group.reshape(-1)
        corner = np.repeat(np.arange(len(group)), count[group])
        within = np.arange(len(corner)) - np.repeat(
            np.cumsum(count[group]) - count[group], count[group]
        )
        neighbor = np.argsort(group)[(np.cumsum(count) - count)[group[corner]] + within]
        face, other = corner // 3, neighbor // 3
        smooth = (unit[face] * unit[other]).sum(-1) > np.cos(crease)
        normals = np.zeros(positions.shape)
        np.add.at(normals, corner[smooth], scaled[other[smooth]])
        normals /= np.linalg.norm(normals, axis=-1, keepdims=True)
        return normals.reshape(self.corners.shape)


def box(size: Sequence[float], *, texture: int, repeats: float) -> Mesh:
    """Builds a box that stands on the plane z = 0, centred on the z axis.

    Args:
        size: Edge lengths in metres along x, y and z.
        texture: Index of the texture of all faces.
        repeats: Repeats of the texture per metre.
    """
    half = np.asarray(size, float) / 2
    square = np.array([[-1.0, -1.0], [1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]])
    corners, uv = [], []
    for axis, (u, v) in enumerate(((1, 2), (0, 2), (0, 1))):
        for sign in (-1.0, 1.0):
            quad = np.full((4, 3), sign)
            quad[:, [u, v]] = square
            # (u, v, axis) is right-handed for axes x and z only.
            turn = -1 if (sign > 0) == (axis == 1) else 1
            for triangle in ([0, 1, 2][::turn], [0, 2, 3][::turn]):
                corners.append(quad[triangle] * half + [0.0, 0.0, half[2]])
                uv.append(square[triangle] * repeats * half[[u, v]])
    return Mesh(np.array(corners), np.array(uv), np.full(len(corners), texture))


def lathe(
    profile: Sequence[tuple[float, float]],
    *,
    texture: int,
    repeats: tuple[int, float],
    segments: int = 40,
) -> Mesh:
    """Turns a profile about the z axis.

    Args:
        profile: Radius and height of each point in metres, from the bottom to the top; it starts
            and ends with radius 0 where the solid is to be closed.
        texture: Index of the texture.
        repeats: Repeats of the texture once round the solid, and along the profile.
        segments: Number of steps around the axis; 3 or 4 make a prism or a pyramid.
    """
    radius, height = np.asarray(profile, float).T
    angle = np.linspace(0.0, 2 * np.pi, segments + 1)
    angle[-1] = 0.0  # the seam closes to the bit
    x, y = radius[:, None] * np.cos(angle), radius[:, None] * np.sin(angle)
    points = np.stack([x, y, np.broadcast_to(height[:, None], x.shape)], -1)
    length = np.r_[0.0, np.cumsum(np.hypot(np.diff(radius), np.diff(height)))]
    u = np.linspace(0.0, repeats[0], segments + 1)
    v = repeats[1] * length / length[-1]
    return _grid(points, u, v, texture)


def torus(radius: float, thickness: float, *, texture: int, repeats: tuple[int, int]) -> Mesh:
    """Builds a ring that lies on the plane z = 0.

    Args:
        radius: From the axis to the middle of the tube, in metres.
        thickness: Radius of the tube, in metres.
        texture: Index of the texture.
        repeats: Repeats of the texture around the axis and around the tube.
    """
    angle = np.linspace(0.0, 2 * np.pi, 25)
    angle[-1] = 0.0
    profile = np.stack([radius + thickness * np.cos(angle), thickness * (1 + np.sin(angle))], -1)
    rows = [(float(r), float(z)) for r, z in profile]
    turns = (repeats[0], float(repeats[1]))
    return lathe(rows, texture=texture, repeats=turns, segments=48)


def join(meshes: Sequence[Mesh]) -> Mesh:
    """Puts meshes side by side in one."""
    names = [field.name for field in dataclasses.fields(Mesh)]
    return Mesh(**{name: np.concatenate([getattr(m, name) for m in meshes]) for name in names})


def _grid(points, u, v, texture: int) -> Mesh:
    """Triangulates rows (bottom to top) and columns (counter-clockwise from above) of points."""
    uv = np.stack(np.meshgrid(u, v), -1)

    def triangles(grid):
        a, b, c, d = grid[:-1, :-1], grid[:-1, 1:], grid[1:, 1:], grid[1:, :-1]
        pairs = np.stack([np.stack([a, b, c], -2), np.stack([a, c, d], -2)])
        return pairs.reshape(-1, 3, grid.shape[-1])

    corners, corner_uv = triangles(points), triangles(uv)
    normal = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    area = np.linalg.norm(normal, axis=-1)
    solid = area > 1e-9 * area.max()
    return Mesh(corners[solid], corner_uv[solid], np.full(solid.sum(), texture))
