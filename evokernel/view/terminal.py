"""What a person sees in a terminal: progress while a run works, and what came of it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.status import Status as Spinner

from ..archive.runs import Asked, Confirmed, Failed, Judged, Logged, Started
from ..records import Interval, Status, Task, Verdict
from ..records.profile import profile
from ..search.run import RunResult
from ..search.state import State

_PHASES = {
    "import": "importing the task", "init": "constructing Model", "inputs": "drawing inputs", "forward": "running the reference",
    "truth": "computing the truth in float64 and trying trivial candidates", "baselines": "compiling and timing the baselines",
    "ready": "ready to judge", "gpu": "waiting for the GPU: another judge holds it",
}  # fmt: skip


def shown(interval: Interval) -> str:
    """A speedup with its 99 % interval."""
    return f"{interval.mid:.3f}x [{interval.low:.3f}, {interval.high:.3f}]"


class Progress:
    """Lines on stderr as a run goes on, and a spinner with the current step where stderr is a terminal."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._spinner: Spinner | None = self._console.status("starting") if sys.stderr.isatty() else None
        self._last = ""

    def __enter__(self) -> Progress:
        if self._spinner:
            self._spinner.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._spinner:
            self._spinner.stop()

    def phase(self, name: str) -> None:
        """The judge is now doing this."""
        text = _PHASES.get(name, name)
        if text == self._last:
            return
        self._last = text
        if self._spinner:
            self._spinner.update(text)
        elif name in ("import", "truth", "baselines", "ready", "gpu"):
            self._print(text)

    def event(self, logged: Logged, state: State) -> None:
        """The run took this step."""
        event = logged.event
        if isinstance(event, Started):
            self._print(f"task {event.task_id} on {event.device.name}; {len(event.stones)} stepping stones to try")
        elif isinstance(event, Asked) and self._spinner:
            self._spinner.update(f"{event.proposal.operator} ({state.candidates} measured)")
        elif isinstance(event, Judged):
            self._print(self._judged(event, state))
        elif isinstance(event, Confirmed):
            self._print(f"after a second measurement, in a fresh process with new inputs: {outcome(event.verdict)}")
        elif isinstance(event, Failed):
            self._print(f"stopped by {event.kind}: {event.message}")

    def _judged(self, event: Judged, state: State) -> str:
        where = f"#{event.number:<3} {event.verdict.kernel_id[:8] or '-':8}"
        return f"{where} {event.placement.value:9} {outcome(event.verdict)}"

    def _print(self, text: str) -> None:
        self._console.print(escape(text))


def outcome(verdict: Verdict) -> str:
    """A verdict in one line."""
    speedup = verdict.speedup
    if speedup and verdict.timing:
        return f"{verdict.time_us:.1f} us, {shown(speedup)} against {verdict.timing.scored.fastest.name}{', by force' * verdict.environment.forced}"
    first = verdict.message.strip().splitlines()[0] if verdict.message.strip() else ""
    return f"{verdict.status.value}: {first}"


def summary(found: RunResult, task: Task, path: Path | None) -> str:
    """What a run came to, and what to do next."""
    lines = [f"run {found.run_id} ended: {found.reason}. {found.candidates} kernels measured."]
    verdict = found.verdict
    if verdict is None or verdict.timing is None or found.best is None:
        lines.append("No kernel was verified.")
    else:
        proof = "measured twice, the lower counts" if found.confirmed else "measured once so far"
        lines.append(f"best kernel {found.best.id} for {task.name}: {verdict.time_us:.1f} us {verdict.timing.score} ({proof})")
        for baseline in sorted(verdict.timing.scored.baselines, key=lambda b: b.median_us):
            lines.append(f"  {shown(baseline.speedup)} against {baseline.name} ({baseline.median_us:.1f} us)")
        weakest = verdict.timing.scored.fastest
        if weakest.speedup.low < 1:
            lines.append(f"not shown to be faster than {weakest.name}: the interval includes less than 1x")
        lines += [verdict.environment.caveat] * verdict.environment.forced
        lines += [
            f"written to {path}",
            f"next: evokernel archive lineage {found.best.id[:8]}",
            f"      evokernel export module {found.best.id[:8]} {task.name}_fast.py --task {task.id[:8]}",
        ]
    if found.tokens:
        lines.append(f"models used {found.tokens} tokens" + (f", {found.cost_usd:.4f} USD" if found.cost_usd else ""))
    if found.resumable:
        lines.append(f"go on with: evokernel resume {found.run_id}")
    return "\n".join(lines)


def verdict_text(verdict: Verdict) -> str:
    """A verdict for a person: status, message, times, errors."""
    lines = [f"{verdict.status.value} (stage {verdict.stage})", verdict.message]
    if verdict.timing:
        for mode in verdict.timing.modes:
            lines.append(f"{mode.mode}: {mode.median_us:.1f} us (p10 {mode.p10_us:.1f}, p90 {mode.p90_us:.1f}, {mode.calls} calls)")
            lines += [f"  {shown(b.speedup)} against {b.name} ({b.median_us:.1f} us{'' if b.live else ', cached'})" for b in mode.baselines]
        lines.append(f"milestone {verdict.milestone}; weights prepared in {verdict.timing.prepare_us:.0f} us")
    worst = sorted(verdict.errors, key=lambda e: e.max_units / e.budget_units if e.budget_units else e.max_units, reverse=True)
    if worst and verdict.status is Status.VERIFIED:
        row = worst[0]
        lines.append(f"largest error: {row.max_units:.3g} of {row.budget_units:.3g} units ({row.output}, {row.regime})")
        lines.append(profile(verdict).text.partition("\n")[0])
    sanitizer = f", compute-sanitizer {verdict.environment.sanitizer}" if verdict.environment.sanitizer else ""
    lines.append(f"on {verdict.environment.device}, sandbox {verdict.environment.sandbox or 'not started'}{sanitizer}")
    lines += [verdict.environment.caveat] * verdict.environment.forced
    return "\n".join(lines)
