"""The web server: one page, one web socket for each dashboard; page and terminal (xterm.js) are textual-serve's."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import signal
import socket
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

import textual_serve
from aiohttp import WSMsgType, web
from aiohttp.http_exceptions import HttpProcessingError

from ranktop.tui.serve.gate import COOKIE, Gate, asked_here, from_own_page
from ranktop.tui.serve.terminal import Dashboard

MOST: Final = 16
"""Dashboards at a time."""

_HERE: Final = Path(__file__).parent
_STATIC: Final = Path(textual_serve.__file__).parent / "static"
_LONGEST: Final = 64 * 1024
"""Bytes of a message from the page."""
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "font-src 'self' data:; img-src 'self' data:; connect-src 'self' ws://{host}; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
CLOSED: Final = "closed: start from the address that `ranktop serve` has printed last; each is good for one browser\n"
STRANGE: Final = "refused: this server answers this machine's own names only, and its own page\n"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """Serves dashboards of ``ranktop WORDS`` until it is told to end."""

    def __init__(self, words: Sequence[str], told: Callable[[str], None], gate: Gate | None = None) -> None:
        """``told``: is given the token of the next address, at the start and whenever one was spent."""
        self._words = tuple(words)
        self._told = told
        self.gate = gate or Gate()
        self._dashboards: set[Dashboard] = set()
        self._over = asyncio.Event()
        self.application = web.Application(middlewares=[self._guard])
        self.application.on_response_prepare.append(_harden)
        self.application.add_routes([
            web.get("/", self._enter),
            web.get("/{place}/", self._page),
            web.get("/{place}/ws", self._talk),
            web.get("/{place}/{name:page[.](?:css|js)}", self._own_file),
            web.get("/{place}/static/{path:(?:css|fonts|images|js)/[A-Za-z0-9._-]+}", self._static_file),
        ])  # fmt: skip

    async def run(self, listening: socket.socket) -> int:
        """Serve until SIGINT, SIGTERM or SIGHUP; returns its number."""
        loop = asyncio.get_running_loop()
        number: list[int] = []

        def end(signum: int) -> None:
            number.append(signum)
            self._over.set()

        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(signum, end, signum)
        logging.getLogger("aiohttp.server").addFilter(_ours)
        loop.set_exception_handler(_trouble)
        runner = web.AppRunner(self.application, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        await web.SockSite(runner, listening).start()
        self._told(self.gate.token)
        await self._over.wait()
        await asyncio.gather(*(dashboard.end() for dashboard in list(self._dashboards)))
        await runner.cleanup()
        return number[0] if number else 0

    @web.middleware  # type: ignore[untyped-decorator, unused-ignore]
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let nothing through but what a browser asks that was let in, for its own place."""
        origin, host = request.headers.get("Origin"), request.headers.get("Host")
        if not asked_here(host) or (origin is not None and not from_own_page(origin, host)):
            return web.Response(status=403, text=STRANGE)
        place = request.match_info.get("place")
        if request.path != "/" and not self.gate.opens(place or "", request.cookies.get(COOKIE, "")):
            return web.Response(status=401, text=CLOSED)
        return await handler(request)

    async def _enter(self, request: web.Request) -> web.StreamResponse:
        # Not as a page of somebody else's asks: a link is followed by a click, a token cannot be guessed.
        admitted = self.gate.admit(request.query.get("token", ""))
        if admitted is None:
            return web.Response(status=403 if "token" in request.query else 401, text=CLOSED)
        place, cookie = admitted
        # On to an address without the token: it would stay in the history.
        answer = web.Response(status=303, headers={"Location": f"/{place}/"})
        answer.set_cookie(COOKIE, cookie, path=f"/{place}/", httponly=True, samesite="Strict")
        self._told(self.gate.token)
        return answer

    async def _page(self, request: web.Request) -> web.StreamResponse:
        return web.Response(text=(_HERE / "page.html").read_text(encoding="utf-8"), content_type="text/html")

    async def _own_file(self, request: web.Request) -> web.StreamResponse:
        return web.FileResponse(_HERE / request.match_info["name"])

    async def _static_file(self, request: web.Request) -> web.StreamResponse:
        path = _STATIC / request.match_info["path"]
        return web.FileResponse(path) if path.is_file() else web.Response(status=404)

    async def _talk(self, request: web.Request) -> web.StreamResponse:
        headers = request.headers
        if not from_own_page(headers.get("Origin"), headers.get("Host"), headers.get("Sec-Fetch-Site")):
            return web.Response(status=403, text=STRANGE)
        if len(self._dashboards) >= MOST:
            return web.Response(status=503, text=f"{MOST} dashboards are open already\n")
        browser = web.WebSocketResponse(heartbeat=15.0, max_msg_size=_LONGEST)
        await browser.prepare(request)
        dashboard = Dashboard(
            self._words, _number(request.query.get("width"), 80), _number(request.query.get("height"), 24)
        )
        self._dashboards.add(dashboard)
        drawing = asyncio.create_task(_draw(dashboard, browser))
        try:
            async for message in browser:
                if message.type == WSMsgType.TEXT and (answer := _take(message.data, dashboard)):
                    await browser.send_str(answer)
        finally:
            drawing.cancel()
            with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                await drawing
            await dashboard.end()
            self._dashboards.discard(dashboard)
        return browser


def _ours(record: logging.LogRecord) -> bool:
    """Tell whether to log: what a stranger sends that is no HTTP must not hide the address in the terminal."""
    return record.exc_info is None or not isinstance(record.exc_info[1], HttpProcessingError)


def _trouble(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Tell of what nothing else catches, but not that strangers hold all descriptors: asyncio tries again by itself."""
    error = context.get("exception")
    if not (isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)):
        loop.default_exception_handler(context)


async def _draw(dashboard: Dashboard, browser: web.WebSocketResponse) -> None:
    """Pass on what a dashboard draws until it ends; it paces itself by the terminal's answers."""
    while data := await dashboard.read():
        await browser.send_bytes(data)
    code = await dashboard.code()
    await browser.close(message=f"exit code {code}".encode())


def _take(text: str, dashboard: Dashboard) -> str:
    """Take a message of the page: ``[kind, data]``, as textual.js makes them; returns what to answer. Never raises."""
    try:
        message: Any = json.loads(text)
        kind, data = message[0], (message[1:] or [None])[0]
        if kind == "stdin" and isinstance(data, str):
            dashboard.write(data.encode("utf-8", "replace"))
        elif kind == "resize" and isinstance(data, dict):
            dashboard.resize(int(data["width"]), int(data["height"]))
        elif kind == "ping" and isinstance(data, str):
            return json.dumps(["pong", data[:32]])
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError, OSError):
        pass
    return ""


def _number(text: str | None, default: int) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 6 else default


async def _harden(request: web.Request, response: web.StreamResponse) -> None:
    host = request.headers.get("Host") if asked_here(request.headers.get("Host")) else "127.0.0.1"
    for name, value in _HEADERS.items():
        response.headers[name] = value.replace("{host}", host or "")
