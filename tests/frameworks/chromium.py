"""A headless Chromium, driven by its own protocol (CDP), and what a page's terminal was sent, as it shows it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pyte

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Tab:
    """One page. All methods fail after 30 s."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session
        self.screen = pyte.Screen(80, 24)
        self._stream = pyte.ByteStream(self.screen)
        self.failed: list[str] = []
        """Requests that failed, were blocked or were refused: (address, why)."""
        self.asked: list[str] = []
        """Addresses of all requests."""
        self.opened = self.closed = 0
        """Web sockets; those that go with their page are not said to be closed."""

    async def do(self, method: str, **parameters: Any) -> dict[str, Any]:
        return await self._browser.call(method, parameters, self._session)

    async def go(self, address: str) -> None:
        await self.do("Page.navigate", url=address)

    async def value(self, expression: str) -> Any:
        told = await self.do("Runtime.evaluate", expression=expression, returnByValue=True)
        return told["result"].get("value")

    async def type(self, text: str) -> None:
        for letter in text:
            await self.do("Input.dispatchKeyEvent", type="char", text=letter)

    async def press(self, key: str, code: int) -> None:
        for kind in ("rawKeyDown", "keyUp"):
            await self.do("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    async def size(self, width: int, height: int) -> None:
        await self.do(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    async def picture(self, path: Path) -> bytes:
        data = base64.b64decode((await self.do("Page.captureScreenshot", format="png"))["data"])
        path.write_bytes(data)
        return data

    def text(self) -> str:
        """Return what the page's terminal shows, by what was sent to it."""
        return "\n".join(line.rstrip() for line in self.screen.display)

    async def until(self, condition: Callable[[], object], what: str, seconds: float = 30.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"{what}\n{self.text()}\n{self.failed}"
            await asyncio.sleep(0.05)

    async def until_value(self, expression: str, wanted: object) -> None:
        deadline = time.monotonic() + 30.0
        while (found := await self.value(expression)) != wanted:
            assert time.monotonic() < deadline, f"{expression} is {found!r}"
            await asyncio.sleep(0.05)

    def heard(self, method: str, told: dict[str, Any]) -> None:
        if method == "Network.webSocketFrameReceived":
            frame = told["response"]
            if frame["opcode"] == 2:
                self._stream.feed(base64.b64decode(frame["payloadData"]))
        elif method == "Network.webSocketFrameSent":
            with contextlib.suppress(ValueError):
                kind, data = json.loads(told["response"]["payloadData"])[:2]
                if kind == "resize":
                    self.screen.resize(data["height"], data["width"])
        elif method == "Network.webSocketCreated":
            self.opened += 1
            self.screen.reset()
        elif method == "Network.webSocketClosed":
            self.closed += 1
        elif method == "Network.requestWillBeSent":
            self.asked.append(told["request"]["url"])
        elif method == "Network.loadingFailed":
            self.failed.append(f"{told.get('errorText')} {told.get('blockedReason', '')}")
        elif method == "Network.responseReceived" and told["response"]["status"] >= 400:
            self.failed.append(f"{told['response']['status']} {told['response']['url']}")
        elif method == "Log.entryAdded" and told["entry"]["level"] == "error":
            self.failed.append(told["entry"]["text"])


class Browser:
    """The connection to a browser."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._tabs: dict[str, Tab] = {}

    async def call(self, method: str, parameters: dict[str, Any], session: str = "") -> dict[str, Any]:
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        message = {"id": number, "method": method, "params": parameters}
        await self._socket.send_json(message | ({"sessionId": session} if session else {}))
        return await asyncio.wait_for(answer, 30.0)

    async def tab(self, *, apart: bool = False) -> Tab:
        """Open a page; ``apart``: as another browser, which has none of the cookies."""
        where = await self.call("Target.createBrowserContext", {}) if apart else {}
        target = await self.call("Target.createTarget", {"url": "about:blank", **where})
        attached = await self.call("Target.attachToTarget", {"targetId": target["targetId"], "flatten": True})
        tab = self._tabs[attached["sessionId"]] = Tab(self, attached["sessionId"])
        for area in ("Page", "Runtime", "Network", "Log"):
            await tab.do(f"{area}.enable")
        return tab

    async def listen(self) -> None:
        async for message in self._socket:
            told = json.loads(message.data)
            waiting = self._waiting.pop(told.get("id", 0), None)
            if waiting is not None and not waiting.done():
                if "error" in told:
                    waiting.set_exception(AssertionError(told["error"]["message"]))
                else:
                    waiting.set_result(told["result"])
            tab = self._tabs.get(told.get("sessionId", ""))
            if tab is not None and "method" in told:
                tab.heard(told["method"], told["params"])


@contextlib.asynccontextmanager
async def browser(folder: Path) -> AsyncIterator[Browser]:
    """Start a browser whose profile is in ``folder``; all its processes are gone afterwards."""
    assert PROGRAM is not None
    log = folder / "chromium.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [
                PROGRAM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                "--disable-background-networking", "--disable-component-update", "--disable-extensions",
                "--remote-debugging-port=0", f"--user-data-dir={folder / 'profile'}", "about:blank",
            ],
            stdout=out, stderr=out, start_new_session=True,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 60.0
        while (found := re.search(r"DevTools listening on (ws://\S+)", log.read_text(errors="replace"))) is None:
            alive = process.poll() is None and time.monotonic() < deadline
            assert alive, log.read_text(errors="replace")
            await asyncio.sleep(0.05)
        async with (
            aiohttp.ClientSession() as client,
            client.ws_connect(found[1], max_msg_size=0, heartbeat=None) as socket,
        ):
            opened = Browser(socket)
            listening = asyncio.create_task(opened.listen())
            try:
                yield opened
            finally:
                listening.cancel()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
