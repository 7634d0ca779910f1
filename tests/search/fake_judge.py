"""A deterministic judge with a synthetic landscape, and the records that the tests of archive, search and operators are made of.

A kernel's time is `constexpr int BASE` (us) plus a penalty for each tunable's distance from its best value (in octaves). `WRONG` in the code is a
mismatch. The baseline takes 1000 us. `CODE` names the compiled code where two texts are to have the same.
"""

from __future__ import annotations

import math
import os
import re
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from evokernel.kernelfile import make_kernel, parse
from evokernel.records import (
    Admission,
    BaselineTime,
    Config,
    Device,
    Environment,
    Interval,
    Kernel,
    ModeTiming,
    Options,
    Resources,
    Role,
    Screen,
    Signature,
    Status,
    Task,
    TensorSpec,
    Timing,
    Verdict,
    config_key,
    contiguous_stride,
    digest,
)  # fmt: skip

DEVICE = Device("Test CPU", "cpp", "x86-64-test", 2)
BASELINE_US = 1000.0
BEST_VALUE = {"CHUNK": 8, "UNROLL": 4, "WIDTH": 16}


def tensor(name: str, role: Role, shape: tuple[int, ...], dtype: str = "float32") -> TensorSpec:
    return TensorSpec(name, role, name, dtype, shape, contiguous_stride(shape))


def make_task(name: str = "relu_rows", source: str = "def forward(self, x): return torch.relu(x)", tensors: Sequence[TensorSpec] = ()) -> Task:
    tensors = tuple(tensors) or (tensor("x", Role.INPUT, (64, 256)), tensor("out", Role.OUTPUT, (64, 256)))
    return Task(digest(name, source), name, f"/somewhere/{name}.py", source, Options(name=name), (Signature(tensors),))


def kernel_text(base: int = 500, *, tunes: str = "CHUNK = 2 in 1 2 4 8 16", extra: str = "", strategy: str = "Rows in chunks, one loop.") -> str:
    lines = "".join(f"// @tune {t}\n" for t in tunes.split(";") if t.strip())
    return (
        f"// {strategy}\n//\n{lines}// @launch relu(x, out, x.numel)\n\nconstexpr int BASE = {base};\n{extra}\n"
        "void relu(const float* x, float* out, long n) { for (long i = 0; i < n; ++i) out[i] = x[i] > 0 ? x[i] : 0; }\n"
    )


def make(text: str) -> Kernel:
    return make_kernel(text, "cpp")


def environment(device: str = DEVICE.name, **versions: str) -> Environment:
    return Environment(device, DEVICE.architecture, "fake 1", "none", versions or {"torch": "2"})


def verified(kernel: Kernel, time_us: float, *, config: Config | None = None, code: str = "", where: Environment | None = None,
             features: tuple[str, ...] = ()) -> Verdict:  # fmt: skip
    ratio = BASELINE_US / time_us
    timing = Timing("cold", (ModeTiming("cold", time_us, time_us, time_us, 9, (
        BaselineTime("eager", BASELINE_US, Interval(ratio * 0.99, ratio, ratio * 1.01), True),)),))  # fmt: skip
    return Verdict(
        Status.VERIFIED, "done", "", kernel.id, config or {}, where or environment(), code_hash=code, timing=timing,
        resources=Resources(features=features), milestone=1,
    )  # fmt: skip


def failed(kernel: Kernel, status: Status = Status.MISMATCH, message: str = "out[3]: expected 1, got nan") -> Verdict:
    return Verdict(status, "correctness", message, kernel.id, {}, environment())


class FakeJudge:
    """See the module. `journal`: a file that gets a line a judged kernel. `slower`: factor on times after a restart."""

    def __init__(self, task: Task | None = None, *, journal: Path | None = None, slower: float = 1.0) -> None:
        self.task = task or make_task()
        self.journal, self.slower = journal, slower
        self.judged: list[str] = []
        self.screened: list[Config] = []
        self.incumbents: list[float | None] = []
        self.restarts = 0
        self.raises: dict[int, BaseException] = {}  # by number of judge calls so far

    def admit(self) -> Admission:
        return Admission(self.task, DEVICE, {"eager": BASELINE_US}, ("normal",), ("zeros",))

    def ahead(self, kernel: Kernel) -> None:
        pass

    def judge(self, kernel: Kernel, *, incumbent_us: float | None = None, patience: float = 1.0) -> Verdict:
        error = self.raises.pop(len(self.judged), None)
        if isinstance(error, KeyboardInterrupt):  # as a person does it: to the process, while the judge works
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.5)
        elif error:
            raise error
        self.judged.append(kernel.id)
        self.incumbents.append(incumbent_us)
        if self.journal:
            with self.journal.open("a") as file:
                file.write(f"{kernel.id}\n")
        config: Config = {t.name: t.default for t in parse(kernel).tunables}
        if "WRONG" in kernel.text:
            return failed(kernel)
        time_us = landscape_us(kernel, config) * (self.slower if self.restarts else 1.0)
        return verified(kernel, time_us, config=config, code=code_hash(kernel, config))

    def screen(self, kernel: Kernel, configs: Sequence[Config]) -> list[Screen]:
        self.screened += configs
        if "WRONG" in kernel.text:
            return [Screen(c, Status.MISMATCH, "out[3]: expected 1, got nan") for c in configs]
        return [Screen(c, Status.VERIFIED, "", landscape_us(kernel, c), code_hash(kernel, c)) for c in configs]

    def restart(self) -> None:
        self.restarts += 1

    def close(self) -> None:
        pass


def landscape_us(kernel: Kernel, config: Config) -> float:
    base = int(re.search(r"BASE = (\d+)", kernel.text)[1])  # type: ignore[index]
    return base + sum(20.0 * abs(math.log2(config[n] / BEST_VALUE[n])) for n in config if n in BEST_VALUE)


def code_hash(kernel: Kernel, config: Config) -> str:
    named = re.search(r"CODE (\w+)", kernel.text)
    return digest(named[1] if named else re.sub(r"//.*", "", kernel.text), config_key(config))
