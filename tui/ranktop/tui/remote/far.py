"""The far side: a few lines of POSIX shell that find ranktop there, and what it answers.

They go in by the standard input of ``sh -s``: no quoting of any login shell (bash, zsh, fish, csh) is in the way, and
nothing of it stands in a list of processes. What the shell's start-up files print comes before the mark and is dropped.
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ranktop.tui.remote.ssh import Ssh
from ranktop.wire.codec import clean
from ranktop.wire.endpoints import JobEntry
from ranktop.wire.schema import SCHEMA_VERSION

SHELL: Final = "exec sh -s"

NOT_FOUND: Final = 127
"""Exit code of a shell that knows no such command."""

LISTING_SCHEMA: Final = 1
"""Of ``ranktop jobs --json``."""

MOST_JOBS: Final = 1000
_SOCKET: Final = re.compile(r"/[A-Za-z0-9_./@+,=~-]{1,106}")
_WORD: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
_VERSION: Final = re.compile(r"[0-9A-Za-z.+!-]{1,40}")

_FIND: Final = """\
PATH=$PATH:$HOME/.local/bin
if command -v ranktop >/dev/null 2>&1; then
  r() { ranktop "$@"; }
elif python3 -c 'import importlib.util as u, sys; sys.exit(not u.find_spec("ranktop.tui"))' >/dev/null 2>&1; then
  r() { python3 -m ranktop.tui.cli "$@"; }
else
  r() { return 127; }
  u=$(id -u)
  for d in "${RANKTOP_RUN_DIR:-$XDG_RUNTIME_DIR/ranktop}" "${RANKTOP_RUN_DIR:-/tmp/ranktop-$u}" \\
    "${RANKTOP_RUN_DIR:-/run/user/$u/ranktop}"; do
    for f in "$d"/*/job.json; do
      [ -O "$d" ] && [ -O "$f" ] || continue
      p=$(sed -n 's/.*"hub_pid":\\([0-9][0-9]*\\).*/\\1/p' "$f" 2>/dev/null)
      [ -n "$p" ] && [ -O "/proc/$p" ] && grep -q ranktop.agent.hub "/proc/$p/cmdline" 2>/dev/null || continue
      py=$(tr '\\000' '\\n' <"/proc/$p/cmdline" 2>/dev/null | head -n 1)
      [ -x "$py" ] && r() { "$py" -m ranktop.tui.cli "$@"; } && break 2
    done
  done
fi
"""
"""Defines ``r``, which runs ranktop: by PATH, as a module of python3, or by the Python that runs a job's hub, whose
environment has ranktop although a login does not activate it."""

_LISTEN: Final = """\
printf '%s hello\\n' "$t"
while read -r x y; do
  case $x in
  ping) printf '%s pong %s\\n' "$t" "$y";;
  jobs) printf '%s begin\\n' "$t"; r jobs --json </dev/null; c=$?
    printf '%s end\\n' "$t" >&2; printf '\\n%s end %s\\n' "$t" "$c";;
  esac
done
"""
"""Answers line by line until its input ends: with this viewer, whatever ends it, the far side ends too."""

_ONCE: Final = """\
exec 3<&0
printf '%s hello\\n' "$t"
printf '%s hello\\n' "$t" >&2
r "$@" </dev/null 3<&- & p=$!
{ while read -r x; do :; done; kill 0; } <&3 >/dev/null 2>&1 3<&- & w=$!
exec 3<&-
wait "$p"; c=$?
kill "$w" 2>/dev/null
exit "$c"
"""
"""Runs ranktop once. When the input ends before it does (Ctrl-C here, a lost connection), it is ended too, with all of
the process group that sshd has made for this session."""


class FarError(Exception):
    """The far side cannot be used; the text is one line: what is wrong there and what to do."""

    def __init__(self, text: str, kind: str = "") -> None:
        super().__init__(text)
        self.kind = kind
        """``auth``: only a person can mend it; ``final``: trying again is of no use; ``missing``: no such job."""


def _found(ssh: Ssh) -> str:
    if ssh.remote_command is None:
        return _FIND
    return f'r() {{\n{ssh.remote_command} "$@"\n}}\n'


def listen_script(ssh: Ssh, token: str) -> bytes:
    """Return the script that answers ``ping`` and ``jobs``."""
    return f"t={token}\n{_found(ssh)}{_LISTEN}".encode()


def once_script(ssh: Ssh, token: str, arguments: list[str], columns: int | None) -> bytes:
    """Return the script that runs ranktop once with these arguments."""
    lead = f"COLUMNS={columns}; export COLUMNS\n" if columns else ""
    return f"t={token}\n{_found(ssh)}{lead}set -- {shlex.join(arguments)}\n{_ONCE}".encode()


@dataclass(frozen=True, slots=True)
class Listing:
    """The live jobs of the far side."""

    host: str
    """By its own word."""
    version: str
    jobs: tuple[JobEntry, ...] = ()
    """Their directories are there, not here."""
    problems: tuple[str, ...] = ()
    sizes: dict[str, int] = field(default_factory=dict)
    """Bytes of the recording by job, past jobs too."""


def read_listing(answer: bytes, code: int, said: str, ssh: Ssh, here: str) -> Listing:
    """Read what ``ranktop jobs --json`` printed there; ``said`` is its standard error, ``here`` our version.

    FarError where there is no ranktop, another one, or something else answered.
    """
    where = ssh.target.words
    if code in (NOT_FOUND, 126):
        raise FarError(no_ranktop(ssh), "final")
    try:
        told = json.loads(answer)
        if not isinstance(told, dict):
            raise ValueError("no object")
    except (ValueError, RecursionError):
        raise FarError(_no_answer(where, code, said, here), "final") from None
    version = str(told.get("ranktop", ""))
    version = version if _VERSION.fullmatch(version) else "of an unknown version"
    wire, schema = told.get("wire"), told.get("schema")
    for theirs, ours, what in ((wire, SCHEMA_VERSION, "wire schema"), (schema, LISTING_SCHEMA, "listing")):
        if theirs != ours or isinstance(theirs, bool):
            older = not isinstance(theirs, int) or theirs < ours
            tells = f"{what} {theirs}"[:60] if isinstance(theirs, int) and abs(theirs) < 1 << 63 else f"no {what}"
            raise FarError(
                f"ranktop on {where} is {version} ({tells}), here {here} ({what} {ours}): "
                + (f"{where} is older: upgrade ranktop there" if older else "this side is older: upgrade ranktop here"),
                "final",
            )
    lines = [clean(line) for line in said.splitlines() if line.startswith("ranktop: ")]
    problems = [line.removeprefix("ranktop: ") for line in lines][:20]
    jobs, sizes = [], {}
    listed = told.get("jobs")
    for entry in listed[:MOST_JOBS] if isinstance(listed, list) else []:
        if not isinstance(entry, dict) or not isinstance(entry.get("id"), str) or not _WORD.fullmatch(entry["id"]):
            continue
        if type(size := entry.get("bytes")) is int and 0 <= size < 1 << 63:
            sizes[entry["id"]] = size
        if entry.get("state") in ("running", "ended"):
            job = _entry(entry)
            if job is not None:
                jobs.append(job)
            else:
                problems.append(
                    f"job {entry['id']}: its hub's socket has a path that cannot be forwarded: set RANKTOP_RUN_DIR"
                )
    jobs.sort(key=lambda job: (job.ended, -job.started))
    return Listing(clean(str(told.get("host", "")))[:80], version, tuple(jobs), tuple(problems), sizes)


def _entry(told: dict[str, Any]) -> JobEntry | None:
    """Return a live job, its ``directory`` the far one; None where the path of its socket cannot be used."""
    path = told.get("socket")
    if not isinstance(path, str) or not _SOCKET.fullmatch(path) or not path.endswith("/viewers.sock"):
        return None
    if ".." in path.split("/"):
        return None
    started, size = told.get("started"), told.get("world_size")
    return JobEntry(
        id=told["id"], name=clean(str(told.get("name", "")))[:200], directory=Path(path).parent,
        world_size=size if type(size) is int and 0 <= size < 1 << 31 else 0,
        started=float(started) if isinstance(started, int | float) and 0 <= started < 1e11 else 0.0,
        schema=SCHEMA_VERSION, hub_pid=0, ended=told["state"] == "ended",
    )  # fmt: skip


def no_ranktop(ssh: Ssh) -> str:
    """Return the line for a far side without ranktop."""
    where = ssh.target.words
    if ssh.remote_command is not None:
        return f"{ssh.remote_command!r} cannot be run on {where}: name ranktop there with --remote-command"
    return (
        f"no ranktop on {where} (looked for it in PATH, in python3 and beside a running job): install it there, "
        "or name it with --remote-command /path/to/venv/bin/ranktop"
    )


def _no_answer(where: str, code: int, said: str, here: str) -> str:
    if re.search(r"No such command|no such command|invalid choice", said):
        return f"ranktop on {where} is older than {here} and cannot list its jobs: upgrade ranktop there"
    lines = [text for line in said.splitlines() if (text := clean(line).strip())]
    more = f": {lines[-1][:160]}" if lines else ""
    return f"ranktop on {where} did not list its jobs (exit code {code}){more}"
