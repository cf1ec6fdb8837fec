"""What ssh's own words mean, in one line: what is wrong and what to do."""

from __future__ import annotations

import re
from typing import Final

from ranktop.tui.remote.target import Target
from ranktop.wire.codec import clean

AUTH: Final = "auth"
"""Nothing but a person can mend it: a password, a passphrase, a host key."""

_RULES: Final[tuple[tuple[str, str, str], ...]] = (
    (
        r"REMOTE HOST IDENTIFICATION HAS CHANGED|[Hh]ost key for .* has changed|differs from the key for the IP",
        AUTH,
        "host key of {known} has changed: somebody may be in between; if it was set up anew: ssh-keygen -R '{known}'",
    ),
    (
        r"Host key verification failed|No \S+ host key is known for",
        AUTH,
        "the host key of {host} is not known here, or was refused: log in once with ssh to check it",
    ),
    (
        r"Permission denied \(|Too many authentication failures|No more authentication methods|"
        r"Permission denied, please try again",
        AUTH,
        "permission denied by {where}: ssh could not log in (ssh-add -l lists your keys; "
        "a password is asked for only at the start)",
    ),
    (
        r"Could not resolve hostname|Name or service not known|nodename nor servname|failure in name resolution",
        "",
        "the name {name} is not known: check it, the network, and Host in ~/.ssh/config",
    ),
    (
        r"Connection timed out|Operation timed out|timed out while waiting|banner exchange.*timed? ?out|not responding",
        "",
        "{host} did not answer in time (timed out): is it on, and is there a way to it (VPN, -J)?",
    ),
    (r"Connection refused", "", "{host} refuses the connection: no ssh server at that port (-p)?"),
    (
        r"No route to host|Network is unreachable|Network is down|Host is down",
        "",
        "there is no way to {host} now: is the network up?",
    ),
    (r"Bad configuration option|[Bb]ad .*configuration|command-line.*: |unsupported option|keyword .* extra arguments|"
     r"Can't open user config file", "", "ssh refuses its options or configuration: {said}"),
    (r"This account is currently not available|nologin", "", "{where} may not run commands there: {said}"),
    (
        r"Connection reset|Connection closed|Broken pipe|kex_exchange_identification|closed by remote host",
        "",
        "{host} closed the connection",
    ),
)  # fmt: skip

_UNRESOLVED: Final = re.compile(r"[Cc]ould not resolve hostname ([^\s:]{1,255})")
_CONNECTING: Final = re.compile(r"connect to host (\S{1,255}) port")
_DENIED: Final = re.compile(r"(\S{1,255}@\S{1,255}): Permission denied \(")
_CHANGED: Final = re.compile(r"Host key for ([][\w:.%-]{1,255}) has changed")

_NOISE: Final = re.compile(
    r"^(?:debug\d:|Warning: Permanently added|Killed by signal|Pseudo-terminal|mux_client_|Shared connection|\*\*)"
)


def explain(said: str, target: Target) -> tuple[str, str]:
    """Return (kind, line) of what ssh wrote to standard error before it failed; the kind is ``auth`` or empty."""
    said = said[-16384:]
    lines = [text for line in said.splitlines() if (text := clean(line).strip()) and not _NOISE.match(text)]
    last = next((line for line in reversed(lines) if not line.startswith("@")), "")[:200]
    for pattern, kind, words in _RULES:
        if re.search(pattern, said):
            # With a jump host it may be that one which is not reached, or refuses.
            return kind, words.format(
                host=_named(_CONNECTING, said) or target.host,
                name=_named(_UNRESOLVED, said) or target.host,
                where=_named(_DENIED, said) or target.words,
                known=_named(_CHANGED, said) or target.host,
                said=last,
            )
    return "", f"ssh to {target.words} failed" + (f": {last}" if last else "")


def forbidden(said: str, target: Target) -> str:
    """Return the line for a socket that is served there but was refused to ssh; empty when it was not."""
    if "open failed" not in said:
        return ""
    return (
        f"the ssh server of {target.host} forbids to forward Unix sockets (AllowStreamLocalForwarding in sshd_config): "
        "ask its administrator"
    )


def reworded(line: str) -> bool:
    """Tell whether ``explain`` says the same as this line of ssh, so that a person need not read both."""
    if line.startswith("@") or "IDENTIFICATION" in line:
        return False
    return line.startswith("ssh: ") or bool(
        re.match(r"(?:\S+: )?Permission denied \(|Host key verification failed|Connection (?:closed|reset|timed out)|"
                 r"kex_exchange_identification|Killed by signal", line)
    )  # fmt: skip


def _named(pattern: re.Pattern[str], said: str) -> str:
    found = pattern.search(said)
    return clean(found[1]) if found else ""
