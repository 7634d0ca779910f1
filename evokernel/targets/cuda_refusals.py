"""What the compiled form of a cuda kernel may not hold, and why.

Guards against: variables that a launch could write and that survive it (constants and parameters of kernels too), managed memory, device-side
allocation, printing and assertions, clocks and launch counters, cache policies that outlive a launch. Looks at PTX and at the symbols of the cubin,
so macros, casts and inline assembly hide nothing. Does not guard against state in places that nothing in PTX names (addresses that are guessed or
searched for, code, residue of local or shared memory): a judge that poisons buffers, times some calls on inputs that the kernel has not met, and
verifies what it times, stands behind those.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from ..kernelfile import KernelFileError
from .cuda_arguments import demangled
from .cuda_source import refuse
from .objectfile import SHF_EXECINSTR, ObjectFile
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
_NAME = re.compile(r"(?<![\w$%.])[%$A-Za-z_][\w$]*")  # of an operand
_STATEMENT = re.compile(r"\s*(?:[%$\w]+\s*:(?!:)\s*)*(?:@!?\s*[%$\w]+\s*)?([\w.:]*)(.*)", re.DOTALL)  # labels, a guard, the operation, its operands
# What leaves an address one and tells nothing of its bits, and which of the sources may be it; not with a carry, not as a float.
_MOVES = {"mov": {0}, "cvta": {0}, "add": {0, 1}, "sub": {0}, "mad": {2}, "selp": {0, 1}}
_MOVE = re.compile(r"(mov|cvta|add|sub|mad|selp)\.(?!.*(?:\bcc\b|f\d))")
_FEATURES = (
    ("tensor_cores", r"\b(?:wmma|mma|wgmma|tcgen05)\.\w"), ("wgmma", r"\bwgmma\."), ("tcgen05", r"\btcgen05\."), ("async_copies", r"\bcp\.async"),
    ("bulk_copies", r"\bcp\.(?:reduce\.)?async\.bulk"),
    ("vector_loads", r"\bld\.(?!local|shared|param)[\w.:]*v[248]\."),
    ("vector_stores", r"\bst\.(?!local|shared|param)[\w.:]*v[248]\."),
    ("shuffles", r"\bshfl\."), ("warp_reductions", r"\bredux\."), ("atomics", r"\b(?:atom|red)\.(?!async)"),
    ("shared_memory", r"\b(?:ld|st)\.shared"),
    ("barriers", r"\bmbarrier\.|\bbar(?:rier)?(?:\.cta)?\.arrive\b"), ("clusters", r"\bbarrier\.cluster|\bmapa\."),
    ("fp64", r"\b(?:fma|add|mul)\.rn\.f64"),
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


def check_state(ptx: str, code: str) -> None:
    """Refuse what could write a variable that outlives a launch, a constant or a kernel's parameter: such an address is only read from, and
    nothing but an offset is added to it. How the source declares and spells the variable does not matter.

    Raises:
        KernelFileError: the first instruction that does more, at the variable's first use in the source.
    """
    kept, bodies = _statements(ptx, code)
    for body in bodies:
        holds, known = {name: name for name in kept}, 0  # a variable, or a register with its address -> the variable
        while known != len(holds):
            known = len(holds)
            for operation, operands in body:
                found = [holds[n] for n in _NAME.findall(operands) if n in holds]
                if not found or operation.startswith("ld."):
                    continue
                target, *sources = operands.split(",")
                at = {i for i, source in enumerate(sources) if not holds.keys().isdisjoint(_NAME.findall(source))}
                move = _MOVE.match(operation)
                if not move or not at <= _MOVES[move[1]] or (len(at) > 1 and move[1] != "selp") or "(" in operands:
                    raise _state_refused(found[0], f"`{operation or operands.strip()[:40]}` does more", code)
                if at:
                    holds.update((n, found[-1]) for n in _NAME.findall(target) if n not in holds)


def _statements(ptx: str, code: str) -> tuple[set[str], list[list[tuple[str, str]]]]:
    """What outlives a launch: variables in global and constant memory, and kernels' parameters. And each function's instructions with operands.

    Raises:
        KernelFileError: the initial value of a variable is an address.
    """
    text = re.sub(r'"[^"]*"|//[^\n]*|/\*.*?\*/', " ", ptx, flags=re.DOTALL)  # PTX strings know no escapes, its comments no line continuation
    for _ in range(2):
        text = re.sub(r"\{([^{};]*)\}", r"(\1)", text)  # vectors and initial values; the braces that stay are scopes
    kept: set[str] = set()
    bodies: list[list[tuple[str, str]]] = [[]]
    depth = 0
    for piece in re.findall(r"[{}]|[^;{}]+", text):
        depth += (piece == "{") - (piece == "}")
        if piece == "}" and not depth:
            bodies.append([])
        operation, operands = _STATEMENT.findall(piece)[0]
        if not operation.startswith("."):
            bodies[-1].append((operation, operands))
        if re.search(r"(?<!\w)\.(?:global|const|entry)\b", piece):
            declared, _, value = piece.partition("=")
            kept.update(names := _NAME.findall(declared))
            if names and _NAME.search(value):
                raise _state_refused(names[0], "it holds an address", code)
    return kept, bodies


def _state_refused(symbol: str, reason: str, code: str) -> KernelFileError:
    """About the variable itself, which is the last name of `S::v<int>`, or about a kernel's parameter."""
    parameter = re.fullmatch(r"(_Z.+)_param_\d+", symbol)
    name = demangled(parameter[1] if parameter else symbol)
    while (shorter := re.sub(r"<[^<>]*>|\([^()]*\)", "", name)) != name:
        name = shorter
    name = name.rsplit("::", 1)[-1].removeprefix("void ")
    what = f"a parameter of {name}" if parameter else name
    message = f"{what} survives a launch and may only be read where it is named, as in TABLE[i]; {reason}: make it local, or {_SCRATCH}"
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
