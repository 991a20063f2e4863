"""The architecture, as a test: a module imports only from the layers before its own."""

import ast
import pathlib
import re
import subprocess
import sys

import jaxrec

LAYERS = [
    {"_typing", "_ffi", "_gather"},
    {"geometry", "metrics", "lidar_metrics", "lpips"},
    {"trajectory"},
    {"scene", "sensors"},
    {"rendering", "shading", "losses"},
    {"train", "data", "io"},
    {"cli"},
]
RANK = {part: rank for rank, parts in enumerate(LAYERS) for part in parts}
PACKAGE = pathlib.Path(jaxrec.__file__).parent
SOURCES = pathlib.Path(__file__).parents[1]


def imported_parts(path: pathlib.Path, package: tuple[str, ...]):
    """Top-level parts of `jaxrec` that the file imports, with their line numbers."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            targets = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            stem = [part for part in (*base, *(node.module or "").split(".")) if part]
            targets = [[*stem, alias.name] for alias in node.names]
        else:
            continue
        for target in targets:
            if target[0] == "jaxrec" and len(target) > 1:
                yield target[1], node.lineno


def test_imports_point_down():
    upward = []
    for path in PACKAGE.rglob("*.py"):
        relative = path.relative_to(PACKAGE)
        part = relative.parts[0].removesuffix(".py")
        if part == "__init__":
            continue
        for other, line in imported_parts(path, ("jaxrec", *relative.parent.parts)):
            if other != "__version__" and other != part and RANK[other] >= RANK[part]:
                upward.append(f"{relative}:{line} imports {other}")
    assert not upward, "\n".join(upward)


def test_core_includes_only_itself():
    # ffi/core is shared by all backends: neither XLA nor CUDA is known there.
    foreign = [
        f"{path.name}: {line}"
        for path in (SOURCES / "ffi" / "core").iterdir()
        for line in path.read_text().splitlines()
        if line.startswith("#include") and '"core/' not in line and "<c" not in line
    ]
    assert not foreign


def test_nvcc_sees_neither_xla_nor_python():
    # Their headers take nvcc seconds for each architecture; handlers are plain C++ beside it.
    ffi = SOURCES / "ffi"
    foreign, queue = [], list(ffi.rglob("*.cu"))
    seen = set(queue)
    assert queue
    while queue:
        path = queue.pop()
        for name in re.findall(r'#\s*include\s*["<]([^">]+)[">]', path.read_text()):
            if name.startswith(("xla/", "nanobind/")) or name == "Python.h":
                foreign.append(f"{path.relative_to(ffi)}: {name}")
            elif (ffi / name).is_file() and ffi / name not in seen:
                seen.add(ffi / name)
                queue.append(ffi / name)
    assert not foreign


def test_import_is_light():
    heavy = ("flax", "optax", "orbax", "tyro", "rich", "PIL", "imageio")
    code = (
        "import sys, jaxrec; from jax._src import xla_bridge; "
        f"print([name for name in {heavy} if name in sys.modules], xla_bridge._backends)"
    )
    found = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    )
    assert found.stdout == "[] {}\n"
