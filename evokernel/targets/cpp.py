"""The `cpp` target: g++ with OpenMP, one shared object a kernel, called through ctypes.

Candidates share the OpenMP runtime that the process has already loaded (torch brings its own): the object is linked without one, and
`load` makes the loaded one's symbols visible first. A second runtime would bring a second pool of threads.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import struct
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from .. import codec
from ..kernelfile.steps import Plan
from ..records import Device, Number, Resources, digest
from . import Artifact, BuildError, canonical_plan
from .compiler import MISSING, PRELUDE_FILE_LIMIT_BLOCKS, gxx, message_of, run_limited, tool
from .objectfile import ObjectFile
from .refusals import check_instructions, check_object, features
from .shims import shim_names, translation_unit
from .workplace import workplace

COMPILE = (
    "-std=c++20", "-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-fno-exceptions", "-fno-rtti",
    "-fno-threadsafe-statics",
    "-fvisibility=hidden", "-fPIC", "-fno-asynchronous-unwind-tables", "-fno-stack-protector", "-fcf-protection=none", "-fno-ident",
    "-fdiagnostics-plain-output", "-fmax-errors=8", "-ftemplate-depth=256", "-w",
)  # fmt: skip
# No start files (they bring constructors), no libgomp (see above), everything bound at load so that no table stays writable.
LINK = (
    "-shared", "-nostartfiles", "-nodefaultlibs", "-Wl,--as-needed,--build-id=none,-z,relro,-z,now,-z,noexecstack",
    "-lmvec", "-lm", "-lc", "-lgcc",
)  # fmt: skip
FLAGS = {"fast_math": "-ffast-math", "unroll_loops": "-funroll-loops", "O2": "-O2", "prefer_vector_width": "-mprefer-vector-width="}
_PRELUDE = Path(__file__).with_name("cpp_prelude.h")
_RULES = Path(__file__).with_name("refusals.py").read_text(encoding="utf-8")  # in the key: what was built under other rules is built anew


class CppTarget:
    """g++ on x86-64 Linux."""

    name = "cpp"
    suffix = ".cpp"
    builds_beside = False

    def available(self) -> str | None:
        if platform.system() != "Linux" or platform.machine() != "x86_64":
            return f"the cpp target needs Linux on x86-64; this is {platform.system()} on {platform.machine()}"
        if tool("g++") is None:
            return MISSING
        return None if tool("objdump") else "objdump is missing: install binutils (Debian and Ubuntu: apt install binutils)"

    def device(self) -> Device:
        """Raises: JudgeError: there is no g++."""
        return Device(_cpu_name(), self.name, _architecture(), len(os.sched_getaffinity(0)), l2_bytes=_l2_bytes())

    def compiler(self) -> str:
        """Raises: JudgeError: there is no g++."""
        return _version()

    def build(self, plan: Plan, dtypes: dict[str, str], directory: Path, device: Device) -> Artifact:
        directory = directory.resolve()
        directory.mkdir(parents=True, exist_ok=True)
        unit, flags = translation_unit(plan, dtypes), compile_flags(plan)
        key = digest(unit, " ".join((*flags, *LINK)), self.compiler(), _architecture(), _PRELUDE.read_text(encoding="utf-8"), _RULES)
        record, shared_object = directory / f"{key}.json", directory / f"{key}.so"
        if record.exists() and shared_object.exists():
            return _finished(codec.loads(Artifact, record.read_text(encoding="utf-8")), shared_object, plan)
        with workplace(directory) as work:
            _compile(unit, plan, flags, _prelude(directory, flags), work)
            artifact = _inspect(work / "kernel.so", plan)
            (work / "record").write_text(codec.dumps(artifact), encoding="utf-8")
            (work / "kernel.so").replace(shared_object)
            (work / "record").replace(record)
        return _finished(artifact, shared_object, plan)

    def load(self, artifact: Artifact) -> CppProgram:
        ctypes.CDLL(_loaded_openmp() or "libgomp.so.1", mode=ctypes.RTLD_GLOBAL)
        library = ctypes.CDLL(artifact.path, mode=os.RTLD_LOCAL | os.RTLD_NOW)
        return CppProgram(library, artifact.functions)


class CppProgram:
    """A loaded shared object: one bound function and one array of slots a launch (see shims.py)."""

    def __init__(self, library: ctypes.CDLL, functions: tuple[str, ...]) -> None:
        self._library = library
        self._launches = []
        for name in functions:
            _, _, tensors, kinds = name.split("_")
            layout = struct.Struct(f"={tensors}Q{kinds.replace('i', 'q').replace('b', 'q')}")
            slots = ctypes.create_string_buffer(max(layout.size, 8))
            function = library[name]
            function.restype = None
            self._launches.append((function, ctypes.byref(slots), layout.pack_into, slots))

    def launch(self, index: int, pointers: Sequence[int], numbers: Sequence[Number]) -> None:
        """Raises: struct.error: the arguments are not of the number and kind that the launch was built for."""
        function, address, pack_into, slots = self._launches[index]
        pack_into(slots, 0, *pointers, *numbers)
        function(address)


def _finished(artifact: Artifact, shared_object: Path, plan: Plan) -> Artifact:
    """The artifact where it stands now. Its hash covers the plan too: the same code launched with other numbers is another measurement."""
    return replace(artifact, path=str(shared_object), code_hash=digest(artifact.code_hash, canonical_plan(plan)))


def compile_flags(plan: Plan) -> tuple[str, ...]:
    asked = [flag.partition("=") for flag in plan.flags]
    return (*COMPILE, *(FLAGS[name] + value for name, _, value in asked))


def _compile(unit: str, plan: Plan, flags: tuple[str, ...], prelude: Path, work: Path) -> None:
    """Raises: BuildError."""
    command = [gxx(), *flags, "-include", str(prelude), "-x", "c++", "-c", "-", "-o", "kernel.o"]
    outcome = run_limited(command, work, unit.encode())
    if outcome.code == 0:
        # -fopenmp is left out here: it would link the OpenMP runtime
        outcome = run_limited([gxx(), "kernel.o", "-o", "kernel.so", *LINK], work)
    if outcome.code != 0:
        raise BuildError(message_of(outcome, plan.code))


def _inspect(built: Path, plan: Plan) -> Artifact:
    """Raises: KernelFileError: the object file holds something that is refused."""
    object_file = ObjectFile(built)
    check_object(object_file, plan.code)
    objdump = tool("objdump")
    if objdump is None:
        raise BuildError("objdump is missing: install binutils")
    listing = run_limited([objdump, "-d", "-M", "intel", "--no-show-raw-insn", built.name], built.parent, said_bytes=1 << 28)
    if listing.code != 0:
        raise BuildError("the compiled code could not be inspected: make the kernel smaller (unroll less)")
    check_instructions(listing.output, plan.code)
    resources = Resources(code_bytes=object_file.code_bytes, features=features(listing.output, object_file))
    return Artifact(built.name, object_file.code_hash(), resources, shim_names(plan))


def _prelude(directory: Path, flags: tuple[str, ...]) -> Path:
    """The header to include first, with a precompiled form beside it where precompiling works."""
    text = _PRELUDE.read_text(encoding="utf-8")
    folder = directory / f"prelude-{digest(text, ' '.join(flags), _version(), _architecture())}"
    header = folder / "prelude.h"
    if header.exists():
        return header
    try:
        with workplace(directory) as work:
            (work / "prelude.h").write_text(text, encoding="utf-8")
            command = [gxx(), *flags, "-x", "c++-header", "prelude.h", "-o", "prelude.h.gch"]
            if run_limited(command, work, file_blocks=PRELUDE_FILE_LIMIT_BLOCKS).code != 0:
                (work / "prelude.h.gch").unlink(missing_ok=True)  # without it the header is read as text: slower, same result
            work.rename(folder)
    except OSError:
        if not header.exists():  # unless another process was first
            raise
    return header


@cache
def _version() -> str:
    with tempfile.TemporaryDirectory() as work:
        return run_limited([gxx(), "--version"], Path(work)).output.split("\n")[0].strip()


@cache
def _architecture() -> str:
    """What -march=native means here: GCC's name, and a hash of the instruction sets that it turns on."""
    with tempfile.TemporaryDirectory() as work:
        options = run_limited([gxx(), "-march=native", "-Q", "--help=target"], Path(work)).output
    name = re.search(r"-march=\s+(\S+)", options)
    settings = sorted(" ".join(line.split()) for line in options.split("\n") if re.match(r"\s+-m\S+\s+(\[enabled\]|\S+$)", line))
    return f"{name.group(1) if name else 'native'}-{digest(*settings)[:8]}"


@cache
def _cpu_name() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match.group(1).strip() if match else platform.machine()


@cache
def _l2_bytes() -> int:
    """Size of one core's second-level cache, 0 where the system does not say."""
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            level, size = ((index / name).read_text(encoding="ascii").strip() for name in ("level", "size"))
        except OSError:
            continue
        if level == "2" and re.fullmatch(r"\d+[KM]", size):
            return int(size[:-1]) * {"K": 1 << 10, "M": 1 << 20}[size[-1]]
    return 0


def _loaded_openmp() -> str | None:
    """The path of the OpenMP runtime that this process has already mapped, if any."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.findall(r"\s(/\S*libgomp[^/\s]*\.so[^/\s]*)$", maps, re.MULTILINE)
    return next((path for path in found if "/torch/" in path), found[0] if found else None)
