"""The CPU kernels under the compiler's sanitizers, without Python or XLA in the process."""

import pathlib
import shutil
import subprocess

import pytest

SOURCES = pathlib.Path(__file__).parents[1] / "ffi"
DRIVER = pathlib.Path(__file__).parent / "native" / "blend_blocks.cc"
FILES = [SOURCES / "cpu" / name for name in ("blocks.cc", "prepare.cc", "workspace.cc")]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_kernels_are_clean(tmp_path, sanitizers):
    binary = tmp_path / "blend_blocks"
    command = [
        "g++", "-std=c++17", "-O1", "-g", "-pthread", f"-fsanitize={sanitizers}",
        "-fno-sanitize-recover=all", "-Wno-psabi", "-Wno-ignored-attributes",
        "-DJAXREC_KERNELS=BaselineKernels", '-DJAXREC_ISA="sanitized"', f"-I{SOURCES}",
        *map(str, FILES), str(DRIVER), "-o", str(binary),
    ]  # fmt: skip
    subprocess.run(command, check=True)
    done = subprocess.run([binary], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
