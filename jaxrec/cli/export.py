"""`jaxrec export`: the spheres of a run as a file for other programs."""

import pathlib
from collections.abc import Callable

import tyro

from ..io import write_ply
from ..io.ply import Layout
from ..train import convert_shader
from .saved_run import open_run

_PLY = ".ply"


def export_command(
    run: tyro.conf.Positional[pathlib.Path],
    *,
    out: pathlib.Path | None = None,
    layout: Layout = "spheres",
    degree: int | None = None,
) -> Callable[[], None]:
    """Writes the spheres of a run as a PLY file, in world coordinates.

    The shader becomes harmonics of each sphere; what that costs on the held-out views is printed.

    Args:
        run: Run folder that `jaxrec fit` or `jaxrec demo` has made.
        out: The file. By default RUN/spheres.ply or RUN/gaussians.ply.
        layout: `spheres` has a radius and an opacity for each sphere; `gaussians` is what programs
            for 3D Gaussian Splatting open, which show softer rims.
        degree: Of the harmonics, 0 to 3; 0 gives plain colours. By default the run's own.
    """
    if degree is not None and not 0 <= degree <= 3:
        raise ValueError(f"degree: got {degree}, want 0 to 3")
    if out is not None and out.suffix != _PLY:
        raise ValueError(f"out: got {out}, want a name that ends with {_PLY}")
    return lambda: export_run(run, out or run / f"{layout}{_PLY}", layout, degree)


def export_run(path: pathlib.Path, out: pathlib.Path, layout: Layout, degree: int | None) -> None:
    """Converts the newest checkpoint of a run and says what was lost and where the file is."""
    run = open_run(path)
    if degree is None:
        degree = 0 if run.scene.settings.shader == "plain" else run.scene.settings.degree
    found = convert_shader(run.scene, degree, run.capture.test)
    settings = run.scene.settings
    comments = [
        f"jaxrec {layout}, harmonics of degree {degree}",
        f"blended by kind {settings.kind}, gamma {settings.gamma_final or settings.gamma:g}",
    ]
    if run.capture.origin is not None and any(run.capture.origin):
        comments.append("origin in metres: " + " ".join(f"{x:.0f}" for x in run.capture.origin))
    write_ply(out, found.spheres, layout=layout, comments=comments)
    print(found.report())
    print(f"{int(found.spheres.alive.sum())} spheres: {out}")
