"""The fixtures of this folder: kernels that cheat or are wrong, kernels that are honest, and what the judge must say of each.

A cheating file says `// KIND n: what it does` (n of KINDS in test_cheats.py), `// TASK name` (a file in tasks/) and
`// EXPECT status|status: pattern` (the pattern is searched in the message); an honest one says `// HONEST what is odd about it` and `// TASK name`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from evokernel.kernelfile import make_kernel
from evokernel.records import Kernel, Status, Verdict

HERE = Path(__file__).parent
FOLDERS = {"cpp": ("cpp", "honest"), "cuda": ("cu", "honest_cu")}


@dataclass(frozen=True)
class Fixture:
    """One file. `kind`: a number of KINDS, 0 for an honest kernel; `statuses` and `pattern`: what the verdict must be and say."""

    file: Path
    kind: int
    task: Path
    statuses: tuple[str, ...]
    pattern: str

    @property
    def name(self) -> str:
        return self.file.stem

    @property
    def kernel(self) -> Kernel:
        return make_kernel(self.file.read_text(), "cuda" if self.file.suffix == ".cu" else "cpp")

    @property
    def refused(self) -> bool:
        """Whether loader or compiler must refuse it, so that no device is needed to see that."""
        return set(self.statuses) <= {Status.INVALID.value, Status.BUILD_FAILED.value}

    def as_expected(self, verdict: Verdict) -> bool:
        """Rejected for the reason it names, or, if honest, verified."""
        return verdict.status.value in self.statuses and re.search(self.pattern, verdict.message) is not None


def fixtures(target: str) -> list[Fixture]:
    """All fixtures of a target, cheating ones first, in the order of their tasks and names.

    Raises:
        ValueError: a file lacks a line that says what it is, or names a task that is not there.
    """
    found = [_read(file, cheats=number == 0) for number, folder in enumerate(FOLDERS[target]) for file in sorted((HERE / folder).iterdir())]
    return sorted(found, key=lambda f: (not f.kind, f.task.name, f.name))


def _read(file: Path, *, cheats: bool) -> Fixture:
    text = file.read_text()
    kind = re.search(r"^// KIND (\d+): \S" if cheats else r"^// HONEST (?=\S)", text, re.MULTILINE)
    task = re.search(r"^// TASK (\w+)$", text, re.MULTILINE)
    expected = re.search(r"^// EXPECT ([\w|]+)(?:: (.+))?$", text, re.MULTILINE)
    if not (kind and task and bool(expected) == cheats and (HERE / "tasks" / f"{task[1]}.py").exists()):
        raise ValueError(f"{file}: needs `// KIND n: ...`, `// TASK name` and `// EXPECT status: pattern`, or `// HONEST ...` and `// TASK name`")
    statuses = tuple(expected[1].split("|")) if expected else (Status.VERIFIED.value,)
    return Fixture(file, int(kind[1]) if cheats else 0, HERE / "tasks" / f"{task[1]}.py", statuses, (expected[2] or "") if expected else "")
