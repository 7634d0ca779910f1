"""What commands print: words for people, or with --json one object for programs."""

from __future__ import annotations

import json
import os
import re
import sys
from typing import NoReturn

from ..codec import encode, finite
from ..records import Verdict

reported = False  # whether a result has been printed
# What makes a terminal do or show something else: control characters, changes of the writing direction, half pairs.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def say(text: str = "") -> None:
    """A line for a person who watches; stdout stays free for results."""
    print(_plain(text), file=sys.stderr, flush=True)


def _plain(text: str) -> str:
    """The text as a terminal may show it: stored kernels, names and messages come from anybody."""
    return _UNSEEN.sub(lambda found: ascii(found[0])[1:-1], text)


def result(text: str) -> None:
    """The result, for a person; on stderr where a program reads stdout."""
    global reported
    reported = True
    print(_plain(text), file=sys.stderr if "--json" in sys.argv else sys.stdout, flush=True)


def json_line(value: object) -> None:
    """The result, for a program: one line, null in place of NaN and Inf."""
    print(json.dumps(finite(encode(value)), ensure_ascii=True), flush=True)


def fail(status: str, message: str, code: int) -> NoReturn:
    """End with a message and an exit code; with --json on the command line the object says the same."""
    say(f"evokernel: {message}")
    try:
        if "--json" in sys.argv:
            json_line({"status": status, "message": message})
        print(end="", flush=True)
    except OSError:  # it is stdout that fails; what waits in it would fail once more at the exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def speedup_fields(verdict: Verdict | None) -> dict[str, object]:
    """The fields that `evolve` and `judge` share; null where there is no time."""
    speedup = verdict.speedup if verdict else None
    timing = verdict.timing if verdict else None
    return {
        "speedup": speedup.mid if speedup else None,
        "speedup_low": speedup.low if speedup else None,
        "speedup_high": speedup.high if speedup else None,
        "baseline": timing.scored.fastest.name if timing else None,
        "baselines_us": {b.name: b.median_us for b in timing.scored.baselines} if timing else {},
        "time_us": verdict.time_us if verdict else None,
        "forced": bool(verdict and verdict.environment.forced),
    }
