"""The command line: exit codes, complaints, and the way to each command without what only others need."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, NoReturn

from ranktop.tui.stdout import let_go

if TYPE_CHECKING:
    from collections.abc import Callable

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


def configure(*, lenient: bool = False) -> None:
    """Put the configuration in force; one line and exit code 2 where it has errors: nothing starts half configured.

    ``lenient``: for a command that tells of them itself.
    """
    from ranktop.tui.config import apply
    from ranktop.tui.config.reading import ConfigError

    try:
        apply()
    except ConfigError as error:
        if not lenient:
            fail(str(error), USAGE)


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

        _until_exit(app)
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    except BrokenPipeError:
        let_go()  # whoever reads has read enough
    except OSError as error:
        let_go()
        fail(f"cannot write: {error.strerror or error}", FAILED)


def _until_exit(app: Callable[[], object]) -> None:
    """Run typer's commands and write out what they printed. BrokenPipeError when whoever reads has left."""
    stdout = sys.stdout
    try:
        app()
    except SystemExit:
        if sys.stdout is not stdout:
            # typer puts another one there when the pipe is broken, and only then; its exit code 1 would be a failure.
            raise BrokenPipeError from None
        try:
            stdout.flush()
        except BrokenPipeError:
            let_go()
        raise


if __name__ == "__main__":
    main()
