"""The command line: exit codes, complaints, and the way to each command without what only others need."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from ranktop.wire.endpoints import JobEntry

FOUND: Final = 0
FAILED: Final = 1
USAGE: Final = 2
NONE: Final = 3
INTERRUPTED: Final = 130
"""Exit codes: a job was found; something went wrong; bad usage; no job; Ctrl-C."""


def matching(jobs: list[JobEntry], wanted: str | None) -> list[JobEntry]:
    """Return the jobs with this id, or name, or else whose id starts so; all when nothing is wanted."""
    if wanted is None:
        return jobs
    exact = [entry for entry in jobs if wanted in (entry.id, entry.name, entry.directory.name)]
    return exact or [entry for entry in jobs if entry.id.startswith(wanted)]


def fail(text: str, code: int) -> NoReturn:
    """Print one line on standard error and exit."""
    print(f"ranktop: {text}", file=sys.stderr)
    raise SystemExit(code)


def main() -> None:
    """Run the command line. Output that cannot be written is one line, not a traceback."""
    try:
        if sys.argv[1:2] == ["plan"]:
            # Not by way of typer, which takes longer to load than all strategies to compare.
            from ranktop.tui.plan import plan

            raise SystemExit(plan(sys.argv[2:]))
        if sys.argv[1:2] == ["explain"]:
            from ranktop.tui.explain import explain

            raise SystemExit(explain(sys.argv[2:]))
        from ranktop.tui.commands import app

        app()
        sys.stdout.flush()
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    except BrokenPipeError:
        # Whoever reads has read enough; without this the interpreter would complain once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        fail(f"cannot write: {error.strerror or error}", FAILED)


if __name__ == "__main__":
    main()
