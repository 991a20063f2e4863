"""What each CUDA kernel takes of a multiprocessor, as the table in BUILD.md.

Reads the built library, so it needs no GPU: registers and shared memory of its machine code, and
from the PTX beside it the launch bounds and, through ptxas, the spills.

    JAXREC_CUDA=ON JAXREC_CUDA_ARCHS=90 pip install --no-deps .
    python bench/kernels.py [LIBRARY]
"""

import argparse
import dataclasses
import importlib.util
import math
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator

ARCHITECTURE = "sm_90"
BUILD_MD = pathlib.Path(__file__).parents[1] / "BUILD.md"
BEGIN, END = "<!-- kernels: bench/kernels.py -->", "<!-- end of kernels -->"
UNBOUNDED_THREADS = 256  # threads of a block where a kernel has no launch bounds

# A multiprocessor of compute capability 9.0 and the units in which it hands out its resources:
# CUDA C++ Programming Guide, table of technical specifications, and NVIDIA's occupancy calculator.
REGISTERS, REGISTER_UNIT = 65536, 256  # the latter for each warp
SHARED, SHARED_UNIT, SHARED_RESERVED = 228 * 1024, 128, 1024  # the latter for each block
WARPS, WARP_UNIT, BLOCKS = 64, 4, 32


@dataclasses.dataclass(frozen=True)
class Kernel:
    """Resources of one kernel: registers and bytes of stack of a thread, the rest of a block."""

    name: str
    threads: int
    bounded: bool
    registers: int
    shared: int  # bytes that are declared, without what the system reserves
    stack: int
    spilled: int  # bytes that are stored to the stack for want of registers

    @property
    def resident(self) -> int:
        """Threads that fit a multiprocessor at once."""
        warps = -(-self.threads // 32)
        each = round_up(self.registers * 32, REGISTER_UNIT)
        by_registers = REGISTERS // each // WARP_UNIT * WARP_UNIT // warps
        by_shared = SHARED // round_up(self.shared + SHARED_RESERVED, SHARED_UNIT)
        return 32 * warps * min(BLOCKS, WARPS // warps, by_registers, by_shared)


def round_up(value: int, unit: int) -> int:
    """The least multiple of `unit` that is not below `value`."""
    return -(-value // unit) * unit


def tool(name: str, package: str) -> str:
    """Path of a program of the CUDA toolkit, or of NVIDIA's packages in this environment."""
    site = pathlib.Path(sysconfig.get_path("purelib"))
    beside = [str(path.parent) for path in sorted(site.glob(f"nvidia/cu*/bin/{name}"))]
    # Beside nvcc even if the PATH leads to a script that starts it.
    places = [None, *beside, "/usr/local/cuda/bin"]
    found = next((path for place in places if (path := shutil.which(name, path=place))), None)
    if found is None:
        sys.exit(f"{name}: not found; install the CUDA toolkit or `pip install {package}`")
    return found


def run(*command: str | pathlib.Path, **options) -> str:
    """What a program prints, on both outputs."""
    done = subprocess.run(
        command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout}")
    return done.stdout


def machine_code(library: pathlib.Path) -> dict[str, tuple[int, int, int]]:
    """Registers, shared memory and stack by mangled name."""
    text = run(tool("cuobjdump", "nvidia-cuda-cuobjdump"), "-res-usage", library)
    found = {}
    for part in re.split(r"^Fatbin elf code:", text, flags=re.M):
        if f"arch = {ARCHITECTURE}\n" in part:
            usage = r"Function (\w+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+)"
            for name, registers, stack, shared in re.findall(usage, part):
                own = max(0, int(shared) - SHARED_RESERVED)
                found[name] = int(registers), own, int(stack)
    return found


def compiled_ptx(library: pathlib.Path) -> Iterator[tuple[str, str]]:
    """Each file of PTX in the library, and what ptxas says of it."""
    extract, ptxas = tool("cuobjdump", "nvidia-cuda-cuobjdump"), tool("ptxas", "nvidia-cuda-nvcc")
    with tempfile.TemporaryDirectory() as folder:
        run(extract, "-xptx", "all", library.resolve(), cwd=folder)
        for path in sorted(pathlib.Path(folder).glob(f"*.{ARCHITECTURE}.ptx")):
            said = run(ptxas, "-v", f"--gpu-name={ARCHITECTURE}", path, "-o", "/dev/null")
            yield path.read_text(), said


def read(library: pathlib.Path) -> list[Kernel]:
    """All kernels of the library, ours first."""
    usage, threads, spilled = machine_code(library), {}, {}
    for ptx, said in compiled_ptx(library):
        for entry in re.split(r"\.entry ", ptx)[1:]:
            name = re.match(r"\w+", entry)[0]
            bounds = re.search(r"^\.(?:maxntid|reqntid) ([\d, ]+)", entry.split("{")[0], re.M)
            threads[name] = bounds and math.prod(map(int, bounds[1].split(",")))
        stores = r"properties for (\w+)\s+\d+ bytes stack frame, (\d+) bytes spill stores"
        spilled |= {name: int(size) for name, size in re.findall(stores, said)}
        registers = r"Compiling entry function '(\w+)'(?:.*\n){1,4}?.*Used (\d+) registers"
        for name, count in re.findall(registers, said):
            if int(count) != usage[name][0]:
                sys.exit(f"ptxas is not the one that built {library}: {name} has other registers")
    if not threads:
        sys.exit(
            f"{library}: has no PTX of {ARCHITECTURE}; "
            f"build it with JAXREC_CUDA=ON JAXREC_CUDA_ARCHS={ARCHITECTURE[3:]}"
        )
    kernels = [
        Kernel(short, threads[name] or UNBOUNDED_THREADS, threads[name] is not None, registers,
               shared, stack, spilled[name])
        for (name, (registers, shared, stack)), short in zip(
            usage.items(), short_names(list(usage)), strict=True)
    ]  # fmt: skip
    return sorted(kernels, key=lambda k: (k.name.startswith("cub"), natural(k.name)))


def natural(name: str) -> list:
    """A sort key in which 8 comes before 16."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def short_names(mangled: list[str]) -> list[str]:
    """Names for people, without namespaces and arguments."""
    shorts = []
    for name in run("c++filt", input="\n".join(mangled)).splitlines():
        name = name.removeprefix("void ").replace("(anonymous namespace)::", "")
        if name.startswith("cub::"):
            keys = re.search(r"policy_hub<(unsigned \w+|\w+)", name)
            function = re.match(r"(?:\w+::)*(\w+)", name)[1]
            shorts.append(f"cub {function}" + (f"<{keys[1]}>" if keys else ""))
        else:
            shorts.append(name.split("(")[0].replace("jaxrec::", ""))
    return shorts


def table(kernels: list[Kernel]) -> str:
    """The table in Markdown."""
    version = re.search(r"V[\d.]+", run(tool("ptxas", "nvidia-cuda-nvcc"), "--version"))
    lines = [
        f"{ARCHITECTURE}, ptxas {version[0] if version else '?'}. Shared memory is what is"
        " declared; a launch may add to it. Occupancy is",
        "threads that fit a multiprocessor, of 2048; * marks a block size that is not bound but"
        f" taken to be {UNBOUNDED_THREADS}.",
        "",
        "| kernel | threads | registers | shared B | stack B | spilled B | occupancy |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for k in kernels:
        threads = f"{k.threads}{'' if k.bounded else '*'}"
        share = f"{k.resident} ({k.resident / 20.48:.0f} %)"
        lines.append(
            f"| `{k.name}` | {threads} | {k.registers} | {k.shared} | {k.stack} | {k.spilled} "
            f"| {share} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Rewrites the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", nargs="?", type=pathlib.Path, help="by default the installed")
    library = parser.parse_args().library
    if library is None:
        spec = importlib.util.find_spec("jaxrec._cuda")
        if spec is None or spec.origin is None:
            sys.exit("jaxrec._cuda: not built; see BUILD.md")
        library = pathlib.Path(spec.origin)
    text = BUILD_MD.read_text()
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    BUILD_MD.write_text(f"{before}{BEGIN}\n{table(read(library))}\n{END}{after}")


if __name__ == "__main__":
    main()
