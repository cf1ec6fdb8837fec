"""How a dashboard is to be drawn, as every command takes it that opens one."""

from __future__ import annotations

from typing import Annotated

import typer

from ranktop.tui.completion import one_of
from ranktop.tui.config.table import THEMES

Theme = Annotated[
    str | None, typer.Option(help="dark, light, ansi, ansi-dark, ansi-light or none.", autocompletion=one_of(*THEMES))
]

Ascii = Annotated[bool | None, typer.Option("--ascii/--no-ascii", help="Draw without Unicode.")]
