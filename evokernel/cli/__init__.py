"""The command line: a thin skin over api.py, one small file per group of commands.

Exit codes: 0 done, 1 an honest negative (nothing verified, rejected, cannot be judged), 2 our failure or wrong usage, 130 interrupted.
With --json one object is the last line of stdout; everything else goes to stderr.
"""

from __future__ import annotations

import sys

import typer

from ..errors import EvokernelError, TaskError
from . import archive, doctor, evolve, export, judge, lifecycle, output, post, task
from .output import fail

app = typer.Typer(
    name="evokernel", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None,
    help="Give it a PyTorch module, get back a faster kernel that is proven correct.",
)  # fmt: skip
app.command("evolve")(evolve.evolve)
app.command("resume")(evolve.resume)
app.command("ask")(post.ask)
app.command("tell")(post.tell)
app.command("judge")(judge.judge)
app.command("doctor")(doctor.doctor)
app.add_typer(task.app, name="task")
for command in (lifecycle.lessons, lifecycle.rejudge, lifecycle.prune, lifecycle.merge):
    archive.app.command()(command)
app.add_typer(archive.app, name="archive")
app.add_typer(export.app, name="export")


def main() -> None:
    """Entry of the `evokernel` command; the edge where our errors become text and an exit code."""
    debug = "--debug" in sys.argv
    if debug:
        sys.argv.remove("--debug")
    try:
        code = app(standalone_mode=False) or 0
        if code == 130 and not output.reported:  # typer turns Ctrl-C into this code by itself
            raise KeyboardInterrupt
        sys.exit(code)
    except (KeyboardInterrupt, typer.Abort):
        fail("interrupted", "interrupted", 130)
    except TaskError as error:
        fail("refused" if error.refused else "task_error", str(error), 1)
    except EvokernelError as error:
        fail("error", str(error), 2)
    except OSError as error:
        if debug:
            raise
        fail("error", f"{error.filename or 'a file'}: {error.strerror or error}; choose another place or change its permissions", 2)
    except Exception as error:
        if hasattr(error, "format_message"):  # wrong usage; newer typers bring a click of their own
            fail("usage", error.format_message(), 2)
        if debug:
            raise
        fail("error", f"evokernel failed: {type(error).__name__}: {error} (a bug of ours; run again with --debug for the traceback)", 2)
