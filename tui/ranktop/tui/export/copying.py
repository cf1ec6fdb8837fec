"""A consistent copy of a recording, also of one that is being written."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from pathlib import Path
from typing import BinaryIO

from ranktop.wire.recording_file import RecordingError, broken, check_schema, silence_schema
from ranktop.wire.recording_open import connect


def copy_recording(path: Path, target: Path) -> None:
    """Copy into ``target``, which must not exist: one file that needs nothing beside it. RecordingError, OSError."""
    source = connect(path)
    try:
        silence_schema(source)
        check_schema(source)
        os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        copy = sqlite3.connect(target, isolation_level=None)
        try:
            # In one go: SQLite begins anew whenever a hub writes in between.
            source.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")
        finally:
            copy.close()
    except sqlite3.Error as error:
        if "full" in str(error) or "I/O" in str(error):
            raise RecordingError(f"cannot write: {error}") from None
        raise broken(error) from None
    finally:
        source.close()


def write_recording(path: Path, sink: BinaryIO) -> None:
    """Write a copy to a stream. RecordingError, OSError."""
    with tempfile.TemporaryDirectory(prefix="ranktop-") as folder:
        copy = Path(folder) / "copy"
        copy_recording(path, copy)
        with copy.open("rb") as file:
            shutil.copyfileobj(file, sink, 1024 * 1024)
    sink.flush()
