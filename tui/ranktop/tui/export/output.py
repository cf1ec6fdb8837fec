"""Where an export goes: standard output, or a file that appears whole or not at all and replaces none unasked."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

STDOUT: Final = "-"


class Refused(Exception):
    """The place cannot be used; the text is one line: why and what to do."""


@contextlib.contextmanager
def sink(output: str, *, force: bool, binary: bool, private: bool = False) -> Iterator[BinaryIO]:
    """Open the place; what is written appears when the block ends well. Refused, OSError.

    ``private``: closed to other users.
    """
    if output == STDOUT:
        if binary and sys.stdout.isatty():
            raise Refused("this form is not for a terminal: give --output FILE, or a pipe")
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path = Path(os.path.expanduser(output))
    if _is_stream(path):
        with path.open("wb") as stream:
            yield stream
        return
    refuse_existing(path, force=force)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666)
        with os.fdopen(descriptor, "wb") as file:
            yield file
        settle(partial, path, force=force)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()


def _is_stream(path: Path) -> bool:
    """A pipe or a device is written to, never replaced."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def refuse_existing(path: Path, *, force: bool) -> None:
    """Raise Refused when something is there already, before hours of work rather than after."""
    if path.is_dir():
        raise Refused(f"{path} is a directory: give a file")
    if not force and os.path.lexists(path):
        raise Refused(f"{path} exists: give another name, or --force to replace it")


def settle(partial: Path, path: Path, *, force: bool) -> None:
    """Give the finished file its name. Refused when one has appeared there meanwhile."""
    if force:
        os.replace(partial, path)
        return
    try:
        os.link(partial, path)  # unlike a rename it never replaces anything
    except FileExistsError:
        raise Refused(f"{path} exists: give another name, or --force to replace it") from None
    except OSError:  # a file system without hard links
        refuse_existing(path, force=False)
        os.rename(partial, path)
