"""The rules of the house, checked on the syntax tree: who imports whom, how large things may grow, what may not be written."""

import ast
import tokenize
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "evokernel"
FILES = sorted(PACKAGE.rglob("*.py"))

# Each room may import itself and what is named here (rooms further down).
BOTTOM = {"records", "errors", "codec"}
KERNEL = {"kernelfile", *BOTTOM}
TARGETS = {"targets", *KERNEL}
RUNNER = {"runner", "channel", *TARGETS}
JUDGE = {"judge", "task", *RUNNER}
ARCHIVE = {"archive", "task", *TARGETS}
MODELS = {"models", *KERNEL}
OPERATORS = {"operators", "prompts", *MODELS, *ARCHIVE}
SEARCH = {"search", "judge", "channel", *OPERATORS}
ALLOWED = {
    "records": set(), "errors": set(), "codec": set(), "channel": set(), "kernelfile": KERNEL, "targets": TARGETS, "runner": RUNNER,
    "task": {"task", *BOTTOM}, "judge": JUDGE, "archive": ARCHIVE, "models": MODELS, "prompts": BOTTOM, "operators": OPERATORS, "search": SEARCH,
    "exports": {"exports", *ARCHIVE}, "view": {"view", *SEARCH}, "api": SEARCH,
    "batch": {"api", *SEARCH}, "cli": {"cli", "api", "batch", "view", "exports", *SEARCH}, "__init__": {"api", "archive", "task", "judge"},
    "__main__": {"cli"},
}  # fmt: skip
TORCH_ROOMS = {"task", "judge", "runner", "targets", "exports"}
ENVIRONMENT_ROOMS = {"cli", "view", "api"}
LIMITS = {"file": 400, "function": 60, "parameters": 8, "fields": 14, "package": 15_820}


def room(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def nodes(file: Path) -> list[ast.AST]:
    """All nodes of a file's syntax tree."""
    return list(ast.walk(ast.parse(file.read_text())))


def imported(file: Path) -> set[str]:
    """Rooms of this package that a file imports, wherever in it."""
    found = set()
    depth = len(file.relative_to(PACKAGE).parts)
    for node in nodes(file):
        if isinstance(node, ast.ImportFrom):
            parts = (node.module or "").split(".") if node.module else []
            if node.level == 0 and parts[:1] == ["evokernel"]:
                found |= {parts[1]} if len(parts) > 1 else {a.name for a in node.names}
            elif node.level == depth:
                found |= {parts[0]} if parts else {a.name for a in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("evokernel.")}
    return {f for f in found if f and not f.startswith("__")}


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(PACKAGE)))
def test_a_file_imports_only_its_own_room_and_rooms_below(file: Path) -> None:
    extra = imported(file) - ALLOWED[room(file)] - {room(file)}
    assert not extra, f"{file.name} imports {extra}"


def test_torch_is_imported_only_where_it_may_be() -> None:
    for file in FILES:
        names = {a.name for n in nodes(file) if isinstance(n, ast.Import) for a in n.names}
        names |= {n.module or "" for n in nodes(file) if isinstance(n, ast.ImportFrom) and n.level == 0}
        uses_torch = any(n == "torch" or n.startswith("torch.") for n in names)
        assert not uses_torch or room(file) in TORCH_ROOMS, f"{file} imports torch"


def test_only_the_command_line_and_views_read_the_environment() -> None:
    for file in FILES:
        if room(file) in ENVIRONMENT_ROOMS or file.name == "dropin.py":
            continue
        for node in nodes(file):
            reads = isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv") and getattr(node.value, "id", "") == "os"
            if reads and file.name == "baselines.py":
                continue  # sets a baseline child's environment to the one it was sent
            assert not reads, f"{file}:{node.lineno} reads the environment"


def test_only_the_command_line_and_views_print() -> None:
    for file in FILES:
        if room(file) in ENVIRONMENT_ROOMS:
            continue
        calls = [n for n in nodes(file) if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "print"]
        assert not calls, f"{file} prints"


def test_sizes() -> None:
    total = 0
    for file in FILES:
        text = file.read_text()
        lines = len(text.splitlines())
        total += code_lines(file)
        assert lines <= LIMITS["file"], f"{file} has {lines} lines"
        for node in nodes(file):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or 0) - node.lineno + 1
                assert length <= LIMITS["function"], f"{file}:{node.lineno} {node.name} has {length} lines"
                count = len(node.args.args) + len(node.args.kwonlyargs)
                # A command's parameters are its options.
                assert count <= LIMITS["parameters"] + 1 or room(file) == "cli", f"{file}:{node.lineno} {node.name} has {count} parameters"
            if isinstance(node, ast.ClassDef) and any("dataclass" in ast.unparse(d) for d in node.decorator_list):
                fields = [n for n in node.body if isinstance(n, ast.AnnAssign)]
                assert len(fields) <= LIMITS["fields"], f"{file}:{node.lineno} {node.name} has {len(fields)} fields"
    assert total <= LIMITS["package"], f"the package has {total} lines of code"


def code_lines(file: Path) -> int:
    """Lines that carry code: blank lines, comments and docstrings are free, so that nobody saves on explanations."""
    layout = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER}
    with file.open("rb") as handle:
        tokens = list(tokenize.tokenize(handle.readline))
    lines: set[int] = set()
    for before, token, after in zip([tokens[0], *tokens], tokens, [*tokens[1:], tokens[-1]], strict=False):
        docstring = token.type == tokenize.STRING and before.type in layout and after.type == tokenize.NEWLINE
        if token.type not in layout and not docstring:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines)


def test_broad_except_only_at_the_command_line_edge() -> None:
    for file in FILES:
        for node in nodes(file):
            if isinstance(node, ast.ExceptHandler):
                broad = node.type is None or getattr(node.type, "id", "") in ("Exception", "BaseException")
                reraises = any(isinstance(n, ast.Raise) for n in ast.walk(node))
                assert not broad or reraises or file == PACKAGE / "cli" / "__init__.py", f"{file}:{node.lineno} catches everything"


def test_no_record_holds_a_dict_of_anything() -> None:
    for file in FILES:
        for node in nodes(file):
            if isinstance(node, ast.ClassDef) and any("dataclass" in ast.unparse(d) for d in node.decorator_list):
                for item in node.body:
                    assert not (isinstance(item, ast.AnnAssign) and "dict[str, Any]" in ast.unparse(item.annotation)), f"{file}:{item.lineno}"
