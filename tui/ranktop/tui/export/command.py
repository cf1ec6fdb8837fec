"""``ranktop export``: one run in a form that other programs read."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from ranktop.tui.cli import FAILED, FOUND, USAGE
from ranktop.tui.export import output, writers
from ranktop.tui.export.rows import Stretch
from ranktop.tui.runs import NoRun, find_run
from ranktop.tui.stdout import let_go
from ranktop.tui.view.text import plain
from ranktop.wire.recording_file import RecordingError

if TYPE_CHECKING:
    from ranktop.tui.remote.ssh import Way
    from ranktop.wire.recording import Recording

FORMATS: Final = ("csv", "json", "parquet", "recording")
BINARY: Final = frozenset({"parquet", "recording"})
SUFFIXES: Final = {".csv": "csv", ".json": "json", ".parquet": "parquet", ".ranktop": "recording"}

_WRITERS: Final[dict[str, Callable[[Recording, Stretch, BinaryIO], None]]] = {
    "csv": writers.write_csv,
    "json": writers.write_json,
    "parquet": writers.write_parquet,
}


@dataclass(frozen=True, slots=True)
class Wish:
    """What a person asked for."""

    form: str | None = None
    """One of ``FORMATS``; None: by the output's ending, else csv."""
    output: str = output.STDOUT
    force: bool = False
    first: str | None = None
    last: str | None = None
    """Times as ``replay.times`` reads them; None: from the beginning, to the end."""
    every: float = 0.0

    @property
    def format(self) -> str:
        """The form that is meant."""
        return self.form or SUFFIXES.get(Path(self.output).suffix.lower(), "csv")


def export(source: str, wish: Wish, way: Way | None = None) -> int:
    """Write the run and return the exit code: 0, 1 when it can't be read or written, 2 bad usage, 3 no such run.

    ``way``: as ``find_run`` has it.
    """
    partly = wish.first is not None or wish.last is not None or wish.every > 0
    if wish.format == "recording" and partly:
        return _complain("a recording is copied whole: leave out --from, --to and --every", USAGE)
    try:
        run = find_run(source, way)
        if run.path is None:
            raise NoRun(f"job {plain(source)} is not recorded, so there is nothing to export", FAILED)
        if wish.format == "recording":
            _copy(run.path, wish)
        else:
            _rows(run.path, wish)
    except NoRun as error:
        return _complain(str(error), error.code)
    except output.Refused as error:
        return _complain(str(error), USAGE)
    except (RecordingError, writers.NoPyarrow) as error:
        return _complain(str(error), FAILED)
    except BrokenPipeError:
        let_go()
    except OSError as error:
        return _complain(f"cannot write {plain(wish.output)}: {error.strerror or error}", FAILED)
    return FOUND


def _rows(path: Path, wish: Wish) -> None:
    from ranktop.wire.recording import Recording

    with Recording.open(path) as recording:
        stretch = _stretch(recording, wish)
        with output.sink(wish.output, force=wish.force, binary=wish.format in BINARY) as sink:
            _WRITERS[wish.format](recording, stretch, sink)


def _copy(path: Path, wish: Wish) -> None:
    from ranktop.tui.export.copying import write_recording

    with output.sink(wish.output, force=wish.force, binary=True, private=True) as sink:
        write_recording(path, sink)


def _stretch(recording: Recording, wish: Wish) -> Stretch:
    from ranktop.tui.replay.times import NoTime, when

    try:
        first = recording.begin - 1.0 if wish.first is None else when(wish.first, recording)
        last = recording.end if wish.last is None else when(wish.last, recording)
    except NoTime as error:
        raise NoRun(str(error), USAGE) from None
    if last < first:
        raise NoRun("--to is before --from", USAGE)
    return Stretch(first, last, wish.every)


def _complain(text: str, code: int) -> int:
    print(f"ranktop: {text}", file=sys.stderr)
    return code
