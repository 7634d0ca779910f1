"""What the object file of a cpp kernel may not hold, and why.

Guards against: library calls outside a list (memory, files, clocks, threads, processes), code that runs when the file is loaded, state
that survives a launch (writable statics, thread locals, control registers), and system or timer instructions in the straight disassembly.
Does not guard against: a jump into the middle of an instruction, and pointers computed to memory that is not the candidate's; the
sandbox of the runner stands behind those.
"""

from __future__ import annotations

import re

from ..kernelfile import KernelFileError
from ..kernelfile.located import place_at
from ..kernelfile.scan import tokens
from .objectfile import SHF_ALLOC, SHF_EXECINSTR, STT_IFUNC, STT_OBJECT, STT_TLS, ObjectFile

MAX_CODE_BYTES = 1 << 20
_LIBM = (
    "a?(?:sin|cos|tan)h?|atan2|sincos|exp|exp2|exp10|expm1|log|log2|log10|log1p|logb|ilogb|pow|sqrt|cbrt|hypot|erfc?|[tl]gamma|floor|ceil|round|trunc|"
    "roundeven|rint|nearbyint|l?l?rint|ll?round|fmod|remainder|remquo|fma|fmax|fmin|fdim|fabs|copysign|ldexp|frexp|scalbl?n|modf|nextafter|nexttoward|nan"
)
# Entries of OpenMP's library that give kernels memory on its heap, next to which something can be kept from call to call: a task's copies, reductions
# over tasks, prefix sums and last values under a condition (for which the plain loop_start is), iterations that wait for others.
_KEEPING = r"(?:task\w*|parallel_reductions|(?:loop|loop_ull)(?:_ordered)?_start|sections2_start|scope_\w*|workshare_\w*|\w*doacross\w*)"
_ALLOWED = re.compile(
    rf"(?:(?:{_LIBM})[fl]?|__\w+_finite|_ZGV[bcde][NM]\d+\w+|mem(?:cpy|set|move|cmp|chr)|bcmp|strlen|"
    rf"GOMP_(?!parallel_(?:\w+_)?start|parallel_end|{_KEEPING}$)(?:parallel|loop|barrier|critical_(?:start|end)$|atomic_|sections|single_|ordered_|cancel)\w*|"
    r"omp_(?:get_(?!wti)\w+|in_parallel|in_final))_?"
)
_SCRATCH = "declare `// @scratch NAME dtype [dims]` in the plan and take it as an argument"
_HINTS = (
    (re.compile(r"(malloc|calloc|realloc|free|aligned_alloc|posix_memalign|_mm_malloc|omp_alloc|omp_free|GOMP_alloc|GOMP_free)$"), _SCRATCH),
    (re.compile(r"_Zn[wa]|_Zd[la]"), _SCRATCH),
    (re.compile(r"\w*(printf|puts|putchar|fwrite|write)\w*$"), "a kernel prints nothing; remove it"),
    (re.compile(r"abort$|exit$|_exit$|__assert_fail$|_ZSt\d+__throw|__cxa_"), "a kernel has no exceptions, assertions or exits; remove the check"),
    (re.compile(r"omp_set_|omp_init_|kmp_"), "thread settings and locks are not a kernel's; use clauses such as num_threads(n) or schedule(static)"),
    (re.compile(r"omp_get_wti|\w*(clock|time)\w*$"), "a kernel has no clock; remove it"),
    (
        re.compile(rf"GOMP_{_KEEPING}$"),
        "its memory outlives the call. Instead of tasks, depend, reductions over tasks, scan and ordered(n), write `#pragma omp parallel for`, "
        "with schedule(dynamic) for uneven work, reduction(+ : s) for sums, a switch over the iteration's number for unlike work",
    ),
    (re.compile(r"GOMP_critical_name"), "a named critical section keeps state; use an unnamed one, an atomic or a reduction"),
    (re.compile(r"GOMP_target|GOMP_offload|omp_fulfill_event|GOMP_teams"), "only work on this machine's threads that ends with the call is accepted"),
    (re.compile(r"pthread_|std::thread|clone$|fork$"), "threads come from OpenMP only: #pragma omp parallel"),
)  # fmt: skip
_OPERATORS = {"_Znw": "new", "_Zna": "new", "_Zdl": "delete", "_Zda": "delete"}
_SECTIONS = re.compile(
    r"\.(?:text|plt|rodata|eh_frame|data\.rel\.ro|gnu\.hash|hash|dynsym|dynstr|gnu\.version|gnu\.version_r|rela|dynamic|got|note|relro_padding)"
    r"(?:[._].*)?"
)
_DYNAMIC_CODE = {12, 13, 25, 26, 32}  # DT_INIT, DT_FINI, DT_INIT_ARRAY, DT_FINI_ARRAY, DT_PREINIT_ARRAY
_IRELATIVE = 37
_INSTRUCTIONS = {
    "syscall": "system calls are refused", "sysenter": "system calls are refused", "int": "system calls are refused",
    "rdtsc": "a kernel has no clock", "rdtscp": "a kernel has no clock", "rdpmc": "a kernel has no counters", "rdpru": "a kernel has no counters",
    "rdrand": "results must be repeatable", "rdseed": "results must be repeatable",
    "ldmxcsr": "the floating-point mode survives a launch; use `// @flags fast_math` or handle denormals in code",
    "vldmxcsr": "the floating-point mode survives a launch; use `// @flags fast_math` or handle denormals in code",
    "wrfsbase": "segment registers are refused", "wrgsbase": "segment registers are refused",
    "rdfsbase": "segment registers are refused", "rdgsbase": "segment registers are refused", "wrpkru": "memory keys are refused",
    **dict.fromkeys(
        (f"{name}{wide}" for name in ("xrstor", "xrstors", "fxrstor", "xsave", "xsavec", "xsaveopt", "xsaves", "fxsave") for wide in ("", "64")),
        "processor state is not a kernel's",
    ),
    **dict.fromkeys(("frstor", "fldenv", "fsave", "fnsave", "fstenv", "fnstenv"), "processor state is not a kernel's"),
    **dict.fromkeys(("popf", "popfw", "popfq", "std"), "flags of the processor survive a launch"),
}  # fmt: skip
_SEGMENT = re.compile(r"\b[fg]s:")


def refuse(message: str, code: str, words: tuple[str, ...]) -> KernelFileError:
    """A located error: the first line of `code` that has one of `words`."""
    first: dict[str, int] = {}
    for token in tokens(code):
        if token.kind == "word":
            first.setdefault(token.text, token.offset)
    found = next((first[word] for word in words if word in first), None)
    return KernelFileError(message) if found is None else place_at(code, found).error(message)


def plain_name(symbol: str) -> str:
    """The last plain identifier of a mangled name: `_ZZ3runPfE7counter` is counter; other names as they are."""
    if symbol[:4] in _OPERATORS:
        return _OPERATORS[symbol[:4]]
    if not symbol.startswith("_Z"):
        return symbol
    names, at = [], 0
    while match := re.compile(r"\d+").search(symbol, at):
        at = match.end() + int(match.group()[:4])
        names.append(symbol[match.end() : at])
    return next((n for n in reversed(names) if n.isidentifier()), symbol)


def check_object(object_file: ObjectFile, code: str) -> None:
    """Refuse imports, load-time code and state. `code` is the kernel file's text, to find the line.

    Raises:
        KernelFileError: with the source line where it can be known, and what to do instead.
    """
    if object_file.code_bytes > MAX_CODE_BYTES:
        raise KernelFileError(f"the kernel compiles to {object_file.code_bytes} bytes of code; at most {MAX_CODE_BYTES}: unroll less")
    for symbol in object_file.symbols:
        if symbol.kind in (STT_TLS, STT_IFUNC):
            what = "thread-local variables survive a launch" if symbol.kind == STT_TLS else "functions resolved at load time are refused"
            name = plain_name(symbol.name)
            raise refuse(f"{name}: {what}; use local variables, or {_SCRATCH}", code, (name, "thread_local", "ifunc"))
    for name in object_file.undefined:
        if not _ALLOWED.fullmatch(name):
            raise _import_refused(name, code)
    _check_sections(object_file, code)
    if object_file.dynamic_tags & _DYNAMIC_CODE or any(kind == _IRELATIVE for kind, _ in object_file.relocations):
        raise _load_time_code(object_file, code)


def _import_refused(name: str, code: str) -> KernelFileError:
    plain = plain_name(name)
    hint = next((text for pattern, text in _HINTS if pattern.match(name)), "")
    if not hint:
        hint = "define it in this file; from libraries a kernel may use the math functions, memcpy and the like, and OpenMP"
    shown = f"operator {plain}" if name[:4] in _OPERATORS else plain
    directive = plain.removeprefix("GOMP_").partition("_")[0]  # `#pragma omp task` calls GOMP_task
    return refuse(f"{shown} is not allowed: {hint}", code, (plain, f"__builtin_{plain}", "assert" if "assert" in plain else directive))


def _load_time_code(object_file: ObjectFile, code: str) -> KernelFileError:
    initialised = [s.name.removeprefix("_GLOBAL__sub_I_") for s in object_file.symbols if s.name.startswith("_GLOBAL__sub_I_")]
    words = (*(plain_name(name) for name in initialised), "constructor", "destructor", "ifunc", "_init", "_fini", "init_array", "static")
    return refuse("code that runs when the kernel is loaded is refused: make globals constexpr and do the work in a launch", code, words)


def _check_sections(object_file: ObjectFile, code: str) -> None:
    for index, section in enumerate(object_file.sections):
        if not section.flags & SHF_ALLOC or not section.size:
            continue
        if re.match(r"\.(init|fini|preinit|ctors|dtors)", section.name):
            raise _load_time_code(object_file, code)
        if not _SECTIONS.fullmatch(section.name):
            named = [plain_name(s.name) for s in object_file.symbols if s.section == index and s.kind == STT_OBJECT]
            if section.writable and named:
                message = f"{named[0]} is a writable global or static variable, which survives a launch: make it constexpr or local, or {_SCRATCH}"
                raise refuse(message, code, tuple(named))
            message = f"a section {section.name!r} of its own is refused: keep code and constants where the compiler puts them"
            raise refuse(message, code, ("section", *named, "static"))
        if section.writable and section.flags & SHF_EXECINSTR:
            raise refuse(f"the section {section.name!r} is writable and executable", code, ("section",))


def check_instructions(listing: str, code: str) -> None:
    """Refuse instructions of a disassembly in Intel syntax (`objdump -d -M intel --no-show-raw-insn`).

    Raises:
        KernelFileError: a system, timer or processor-state instruction, or an access through a segment register.
    """
    found: set[str] = set()
    for match in re.finditer(r"^\s*[0-9a-f]+:\t(?:(?:rep\w*|lock|data16|notrack|bnd|cs|ds) )*([a-z]\w*)", listing, re.MULTILINE):
        found.add(match.group(1))
    for name in sorted(found & set(_INSTRUCTIONS)):
        of_flags = ("__writeeflags", "__builtin_ia32_writeeflags_u64", "_mm_setcsr", "_MM_SET_FLUSH_ZERO_MODE", "_MM_SET_DENORMALS_ZERO_MODE")
        words = (f"__{name}", f"_{name}", f"__builtin_ia32_{name}", *of_flags, name)
        raise refuse(f"the instruction {name} is refused: {_INSTRUCTIONS[name]}", code, words)
    if _SEGMENT.search(listing):
        message = "access through a segment register (thread pointer) is refused: use arguments and local variables"
        raise refuse(message, code, ("__builtin_thread_pointer",))


_FEATURES = (
    ("avx512", r"\bzmm\d|\{k[1-7]\}"), ("avx2", r"\bymm\d"), ("fma", r"\tvf(?:n?m(?:add|sub)|maddsub|msubadd)\w*"), ("gather", r"\tvp?gather\w+"),
    ("prefetch", r"\tprefetch\w*"), ("nontemporal", r"\tv?movnt\w+"), ("amx", r"\btmm\d"), ("vnni", r"\tvpdp\w+"),
    ("bf16", r"\tvdpbf16ps|\tvcvtne\w*bf16"),
)  # fmt: skip


def features(listing: str, object_file: ObjectFile) -> tuple[str, ...]:
    """Instruction families and libraries seen in the compiled code, sorted."""
    found = {name for name, pattern in _FEATURES if re.search(pattern, listing)}
    found |= {"openmp"} if any(n.startswith("GOMP_") for n in object_file.undefined) else set()
    found |= {"simd_math"} if any(n.startswith("_ZGV") for n in object_file.undefined) else set()
    return tuple(sorted(found))
