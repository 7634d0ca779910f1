"""What the compiled form of a cuda kernel may not hold, and why.

Guards against: variables of the candidate's own that survive a launch, managed memory, device-side allocation, printing and assertions,
clocks and launch counters, cache policies that outlive a launch. Looks at PTX and at the symbols of the cubin, so macros and inline assembly
hide nothing. Does not guard against state in places that have no symbol (constant memory written through a generic address, residue of
local or shared memory), nor against a constant that is written through a cast, nor against all disguises of a function-local static: a
judge that gives each call fresh data and poisoned buffers, and verifies what it times, stands behind those.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Sequence

from ..kernelfile import KernelFileError
from ..kernelfile.scan import tokens
from .cuda_arguments import demangled
from .cuda_source import refuse
from .nvrtc import STATE, Compilation, errors_of
from .objectfile import SHF_EXECINSTR, STT_OBJECT, ObjectFile
from .refusals import plain_name

_STT_FUNC = 2
_SCRATCH = "declare `// @scratch NAME dtype [dims]` in the plan and take it as an argument"
_CACHE = "what a launch leaves in L2 on purpose is refused; __ldcs, __stcs and plain loads are fine"
_PTX = (  # pattern of the PTX, message, words and string literals of the source
    (r"%clock(?:64|_hi)?\b|%globaltimer", "a kernel has no clock; remove it",
     ("clock", "clock64", "__clock", "__clock64", "globaltimer", "__globaltimer", "high_resolution_clock", "system_clock"), r"%clock|%globaltimer"),
    (r"%pm\d|%gridid\b|%current_graph_exec\b", "counters of launches and of the profiler are refused", (), r"%pm|%grid|%curr"),
    (r"(?<![\w$%.])createpolicy\b|\.L2::cache_hint\b|\.L2::evict_last\b|(?<![\w$%.])applypriority\b", _CACHE,
     ("createpolicy", "__nv_associate_access_property", "annotated_ptr", "access_property", "associate_access_property", "apply_access_property"),
     r"createpolicy|L2::|applypriority"),
    (r"\.attribute\(\s*\.managed\s*\)", f"managed memory survives a launch; {_SCRATCH}", ("__managed__", "managed"), "managed"),
)  # fmt: skip
_CALLS = (
    (re.compile(r"malloc|free|_Zn[wa]\w+|_Zd[la]\w+"), f"allocation in a kernel is refused; {_SCRATCH}", ("malloc", "free", "new", "delete")),
    (re.compile(r"v?printf|puts"), "a kernel prints nothing; remove it", ("printf", "vprintf", "puts")),
    (re.compile(r"__assert_?fail"), "a kernel has no assertions; remove them", ("assert", "__assert_fail", "__assertfail")),
    (re.compile(r"cuda\w+"), "a kernel launches nothing; describe launches in plan lines", ()),
)
# Tables that the compiler's own math library brings.
_MATH_TABLES = re.compile(r"__cudart_(?:i2opi_[fd]|sin_cos_coeffs)")
_VECTORS = [f"{t}{n}" for t in ("char uchar short ushort int uint long ulong longlong ulonglong float double".split()) for n in (1, 2, 3, 4)]  # noqa: SIM905
# Constant is: a const number, vector or object without members, or an array of them. A class of the file's own could have mutable members.
_TRAIT = "\n".join([
    "template <class T> struct evokernel_plain { static constexpr bool value = !__is_union(T) && (!__is_class(T) || __is_empty(T)); };",
    *(f"template <> struct evokernel_plain<::{v}> {{ static constexpr bool value = true; }};" for v in _VECTORS),
    "template <class T> struct evokernel_fixed { static constexpr bool value = false; };",
    "template <class T> struct evokernel_fixed<const T> { static constexpr bool value = evokernel_plain<T>::value; };",
    "template <class T> struct evokernel_fixed<const volatile T> { static constexpr bool value = false; };",
    "template <class T, unsigned long N> struct evokernel_fixed<T[N]> : evokernel_fixed<T> {};",
    "template <class T, unsigned long N> struct evokernel_fixed<const T[N]> : evokernel_fixed<const T> {};",
    "template <class T, unsigned long N> struct evokernel_fixed<const volatile T[N]> { static constexpr bool value = false; };",
    "template <int I, class T> struct evokernel_constant { static_assert(evokernel_fixed<T>::value); };",
])  # fmt: skip
_FEATURES = (
    ("tensor_cores", r"\b(?:wmma|mma|wgmma|tcgen05)\.\w"), ("wgmma", r"\bwgmma\."), ("tcgen05", r"\btcgen05\."), ("async_copies", r"\bcp\.async"),
    ("bulk_copies", r"\bcp\.(?:reduce\.)?async\.bulk"),
    ("vector_loads", r"\bld\.(?!local|shared|param)[\w.:]*v[248]\."),
    ("vector_stores", r"\bst\.(?!local|shared|param)[\w.:]*v[248]\."),
    ("shuffles", r"\bshfl\."), ("warp_reductions", r"\bredux\."), ("atomics", r"\b(?:atom|red)\.(?!async)"),
    ("shared_memory", r"\b(?:ld|st)\.shared"),
    ("barriers", r"\bmbarrier\."), ("clusters", r"\bbarrier\.cluster|\bmapa\."), ("fp64", r"\b(?:fma|add|mul)\.rn\.f64"),
    ("half", r"\b\w+\.(?:\w+\.)*(?:f16|bf16)(?:x2)?\b"),
)  # fmt: skip


def check_instructions(ptx: str, code: str) -> None:
    """Refuse by the PTX, which holds inline assembly as it was written.

    Raises:
        KernelFileError: with the source line where it can be known, and what to do instead.
    """
    for pattern, message, words, strings in _PTX:
        if found := re.search(pattern, ptx):
            raise refuse(f"{found.group().strip('. ')} is refused: {message}", code, words, strings)


def check_calls(cubin: ObjectFile, code: str) -> None:
    """Refuse functions that are not in the cubin: the device runtime's.

    Raises:
        KernelFileError: with the source line where it can be known.
    """
    for symbol in cubin.symbols:
        if symbol.section == 0 and symbol.kind == _STT_FUNC:
            name = plain_name(symbol.name)
            reason = next((r for r in _CALLS if r[0].fullmatch(symbol.name)), None)
            message, words = reason[1:] if reason else ("define it in this file", ())
            raise refuse(f"{name} is not allowed: {message}", code, (*words, name))


def check_state(cubin: ObjectFile, made: Compilation, code: str, ask: Callable[[str], Compilation]) -> None:
    """Refuse variables in global memory that are used and not constant. `ask` compiles the same unit with more text behind it: the compiler
    itself says which types are const.

    Raises:
        KernelFileError: a writable variable, at its first use in the source.
    """
    uses = Counter(re.findall(r"[\w$]+", made.ptx))
    # Headers bring hundreds that no instruction names; one that PTX does not know at all comes from inline assembly.
    names = [n for n in _global_variables(cubin) if uses[n] != 1 and not _MATH_TABLES.fullmatch(n)]
    for name in names:
        if name.startswith("_ZZ") and not _declared_constant(_last_name(name), code):
            raise _state_refused(name, code)
    names = [n for n in names if not n.startswith("_ZZ")]
    if not names:
        return
    answer = ask(_questions(names))
    if answer.ok:
        return
    for file, line, _, text in errors_of(answer.log):
        said = re.search(rf"at line (\d+) of {STATE}", text)
        number = line if file == STATE else int(said[1]) if said else 0
        if 1 <= number <= len(names):
            raise _state_refused(names[number - 1], code)
    raise KernelFileError("the variables in global memory could not be checked; use `constexpr`, `__constant__` tables or parameters instead")


def _global_variables(cubin: ObjectFile) -> list[str]:
    """Symbols of the variables that stand in writable device memory, sorted."""
    of_a_launch = (".nv.shared", ".nv.local", ".nv.reservedSmem", ".nv.constant")
    sections = {i for i, s in enumerate(cubin.sections) if s.writable and not s.name.startswith(of_a_launch)}
    return sorted({s.name for s in cubin.symbols if s.section in sections and s.kind == STT_OBJECT})


def _questions(names: Sequence[str]) -> str:
    """Explicit instantiations that fail where a variable can be written; they may name private members. No macro of the file reaches them."""
    asked = [f'#line {i} "{STATE}"\ntemplate struct evokernel_constant<{i}, decltype(::{_spelled(n)})>;' for i, n in enumerate(names, start=1)]
    words = sorted(set(re.findall(r"[A-Za-z_]\w*", "\n".join([_TRAIT, *asked]))) - {"line"})
    return "\n".join([*(f"#undef {w}" for w in words), _TRAIT, *asked])


def _spelled(name: str) -> str:
    return re.sub(r"\(anonymous namespace\)::|_INTERNAL_\w+::", "", demangled(name))


def _last_name(symbol: str) -> str:
    """`S::v<int>` is v; a name from inline assembly loses what ptxas added."""
    name = _spelled(symbol)
    while (shorter := re.sub(r"<[^<>]*>|\([^()]*\)", "", name)) != name:
        name = shorter
    return re.sub(r"^\$__|__\d+$", "", name.rsplit("::", 1)[-1]) if symbol.startswith("$") else name.rsplit("::", 1)[-1]


def _declared_constant(name: str, code: str) -> bool:
    """Whether every `static` declaration of a name in the code says that it is constant."""
    statement: list[str] = []
    seen = constant = 0
    for token in tokens(code):
        if token.kind in ("comment", "space", "newline", "splice"):
            continue
        if token.text in (";", "{", "}"):
            statement = []
            continue
        if token.text == name and "static" in statement and "=" not in statement:
            seen += 1
            constant += bool({"const", "constexpr"} & set(statement))
        statement.append(token.text)
    return 0 < seen == constant


def _state_refused(symbol: str, code: str) -> KernelFileError:
    name = _last_name(symbol)
    message = (
        f"{name} is a writable global or static variable, which survives a launch: make it local, or a constexpr or __constant__ number, "
        f"vector or array of those, or {_SCRATCH}"
    )
    return refuse(message, code, (name, "static", "__device__"), re.escape(name))


def features(ptx: str) -> tuple[str, ...]:
    """Instruction families seen in the PTX, sorted."""
    return tuple(sorted(name for name, pattern in _FEATURES if re.search(pattern, ptx)))


def code_hash(cubin: ObjectFile, entries: Sequence[str]) -> str:
    """Hash of code and constants without names: the kernels in the order of `entries`, then the rest by content; 16 hex digits."""
    ordered, others = [], []
    index_of = {f".text.{name}": i for i, name in reversed(list(enumerate(entries)))}
    for section in cubin.sections:
        data = section.size.to_bytes(8, "little") + cubin.bytes_of(section)
        if section.flags & SHF_EXECINSTR and section.name in index_of:
            ordered.append((index_of[section.name], data))
        elif section.flags & SHF_EXECINSTR or re.match(r"\.nv\.(constant[^0]|global)", section.name):
            others.append(data)
    sha = hashlib.sha256()
    for data in [d for _, d in sorted(ordered)] + sorted(others):
        sha.update(data)
    return sha.hexdigest()[:16]
