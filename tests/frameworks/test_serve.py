"""``ranktop serve`` as it is: who is let in, what a browser shows, and that nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
from chromium import PROGRAM, Tab, browser
from made_recording import items_of, record

from ranktop.tui.serve.command import serve
from ranktop.wire.schema import Card, End, Job

JOB = Job(id="b1", name="browsed", world_size=2)


@dataclass
class Served:
    """A server that runs."""

    process: subprocess.Popen[str]
    address: str
    token: str

    def next_token(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("another browser: ")
        return line.split("token=")[1].strip()


@pytest.fixture
def served() -> Iterator[Served]:
    cards = [(0.1, rank, Card(job=JOB, rank=rank, node="n1")) for rank in range(2)]
    path = record(JOB, items_of([*cards, *((9.0, rank, End(rank=rank, how="exit", code=0)) for rank in range(2))]))
    process = subprocess.Popen(
        [sys.executable, "-m", "ranktop.tui.cli", "serve", "--listen", "127.0.0.1:0", "replay", str(path)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ) | {"TERM": "dumb", "LANG": "C"},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        found = re.search(r"(http://127\.0\.0\.1:\d+)/\?token=(\S+)", process.stdout.readline())
        assert found is not None
        yield Served(process, found[1], found[2])
    finally:
        process.kill()
        process.communicate()


async def status(client: aiohttp.ClientSession, address: str, **headers: str) -> int:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with client.get(address, headers=named, allow_redirects=False) as answer:
        return int(answer.status)


async def enter(client: aiohttp.ClientSession, served: Served, token: str) -> tuple[str, str]:
    """Spend a token; returns the place and the cookie."""
    async with client.get(f"{served.address}/?token={token}", allow_redirects=False) as answer:
        assert answer.status == 303
        set_cookie = answer.headers["Set-Cookie"]
        place = answer.headers["Location"]
        assert {"HttpOnly", "SameSite=Strict", f"Path={place}"} <= set(set_cookie.split("; "))
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        return place, set_cookie.split(";")[0]


def test_only_who_has_the_token_is_let_in_and_ctrl_c_ends_all(served: Served) -> None:
    async def all_of_it() -> None:
        async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as client:
            at = served.address
            with socket.create_connection(("127.0.0.1", int(at.rpartition(":")[2])), timeout=10) as stranger:
                stranger.sendall(b"GET / HTTP/9.9\r\n\r\n")
                assert b"400" in stranger.recv(100)
            assert await status(client, at + "/") == 401
            assert await status(client, at + "/?token=wrong") == 403
            assert await status(client, f"{at}/?token={served.token}", Host="evil.example") == 403
            assert await status(client, f"{at}/?token={served.token}", Origin="http://evil.example") == 403
            place, cookie = await enter(client, served, served.token)
            assert await status(client, f"{at}/?token={served.token}") == 403, "it is spent"
            other, others_cookie = await enter(client, served, served.next_token())
            served.next_token()
            for path in ("", "ws", "page.js", "static/js/textual.js", "static/css/xterm.css"):
                assert await status(client, at + place + path) == 401
                assert await status(client, at + place + path, Cookie=others_cookie) == 401
                assert await status(client, at + place + path, Cookie=cookie, Host="evil.example") == 403
            for path in ("", "page.js", "page.css", "static/js/textual.js"):
                assert await status(client, at + place + path, Cookie=cookie) == 200
            for path in (
                "static/",
                "static/js/",
                "static/js/..%2f..%2fserver.py",
                "page.html",
                "server.py",
                "download/x",
            ):
                assert await status(client, at + place + path, Cookie=cookie) in (401, 404)
            assert await status(client, at + other, Cookie=others_cookie) == 200
            assert await status(client, at + place + "ws", Cookie=cookie) == 403, "no Origin"
            assert await status(client, at + place + "ws", Cookie=cookie, Origin="http://127.0.0.1:1") == 403
            await talk(client, served, at + place + "ws", {"Cookie": cookie, "Origin": at})

    asyncio.run(all_of_it())


def test_strangers_who_hold_all_descriptors_do_not_fill_the_terminal(caplog: pytest.LogCaptureFixture) -> None:
    from ranktop.tui.serve.server import _trouble

    loop = asyncio.new_event_loop()
    try:
        _trouble(loop, {"message": "full", "exception": OSError(errno.EMFILE, "Too many open files")})
        assert caplog.records == []
        _trouble(loop, {"message": "ours", "exception": ValueError("x")})
        assert len(caplog.records) == 1
    finally:
        loop.close()


async def talk(client: aiohttp.ClientSession, served: Served, address: str, headers: dict[str, str]) -> None:
    """Open a dashboard, send nonsense and a key; then open another one, and end the server."""
    async with client.ws_connect(f"{address}?width=90&height=20", headers=headers) as socket:
        await drawn(socket, b"browsed")
        for nonsense in (
            "",
            "[]",
            "{}",
            "[[[[",
            '["resize", {"width": "x"}]',
            '["resize", [1]]',
            '["stdin", 5]',
            "1e999",
        ):
            await socket.send_str(nonsense)
        await socket.send_str(json.dumps(["ping", "7"]))
        assert await pong(socket) == ["pong", "7"]
        await socket.send_str(json.dumps(["stdin", "q"]))
        with contextlib.suppress(TypeError):
            await drawn(socket, b"nothing of that kind")
        assert socket.close_code == 1000
    async with client.ws_connect(address, headers=headers) as socket:
        await drawn(socket, b"browsed")
        dashboards = psutil.Process(served.process.pid).children(recursive=True)
        assert len(dashboards) == 1
        served.process.send_signal(signal.SIGINT)
        assert served.process.wait(5) == 130
        assert served.process.stderr is not None
        assert served.process.stderr.read() == "", "the stranger has left no mark"
        assert not dashboards[0].is_running()


async def drawn(socket: Any, wanted: bytes) -> None:
    """Read until the dashboard has drawn this; TypeError when it is closed before."""
    seen = b""
    while wanted not in seen:
        seen += await socket.receive_bytes(timeout=30)


async def pong(socket: Any) -> Any:
    while True:
        message = await socket.receive(timeout=30)
        if message.type == aiohttp.WSMsgType.TEXT:
            return json.loads(message.data)


@pytest.mark.skipif(PROGRAM is None, reason="no Chromium (Debian: chromium)")
def test_a_browser_shows_the_dashboard(served: Served, tmp_path: Path) -> None:
    async def all_of_it() -> None:
        async with browser(tmp_path) as chromium:
            tab = await chromium.tab()
            await tab.size(1200, 640)
            await tab.go(f"{served.address}/?token={served.token}")
            await tab.until(lambda: "browsed" in tab.text(), "the job is shown")
            assert "token" not in await tab.value("location.href")
            await shown(tab, tmp_path)
            await tab.type("?")
            await tab.until(lambda: "Order and filter" in tab.text(), "a key arrives")
            await tab.press("Escape", 27)
            wide = tab.screen.columns
            await tab.size(800, 640)
            await tab.until(lambda: tab.screen.columns < wide - 20, "the terminal follows the window")
            await tab.do("Page.reload")
            await tab.until(lambda: tab.opened == 2 and "browsed" in tab.text(), "the cookie is good for a reload")
            second = await chromium.tab()
            await second.go(await tab.value("location.href"))
            await second.until(lambda: "browsed" in second.text(), "and for a second tab")
            stranger = await chromium.tab(apart=True)
            await stranger.go(await tab.value("location.href"))
            await stranger.until_value("document.body.innerText.slice(0, 6)", "closed")
            await stranger.go(f"{served.address}/?token={served.token}")
            await stranger.until_value("document.body.innerText.slice(0, 6)", "closed")
            await tab.type("q")
            await tab.until(lambda: tab.closed == 1, "q quits")
            await tab.until_value("getComputedStyle(document.querySelector('#over')).display", "block")
            assert (tab.failed, second.failed) == ([], [])
            assert all(address.startswith((served.address, "data:")) for address in tab.asked), "nothing from elsewhere"

    asyncio.run(all_of_it())


async def shown(tab: Tab, folder: Path) -> None:
    """See to it that the picture has letters and colours, not only a background."""
    deadline = time.monotonic() + 15.0
    while len(data := await tab.picture(folder / "page.png")) < 10_000:
        assert time.monotonic() < deadline, f"a picture of {len(data)} bytes"
        await asyncio.sleep(0.2)


def test_a_port_that_is_taken_is_one_line_that_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        place = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(SystemExit) as ended:
            serve([], place)
    assert ended.value.code == 1
    told = capsys.readouterr().err
    assert told == f"ranktop: cannot listen on {place}: Address already in use; --listen names another port\n"
