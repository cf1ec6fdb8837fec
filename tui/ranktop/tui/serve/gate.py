"""Who may see the dashboard: a browser that was given the address, on this machine, and no page of somebody else's."""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Callable
from typing import Final

from ranktop.tui.loopback import is_loopback

COOKIE: Final = "ranktop"

MOST: Final = 32
"""Browsers that may be let in; a further one takes the place of the first."""

_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9.-]{1,253})(?::[0-9]{1,5})?")


class Gate:
    """A token that is good once, and the browsers that came with one.

    Each of them gets a place of its own below the address and a cookie for that place alone: cookies do not tell ports
    apart, and a server on another port of this machine, which may be another user's, must not be sent this one.
    """

    def __init__(self, make: Callable[[], str] = lambda: secrets.token_urlsafe(32)) -> None:
        self._make = make
        self.token = make()
        """What the next browser has to bring."""
        self._cookies: dict[str, str] = {}
        """Place -> the cookie that opens it."""

    def admit(self, token: str) -> tuple[str, str] | None:
        """Return (place, cookie) for who brings the token, which is spent by it; None for anybody else."""
        if not _same(token, self.token):
            return None
        self.token = self._make()
        place, cookie = self._make(), self._make()
        while len(self._cookies) >= MOST:
            del self._cookies[next(iter(self._cookies))]
        self._cookies[place] = cookie
        return place, cookie

    def opens(self, place: str, cookie: str) -> bool:
        """Tell whether a cookie is the one of that place."""
        return _same(cookie, self._cookies.get(place, "")) and bool(cookie)


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode())


def asked_here(host: str | None) -> bool:
    """Tell whether a request names this machine itself (``Host``), with any port: ``ssh -L`` may have changed that.

    A page that has its own name point here (DNS rebinding) is told by its name.
    """
    found = _HOST.fullmatch(host or "")
    return found is not None and is_loopback(found[1].strip("[]"))


def from_own_page(origin: str | None, host: str | None, site: str | None = None) -> bool:
    """Tell whether a request comes from a page of this server: by ``Origin``, which a web socket must have.

    ``site``: ``Sec-Fetch-Site``, where the browser tells it.
    """
    return host is not None and origin == f"http://{host}" and site in (None, "same-origin")
