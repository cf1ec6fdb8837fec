"""The dashboard with keys, and a first look, of its person's own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from dashboard import dashboard
from fake_job import fsdp_job
from test_dashboard_pty import terminal

from ranktop.tui import keymap
from ranktop.tui.screens.device import DeviceScreen
from ranktop.tui.screens.help import HelpScreen
from ranktop.tui.screens.imbalance import ImbalanceScreen
from ranktop.tui.screens.ranks import RanksScreen

OWN = """
[dashboard]
sort = "used"
moment = "forward_end"
detail = false
theme = "none"
[keys]
imbalance = ["I", "F2"]
quit = "Q"
help = "F1"
filter = "ctrl+f"
"""


def test_changed_keys_do_what_theirs_did_and_the_old_ones_nothing() -> None:
    keymap.use({
        "device": ("i",), "imbalance": ("d",), "grid-device": ("i",), "grid-back": ("escape", "d"), "help": ("f1",),
        "filter": ("ctrl+f",), "rank-down": ("n",),
    })  # fmt: skip

    async def pressing() -> None:
        async with dashboard(fsdp_job(16)) as run:
            for key, screen in (
                ("d", ImbalanceScreen), ("d", RanksScreen), ("i", DeviceScreen), ("escape", RanksScreen),
                ("f1", HelpScreen), ("f1", RanksScreen), ("question_mark", RanksScreen),
            ):  # fmt: skip
                await run.press(key)
                assert type(run.app.screen) is screen, key
            await run.press("n", "j")
            assert run.ranks.options.selected == 1
            await run.press("slash")
            assert not run.ranks.options.typing
            await run.press("ctrl+f", *"node2", "enter")
            assert "8 of 16 ranks" in run.text()
            assert "F1 help  q quit  d imbalance" in run.text()

    asyncio.run(pressing())


def test_a_real_dashboard_has_the_keys_and_the_look_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ranktop.toml"
    path.write_text(OWN)
    monkeypatch.setenv("RANKTOP_CONFIG", str(path))
    with terminal(tmp_path / "drained", "configured") as tty:
        tty.until("▼GiB")
        assert b"\x1b[38;" not in tty.seen  # no colour, as the theme says
        tty.press(b"\x1bOP")
        tty.until("Order and filter")
        tty.press(b"\x1bOPI")
        tty.until("metric")
        tty.press(b"qQ")
        assert tty.ended(5.0) == 0
