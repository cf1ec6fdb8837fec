"""No picture of the documentation is older than the screen it shows: each is drawn anew and compared."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from docs_pages import ROOT, links, pages


def test_every_picture_is_what_the_screen_shows_today(tmp_path: Path) -> None:
    """Where this fails: `python docs/make_pictures.py`, look at them, commit them."""
    script = ROOT / "docs" / "make_pictures.py"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RANKTOP_")}
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True, env=environment)
    drawn = {path.name: path.read_bytes() for path in tmp_path.glob("*.svg")}
    kept = {path.name: path.read_bytes() for path in (ROOT / "docs").glob("*.svg")}
    assert drawn.keys() == kept.keys()
    assert [name for name in sorted(drawn) if drawn[name] != kept[name]] == []


def test_every_picture_is_shown_and_is_small() -> None:
    shown = {Path(link).name for page in pages() for link in links(page) if link.endswith(".svg")}
    kept = list((ROOT / "docs").glob("*.svg"))
    assert {path.name for path in kept} <= shown
    assert all(path.stat().st_size < 120_000 for path in kept)
    assert (ROOT / "docs" / "session.ranktop").stat().st_size < 300_000
