"""Which machine is meant: ``[user@]host[:port]``, ``ssh://``, and the same with a job behind a slash."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from ranktop.wire.codec import clean

FORM: Final = "[user@]host[:port] or ssh://[user@]host[:port]"

_SCHEME: Final = "ssh://"

# What a shell, ssh's own %-expansion or an option could take for more than a name is refused.
_USER: Final = re.compile(r"[A-Za-z0-9_.+@\\$][A-Za-z0-9_.+@\\$-]{0,127}")
_HOST: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}")
_ADDRESS: Final = re.compile(r"[0-9A-Fa-f:.]{2,45}(?:%[A-Za-z0-9_.-]{1,32})?")
_PORT: Final = re.compile(r"[0-9]{1,5}")
_JOB: Final = re.compile(r"[^\s/-][^\x00-\x1f\x7f/]{0,127}")


class TargetError(ValueError):
    """The text names no machine; one line: what is wrong and what is meant to stand there."""


@dataclass(frozen=True, slots=True)
class Target:
    """A machine as the user's ssh knows it."""

    host: str
    """Name, alias of the user's configuration, or address without brackets."""
    user: str = ""
    port: int | None = None

    @property
    def destination(self) -> str:
        """Return it as ssh takes it, without the port."""
        return f"{self.user}@{self.host}" if self.user else self.host

    @property
    def words(self) -> str:
        """Return it as a person wrote it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        lead = f"{self.user}@" if self.user else ""
        return f"{lead}{host}" + (f":{self.port}" if self.port is not None else "")


def parse_target(text: str) -> Target:
    """Return the machine that a text names; TargetError.

    >>> parse_target("me@gpu01:2222")
    Target(host='gpu01', user='me', port=2222)
    >>> parse_target("ssh://[fe80::1%eth0]:22").host
    'fe80::1%eth0'
    """
    rest = text
    if rest.lower().startswith(_SCHEME):
        rest = rest[len(_SCHEME) :].rstrip("/")
    elif "://" in rest:
        raise _wrong(text, "only ssh:// is known")
    if rest.startswith("-"):
        raise _wrong(text, "it begins with '-'")
    user, at, place = rest.rpartition("@")
    if at and not _USER.fullmatch(user):
        raise _wrong(text, "the user's name cannot be one")
    host, port = _host_and_port(place, text)
    return Target(host, user, port)


def _host_and_port(place: str, text: str) -> tuple[str, int | None]:
    if place.startswith("["):
        host, bracket, rest = place[1:].partition("]")
        if not bracket or not _ADDRESS.fullmatch(host) or (rest and not rest.startswith(":")):
            raise _wrong(text, "an address in brackets is meant to look like [::1] or [::1]:22")
        port, colon = rest[1:], rest[:1]
    else:
        host, colon, port = place.partition(":")
        if ":" in port:
            raise _wrong(text, "write an IPv6 address in brackets: [::1]")
        if not _HOST.fullmatch(host):
            raise _wrong(text, "there is no host in it" if not host else "the host's name cannot be one")
    if not colon:
        return host, None
    if not _PORT.fullmatch(port) or not 0 < int(port) < 65536:
        raise _wrong(text, "the port is a number from 1 to 65535")
    return host, int(port)


def _wrong(text: str, why: str) -> TargetError:
    return TargetError(f"{clean(text)[:80]!r} is no target: {why}; a target is {FORM}")


def split_job(text: str) -> tuple[Target, str]:
    """Return machine and job (an id or the start of one, or a name) of ``TARGET/JOB``; TargetError.

    >>> split_job("ssh://me@gpu01:22/ab12")
    (Target(host='gpu01', user='me', port=22), 'ab12')
    """
    lead = _SCHEME if text.lower().startswith(_SCHEME) else ""
    place, slash, job = text[len(lead) :].partition("/")
    if not slash or not _JOB.fullmatch(job):
        raise TargetError(
            f"{clean(text)[:80]!r} names no job of another machine; write TARGET/JOB, for instance gpu01/ab12"
        )
    return parse_target(lead + place), job
