"""The `cuda` target: NVRTC to a cubin, one a kernel file and configuration, launched through cuda.core.

Compiling needs neither a GPU nor a driver nor a CUDA toolkit. cuda.core is imported only by `load`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path

from .. import codec
from ..errors import UsageError
from ..kernelfile import shipped_gpus
from ..kernelfile.steps import Grid, Launch, Plan
from ..records import Device, Resources, digest
from . import Artifact, BuildError, canonical_plan, nvrtc
from .cuda_arguments import misfit, parameters
from .cuda_program import STATIC_SMEM_BYTES, CudaLaunch, CudaProgram
from .cuda_refusals import check_calls, check_instructions, check_state, code_hash, features
from .cuda_source import Source, prepared
from .driver import first_gpu, unavailable
from .objectfile import ObjectFile
from .workplace import workplace

OPTIONS = ("-default-device", "-std=c++20", "-w", "--ptxas-options=-v")
FLAGS = {
    "use_fast_math": "-use_fast_math", "ftz": "-ftz=", "fmad": "-fmad=", "prec_div": "-prec-div=", "prec_sqrt": "-prec-sqrt=",
    "extra_device_vectorization": "-extra-device-vectorization", "maxrregcount": "-maxrregcount=",
}  # fmt: skip
_REGISTERS_PER_BLOCK, _REGISTER_UNIT, _WARP, _BLOCKS_PER_SM = 65536, 256, 32, 32
_RULES = Path(__file__).with_name("cuda_refusals.py").read_text(encoding="utf-8")  # in the key: other rules, built anew
_RESERVED_SMEM_BYTES = 1024  # of each block, by the system


@dataclass(frozen=True)
class Entry:
    """One compiled kernel: mangled name, what a thread and a block of it take, and the block it was declared for (0: any)."""

    symbol: str
    registers: int
    local_bytes: int
    shared_bytes: int
    max_threads: int = 0


@dataclass(frozen=True)
class Build:
    """What is kept of a compilation beside the cubin; `entries` in the order of the plan's launches."""

    code_hash: str
    code_bytes: int
    features: tuple[str, ...]
    entries: tuple[Entry, ...]


class CudaTarget:
    """NVRTC and an NVIDIA GPU."""

    name = "cuda"
    suffix = ".cu"
    builds_beside = True

    def available(self) -> str | None:
        return unavailable() or nvrtc.missing()

    def device(self) -> Device:
        """Raises: UsageError: there is no GPU here."""
        return first_gpu()

    def compiler(self) -> str:
        """Raises: JudgeError: a package is missing."""
        return nvrtc.version()

    def build(self, plan: Plan, dtypes: dict[str, str], directory: Path, device: Device) -> Artifact:
        directory = directory.resolve()
        directory.mkdir(parents=True, exist_ok=True)
        source, names = prepared(plan.code), tuple(launch.function for launch in plan.launches)
        options = _options(plan, source, device.architecture)
        key = digest(source.unit(), "\n".join(names), " ".join(options), nvrtc.version(), _RULES)
        record, cubin = directory / f"{key}.json", directory / f"{key}.cubin"
        if record.exists() and cubin.exists():
            return _finished(codec.loads(Build, record.read_text(encoding="utf-8")), cubin, plan, dtypes, device)
        with workplace(directory) as work:
            build = _compile(source, plan, options, work)
            (work / "record").write_text(codec.dumps(build), encoding="utf-8")
            (work / "kernel.cubin").replace(cubin)
            (work / "record").replace(record)
        return _finished(build, cubin, plan, dtypes, device)

    def load(self, artifact: Artifact) -> CudaProgram:
        return CudaProgram(artifact)


def described(architecture: str) -> Device:
    """The first shipped GPU of an architecture; `sm_100` and `sm_100a` share one.

    Raises:
        UsageError: none is shipped.
    """
    for device in shipped_gpus():
        if device.architecture.rstrip("a") == architecture.rstrip("a"):
            return replace(device, architecture=architecture)
    known = sorted({d.architecture for d in shipped_gpus()})
    raise UsageError(f"no GPU description is shipped for {architecture!r}; known: {', '.join(known)}")


def _options(plan: Plan, source: Source, architecture: str) -> tuple[str, ...]:
    flags = (FLAGS[name] + value for name, _, value in (flag.partition("=") for flag in plan.flags))
    includes = (f"-I{root}" for root in nvrtc.include_roots())
    return (f"-arch={architecture}", *OPTIONS, *flags, *includes, *(("-pch",) if source.headers else ()))


def _compile(source: Source, plan: Plan, options: tuple[str, ...], work: Path) -> Build:
    """Raises: BuildError, KernelFileError."""
    names = list(dict.fromkeys(launch.function for launch in plan.launches))
    lines = [next(launch.line for launch in plan.launches if launch.function == name) for name in names]
    made = nvrtc.compile_source(source.unit(), names, options)
    if not made.ok:
        raise BuildError(nvrtc.message_of(made, plan.code, lines))
    (work / "kernel.cubin").write_bytes(made.cubin)
    cubin = ObjectFile(work / "kernel.cubin")
    check_instructions(made.ptx, plan.code)
    check_calls(cubin, plan.code)
    check_state(made.ptx, plan.code)
    symbols = dict(zip(names, made.lowered, strict=True))
    entries = tuple(_entry(symbols[launch.function], made) for launch in plan.launches)
    return Build(code_hash(cubin, [e.symbol for e in entries]), cubin.code_bytes, features(made.ptx), entries)


def _entry(symbol: str, made: nvrtc.Compilation) -> Entry:
    """What ptxas and the PTX say of one kernel."""
    said = made.log.partition(f"Compiling entry function '{symbol}'")[2].partition("Compiling entry function")[0]
    stack, registers, shared = (
        int(m[1]) if (m := re.search(pattern, said)) else 0
        for pattern in (r"(\d+) bytes cumulative stack", r"Used (\d+) registers", r"(\d+) bytes smem")
    )
    head = re.search(rf"\.entry\s+{re.escape(symbol)}\s*(?:\(.*?\))?([^({{]*)\{{", made.ptx, re.DOTALL)
    bound = re.search(r"\.(?:max|req)ntid ([\d, ]+)", head[1]) if head else None
    threads = 1
    for size in re.findall(r"\d+", bound[1]) if bound else ["0"]:
        threads *= int(size)
    return Entry(symbol, registers, stack, shared, threads)


def _finished(build: Build, cubin: Path, plan: Plan, dtypes: dict[str, str], device: Device) -> Artifact:
    """The artifact for this very plan: its launches fit their kernels and the device, and its numbers are in its hash.

    Raises:
        BuildError: they do not fit.
    """
    launches, most = [], {e.symbol: 0 for e in build.entries}
    for launch, entry in zip(plan.launches, build.entries, strict=True):
        smem_bytes = launch.grid.smem_bytes if launch.grid else 0
        if smem_bytes + entry.shared_bytes > STATIC_SMEM_BYTES:
            most[entry.symbol] = max(most[entry.symbol], smem_bytes)
    for launch, entry in zip(plan.launches, build.entries, strict=True):
        wanted = parameters(entry.symbol)
        if wanted is None:
            raise _at(launch, plan, 'the kernel has C linkage, which hides its parameter types; declare it without extern "C"')
        if problem := misfit(launch, wanted, dtypes) or (_limit(launch.grid, entry, device) if launch.grid else None):
            raise _at(launch, plan, problem)
        launches.append(codec.dumps(CudaLaunch(entry.symbol, "".join(p.code or "P" for p in wanted), launch.grid, most[entry.symbol])))
    entries = build.entries
    occupancies = [_occupancy(launch.grid, entry, device) for launch, entry in zip(plan.launches, entries, strict=True) if launch.grid]
    resources = Resources(
        build.code_bytes, max((e.registers for e in entries), default=0), max((e.local_bytes for e in entries), default=0),
        max((e.shared_bytes for e in entries), default=0), build.features, min(occupancies, default=0.0),
    )  # fmt: skip
    return Artifact(str(cubin), digest(build.code_hash, canonical_plan(plan)), resources, tuple(launches))


def _at(launch: Launch, plan: Plan, problem: str) -> BuildError:
    source = plan.code.split("\n")
    shown = source[launch.line - 1].replace("\t", " ")[:300] if 0 < launch.line <= len(source) else ""
    return BuildError(f"line {launch.line}: error: in this launch: {problem}\n  {shown}")


def _limit(grid: Grid, entry: Entry, device: Device) -> str | None:
    """What of a launch this kernel and device cannot give, None when it fits."""
    threads = math.prod(grid.block)
    if entry.max_threads and threads > entry.max_threads:
        return f"a block of {threads} threads, but the kernel is declared for at most {entry.max_threads} (__launch_bounds__)"
    if _block_registers(threads, entry) > _REGISTERS_PER_BLOCK:
        return (
            f"a block of {threads} threads with {entry.registers} registers each needs more than the {_REGISTERS_PER_BLOCK} registers "
            "of a multiprocessor; use smaller blocks, or __launch_bounds__(threads)"
        )
    if entry.shared_bytes > STATIC_SMEM_BYTES:
        return (
            f"{entry.shared_bytes} bytes of static shared memory; at most {STATIC_SMEM_BYTES} are given: "
            "use `extern __shared__` and the size in <<<grid, block, bytes>>>"
        )
    if entry.shared_bytes + grid.smem_bytes > device.smem_per_block:
        return (
            f"{entry.shared_bytes} bytes of static and {grid.smem_bytes} of dynamic shared memory; "
            f"{device.name} gives {device.smem_per_block} to a block"
        )
    if grid.cluster and device.architecture < "sm_90" and len(device.architecture) == 5:
        return f"clusters need sm_90 or newer; this is {device.architecture}"
    return None


def _block_registers(threads: int, entry: Entry) -> int:
    """Registers a block takes: they are given to whole warps, in units."""
    return -(-entry.registers * _WARP // _REGISTER_UNIT) * _REGISTER_UNIT * -(-threads // _WARP)


def _occupancy(grid: Grid, entry: Entry, device: Device) -> float:
    """The share of a multiprocessor's threads that this launch can keep resident (CUDA programming guide, "Compute Capabilities")."""
    threads = -(-math.prod(grid.block) // _WARP) * _WARP
    shared = entry.shared_bytes + grid.smem_bytes + _RESERVED_SMEM_BYTES
    blocks = min(
        device.max_threads_per_sm // threads, device.regs_per_sm // max(_block_registers(threads, entry), 1),
        (device.smem_per_block + _RESERVED_SMEM_BYTES) // shared, _BLOCKS_PER_SM,
    )  # fmt: skip
    return blocks * threads / device.max_threads_per_sm
