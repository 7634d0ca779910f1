"""One kernel through the judge: parse, build, load, correctness, timing. The only place where a verdict is made."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial

from ..records import BaselineTime, Config, ErrorRow, Interval, Kernel, ModeTiming, Resources, Screen, Status, Timing, Verdict
from .baselines import Baseline
from .bounds import bounds, impossible
from .candidate import Build, Candidate, Loaded
from .contestant import SILENT_ENDS, Failure
from .field import Field
from .memory import SLOTS, plan_specs
from .sanitize import sanitized
from .timed import UNREPEATABLE, Meeting, Remembers, TimedCandidate
from .timing import START_S, Race, quantile, race, race_anew
from .workshop import Workshop

_BESIDE_SHARE = 0.35  # of a race's time, for the mode that does not count
_OUT_OF_RACE = 1.5
_SCREEN_CALLS = 5
_ANEW_US = 1e5  # kernels of longer calls are not started again and again, which would take minutes
_ANEW_SHARE = 0.5  # of the free memory


class Funnel:
    """Judges kernels one after another in one workshop against one field."""

    def __init__(self, shop: Workshop, field: Field) -> None:
        self.shop = shop
        self.field = field
        slowest = max((t for modes in field.times_us.values() for t in modes.values()), default=1e6)
        self._call_limit_s = max(5.0, 50 * slowest / 1e6)

    def judge(self, kernel: Kernel, incumbent_us: float | None = None, patience: float = 1.0) -> Verdict:
        """The full verdict of a kernel in its default configuration (see lane.Judge). Never raises for what the candidate does."""
        verdict = self._once(kernel, incumbent_us, patience)
        return self._once(kernel, incumbent_us, patience) if verdict.message in SILENT_ENDS else verdict

    def _once(self, kernel: Kernel, incumbent_us: float | None, patience: float) -> Verdict:
        progress = _Progress()
        try:
            candidate = Candidate(self.shop, kernel, self._call_limit_s)
            try:
                return self._judge(candidate, _Rules(incumbent_us, patience), progress)
            finally:
                candidate.close()
        except Failure as failure:
            stage, stages_s = progress.stage, progress.enter("done")
            return Verdict(
                status=failure.status, stage=stage, message=failure.message, kernel_id=kernel.id, config=progress.config,
                environment=self.shop.environment(), code_hash=progress.code_hash, errors=(*progress.rows, *failure.rows),
                resources=progress.resources, seconds=sum(stages_s.values()), stages_s=stages_s,
            )  # fmt: skip

    def _judge(self, candidate: Candidate, rules: _Rules, progress: _Progress) -> Verdict:
        progress.enter("build")
        builds = [candidate.build(variant, None) for variant in range(len(self.shop.loaded.task.variants))]
        timed = builds[0]
        progress.config, progress.code_hash = timed.config, timed.artifact.code_hash
        grids = [launch.grid.grid for launch in timed.plan.launches if launch.grid]
        progress.resources = replace(timed.artifact.resources, blocks=max(map(math.prod, grids), default=0))
        progress.enter("load")
        loaded = [candidate.load(build) for build in builds]
        progress.enter("correctness")
        self._correctness(candidate, loaded, progress)
        progress.enter("settling")
        self.shop.settle_runner()
        progress.enter("timing")
        timing = self._time(candidate, loaded[0], rules)
        shop = self.shop
        if reason := impossible(shop.costs, shop.device, timing):
            raise Failure(Status.CHEATING, reason)
        reached = bounds(shop.costs, shop.device, shop.roofline, shop.loaded.task.options.precision, timing)
        environment = shop.environment()
        if rules.patience > 1 and not shop.machine.seals:  # a finalist: the number will be announced
            progress.enter("sanitizer")
            environment = replace(environment, sanitizer=sanitized(candidate, timed))
        stages_s = progress.enter("done")
        return Verdict(
            status=Status.VERIFIED, stage="done", message=_praise(timing), kernel_id=candidate.kernel.id, config=timed.config,
            environment=environment, code_hash=progress.code_hash, errors=tuple(progress.rows), timing=timing,
            resources=progress.resources, bounds=reached, milestone=milestone(timing), seconds=sum(stages_s.values()), stages_s=stages_s,
        )  # fmt: skip

    def _correctness(self, candidate: Candidate, loaded: list[Loaded], progress: _Progress) -> None:
        for number, case in enumerate(self.shop.cases.correctness()):
            seat = loaded[case.variant]
            rows, outputs = candidate.check(seat, 0, case, nan=number == 0)
            progress.rows.extend(rows)
            if number == 0 and not seat.build.plan.nondeterministic:
                candidate.fill(seat, 1, case)
                candidate.call(seat, 1)
                if not seat.seat.memory.same_outputs(1, outputs):
                    raise Failure(Status.MISMATCH, UNREPEATABLE)

    def _time(self, candidate: Candidate, loaded: Loaded, rules: _Rules) -> Timing:
        loaded.weights_version = -1
        prepares = loaded.build.plan.persists
        rivals = self.field.rivals(prepares=prepares)
        score = self.field.score
        limit = _OUT_OF_RACE * rules.incumbent_us if rules.incumbent_us else math.inf
        machine, cases = self.shop.machine, self.shop.cases
        anew = rules.patience > 1 and machine.placement is None
        seconds = machine.race_s * (1.0 if anew else rules.patience)
        other = "warm" if score == "cold" else "cold"
        unseen = cases.unseen(prepares=prepares)
        meetings = {mode: Meeting(unseen.get(mode, ()), s) for mode, s in ((score, seconds), (other, _BESIDE_SHARE * seconds))}
        entrant = TimedCandidate(candidate, loaded, cases.timed(), meetings)
        run = partial(race, entrant, steady=machine.steady, placement=machine.placement or 0.0)
        waiting = partial(run, ready=entrant.met_enough)  # unseen inputs are spread over all races of a mode, the last of which waits for them
        share_s = seconds / len(rivals)
        races = {r.name: (waiting if r is rivals[-1] else run)(r, score, seconds=share_s, out_of_race_us=limit) for r in rivals}
        scored = self._mode_timing(score, races, prepares=prepares)
        rival = next(r for r in rivals if r.name == scored.fastest.name) if scored.fastest.live else rivals[0]
        lost = scored.median_us > limit
        beside = waiting(rival, other, seconds=_BESIDE_SHARE * seconds, out_of_race_us=0.0 if lost else math.inf)
        entrants = [entrant]
        self._computes(entrant, candidate, loaded.build, rival)
        if anew and self._can_start_anew(loaded.build, scored):
            seconds = machine.race_s * (rules.patience - 1)
            start = partial(self._start, candidate.kernel, loaded.build, Meeting(unseen.get(score, ()), seconds), entrants)
            races = {name: race_anew(partial(start, name), seconds=seconds / len(races)) for name in races}
            self._computes(entrants[-1], candidate, loaded.build, rival)
            scored = self._mode_timing(score, races, prepares=prepares)
        modes = (scored, self._mode_timing(other, {rival.name: beside}, prepares=prepares))
        void, starts = sum(r.void_blocks for r in (*races.values(), beside)), min(r.starts for r in races.values())
        return Timing(score, modes, loaded.prepare_us if prepares else 0.0, void, machine.clock_mhz(), sum(e.verified for e in entrants), starts)

    def _computes(self, entrant: TimedCandidate, candidate: Candidate, build: Build, rival: Baseline) -> None:
        """Whether what took longer on unseen inputs does so again, in a fresh process, when those that were known are unseen: a kernel whose work
        depends on the data does not.

        Raises:
            Failure: it does; or one call does the work of others.
        """
        try:
            entrant.computes()
        except Remembers as accused:
            candidate.close()
            machine, cases = self.shop.machine, self.shop.cases
            known, unseen = cases.exchanged(accused.mode, prepares=build.plan.persists)
            again = TimedCandidate(candidate, candidate.load(build), known, {accused.mode: Meeting(unseen, machine.race_s)})
            race(again, rival, accused.mode, seconds=machine.race_s, steady=machine.steady, ready=again.met_enough)
            again.computes()

    def _can_start_anew(self, build: Build, scored: ModeTiming) -> bool:
        tensors = (*self.shop.loaded.task.variants[build.variant].tensors, *plan_specs(build.plan))
        size_bytes = 2 * SLOTS * sum(t.size_bytes for t in tensors)
        return max(scored.median_us, scored.fastest.median_us) < _ANEW_US and size_bytes < _ANEW_SHARE * self.shop.machine.free_bytes()

    def _start(self, kernel: Kernel, build: Build, meeting: Meeting, entrants: list[TimedCandidate], name: str) -> Race:
        """One race in fresh processes on fresh buffers (see timing.race_anew), whose places go to the candidate and the baseline first by turns.
        Appends its entrant."""
        score, cases = self.field.score, self.shop.cases.timed()
        with ExitStack() as stack:
            rival = stack.enter_context(closing(self.field.another(name))) if len(entrants) % 2 else None
            shop = stack.enter_context(closing(self.shop.elsewhere()))
            candidate = stack.enter_context(closing(Candidate(shop, kernel, self._call_limit_s)))
            loaded = candidate.load(build)
            candidate.check(loaded, 0, cases[0])
            rival = rival or stack.enter_context(closing(self.field.another(name)))
            entrants.append(TimedCandidate(candidate, loaded, cases, {score: meeting}))
            return race(entrants[-1], rival, score, seconds=START_S, steady=shop.machine.steady)

    def _mode_timing(self, mode: str, races: dict[str, Race], *, prepares: bool) -> ModeTiming:
        """Times of one mode. Baselines that were not raced have their cached time, scaled by the drift of the one that was raced first."""
        us = [t for r in races.values() for t in r.candidate_us]
        rows = [BaselineTime(n, statistics.median(r.baseline_us), r.speedup, live=True) for n, r in races.items()]
        first = rows[0]
        for name in self.field.names(prepares=prepares):
            if name not in races:
                scale = self.field.times_us[name][mode] / self.field.times_us[first.name][mode]
                s = first.speedup
                rows.append(BaselineTime(name, first.median_us * scale, Interval(s.low * scale, s.mid * scale, s.high * scale), live=False))
        return ModeTiming(mode, statistics.median(us), quantile(us, 0.1), quantile(us, 0.9), len(us), tuple(rows))

    def screen(self, kernel: Kernel, configs: Sequence[Config]) -> list[Screen]:
        """A quick look at configurations, in order. Builds run in parallel before anything is timed."""
        try:
            candidate = Candidate(self.shop, kernel, self._call_limit_s)
        except Failure as failure:
            return [Screen(dict(c), failure.status, failure.message) for c in configs]
        with ThreadPoolExecutor(max(1, self.shop.device.sm_count)) as pool:
            builds = list(pool.map(lambda config: _attempt(candidate, config), configs))
        try:
            return [self._screen(candidate, config, build) for config, build in zip(configs, builds, strict=True)]
        finally:
            candidate.close()

    def _screen(self, candidate: Candidate, config: Config, build: Build | Failure) -> Screen:
        try:
            if isinstance(build, Failure):
                raise build
            loaded = candidate.load(build)
            for case in self.shop.cases.screening():
                candidate.check(loaded, 0, case)
            self.shop.settle_runner()
            entrant = TimedCandidate(candidate, loaded, self.shop.cases.timed())
            times_us: list[float] = []
            while len(times_us) <= _SCREEN_CALLS:
                times_us += entrant.run(self.field.score)
        except Failure as failure:
            if failure.status is not Status.INVALID:
                candidate.close()  # the next configuration gets a fresh runner
            return Screen(dict(config), failure.status, failure.message)
        return Screen(dict(config), Status.VERIFIED, "", statistics.median(times_us[1:]), build.artifact.code_hash)


@dataclass(frozen=True)
class _Rules:
    """How long to race: see lane.Judge.judge."""

    incumbent_us: float | None
    patience: float


class _Progress:
    """How far the judging of one kernel has come, for the verdict of one that fails."""

    def __init__(self) -> None:
        self.stage = "parse"
        self._since = time.monotonic()
        self._stages_s: dict[str, float] = {}
        self.config: Config = {}
        self.code_hash = ""
        self.rows: list[ErrorRow] = []
        self.resources: Resources | None = None

    def enter(self, stage: str) -> dict[str, float]:
        """Go on to a stage; the seconds that those before it took."""
        now = time.monotonic()
        self._stages_s[self.stage] = now - self._since
        self.stage, self._since = stage, now
        return self._stages_s


def _attempt(candidate: Candidate, config: Config) -> Build | Failure:
    try:
        return candidate.build(0, config)
    except Failure as failure:
        return failure


def milestone(timing: Timing) -> int:
    """1 correct, 2 faster than eager, 3 faster than every baseline by 5 %; by lower bounds, in the scored mode."""
    lows = {b.name: b.speedup.low for b in timing.scored.baselines}
    if min(lows.values()) >= 1.05:
        return 3
    return 2 if lows.get("eager", 0.0) > 1.0 else 1


def _praise(timing: Timing) -> str:
    scored, fastest = timing.scored, timing.scored.fastest
    s = fastest.speedup
    return f"correct; {scored.median_us:.1f} us {scored.mode}, {s.mid:.3f}x [{s.low:.3f}, {s.high:.3f}] against {fastest.name}, the fastest baseline"
