"""A terminal's cells as SVG. Blocks become rectangles instead of glyphs, so that bars have no seams in any font."""

from __future__ import annotations

from html import escape

from rich.cells import cell_len
from rich.style import Style

CELL_W, CELL_H, FONT = 8.4, 18.0, 14.0
MARGIN, TITLE = 10.0, 30.0
GROUND = "#14171f"
INK = "#d6dae3"
VERTICAL = "▁▂▃▄▅▆▇█"
HORIZONTAL = "▏▎▍▌▋▊▉"
Run = tuple[str, Style]


def rect(x: float, y: float, width: float, height: float, fill: str) -> str:
    """Return a rectangle without soft edges: neighbours must meet."""
    place = f'x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}"'
    return f'<rect shape-rendering="crispEdges" {place} fill="{fill}"/>'


def color(style: Style, *, ground: bool) -> str | None:
    """Return the background or foreground of a style, None for the terminal's own."""
    chosen = style.bgcolor if ground else style.color
    return None if chosen is None or chosen.is_default else chosen.get_truecolor().hex


def blocks(text: str, x: float, y: float, ink: str) -> list[str]:
    """Draw a run of equal block characters as one rectangle; empty for other text."""
    width = len(text) * CELL_W
    first = text[0]
    if any(character != first for character in text):
        return []
    if first == "▀":
        return [rect(x, y, width, CELL_H / 2, ink)]
    if first in VERTICAL:
        height = CELL_H * (VERTICAL.index(first) + 1) / 8
        return [rect(x, y + CELL_H - height, width, height, ink)]
    if first in HORIZONTAL and len(text) == 1:
        return [rect(x, y, CELL_W * (HORIZONTAL.index(first) + 1) / 8, CELL_H, ink)]
    return []


def pieces(text: str) -> list[str]:
    """Split a run where block characters begin, change or end."""
    special = "▀" + VERTICAL + HORIZONTAL
    out: list[str] = []
    for character in text:
        kind = character if character in special else ""
        last = out[-1][-1] if out else None
        if last is not None and kind == (last if last in special else ""):
            out[-1] += character
        else:
            out.append(character)
    return out


def words(text: str, x: float, y: float, style: Style, ink: str) -> list[str]:
    """Place each word by itself: renderers don't agree on the width of spaces."""
    weight = ' font-weight="bold"' if style.bold else ""
    out: list[str] = []
    at = 0
    for word in text.split(" "):
        if word:
            left, width = x + at * CELL_W, cell_len(word) * CELL_W
            place = f'x="{left:.2f}" y="{y + CELL_H * 0.74:.2f}" textLength="{width:.2f}"'
            out.append(f'<text {place} fill="{ink}"{weight}>{escape(word)}</text>')
        at += cell_len(word) + 1
    return out


def row_svg(runs: list[Run], y: float) -> list[str]:
    """Draw one row of cells, backgrounds first."""
    under: list[str] = []
    over: list[str] = []
    x = MARGIN
    for text, style in runs:
        ink, ground = color(style, ground=False) or INK, color(style, ground=True)
        if ground and ground != GROUND:
            under.append(rect(x, y, cell_len(text) * CELL_W, CELL_H, ground))
        for piece in pieces(text):
            over += blocks(piece, x, y, ink) or words(piece, x, y, style, ink)
            x += cell_len(piece) * CELL_W
    return [*under, *over]


def svg(rows: list[list[Run]], columns: int, title: str) -> str:
    """Return the picture of a terminal window that shows these rows."""
    width = columns * CELL_W + 2 * MARGIN
    height = len(rows) * CELL_H + TITLE + MARGIN
    lights = "".join(
        f'<circle cx="{18 + 18 * at}" cy="15" r="5.5" fill="{fill}"/>'
        for at, fill in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    )
    body = [part for at, runs in enumerate(rows) for part in row_svg(runs, TITLE + at * CELL_H)]
    fonts = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', 'Liberation Mono', monospace"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
            f'font-family="{fonts}" font-size="{FONT}" role="img" aria-label="{escape(title)}">',
            f'<rect width="100%" height="100%" rx="8" fill="{GROUND}"/>',
            lights,
            *body,
            "</svg>",
            "",
        ]
    )
