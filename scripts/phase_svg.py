"""The phase diagram as SVG. What it shows is read from the Mermaid text, which is itself drawn from the machine's table."""

from __future__ import annotations

import html
import math
import re

# Where each phase stands: x and y of its middle. A phase without a place is an error, so that none can be missing from the picture.
PLACES = {
    "IDLE": (110, 60),
    "MODEL_DUE": (330, 60),
    "MODEL_RUNNING": (660, 200),
    "STALLED": (660, 60),
    "TOOLS": (560, 340),
    "ENDING": (230, 340),
}
WIDTH, HEIGHT = 132, 40

_ARROW = re.compile(r"^ *(\w+) --> (\w+): (.+)$", re.MULTILINE)


def drawn(mermaid: str) -> str:
    """The picture, and below it a table of what leads from where to where, which is also what a screen reader reads."""
    arrows = [(match[1], match[2], match[3]) for match in _ARROW.finditer(mermaid)]
    shapes = [_arrow(source, target, records) for source, target, records in arrows if source != target]
    for name, (x, y) in PLACES.items():
        box = f'<rect x="{x - WIDTH / 2:g}" y="{y - HEIGHT / 2:g}" width="{WIDTH}" height="{HEIGHT}" rx="8"/>'
        shapes.append(f'{box}<text x="{x}" y="{y}">{name}</text>')
    start = '<circle cx="12" cy="60" r="6" style="fill:currentColor"/>' + _line((18, 60), (110 - WIDTH / 2, 60), "start")
    rows = "\n".join(
        f"| {source} | {'stays' if target == source else target} | {', '.join(f'`{name}`' for name in records.split(', '))} |"
        for source, target, records in arrows
    )
    box = 'class="phases" viewBox="0 0 750 380" role="img" aria-label="The phases, as in the table below"'
    svg = f"<svg {box}>{start}{''.join(shapes)}</svg>"
    return f"{svg}\n\n| from | to | when this is recorded |\n|---|---|---|\n{rows}\n"


def _arrow(source: str, target: str, records: str) -> str:
    """An arrow from edge to edge, moved a little to its right, so that there and back again are two arrows."""
    (x1, y1), (x2, y2) = PLACES[source], PLACES[target]
    length = math.hypot(x2 - x1, y2 - y1)
    dx, dy = -(y2 - y1) / length * -9, (x2 - x1) / length * -9
    return _line(_edge(x1 + dx, y1 + dy, x1, y1, x2 - x1, y2 - y1), _edge(x2 + dx, y2 + dy, x2, y2, x1 - x2, y1 - y2), records)


def _edge(x: float, y: float, cx: float, cy: float, dx: float, dy: float) -> tuple[float, float]:
    """Where a line from (x, y) towards (dx, dy) leaves the box around (cx, cy)."""
    reach: list[float] = []
    if dx:
        reach.append(((WIDTH / 2 if dx > 0 else -WIDTH / 2) + cx - x) / dx)
    if dy:
        reach.append(((HEIGHT / 2 if dy > 0 else -HEIGHT / 2) + cy - y) / dy)
    step = min(reach)
    return x + dx * step, y + dy * step


def _line(begin: tuple[float, float], end: tuple[float, float], title: str) -> str:
    angle = math.atan2(end[1] - begin[1], end[0] - begin[0])
    wings = [(end[0] - 9 * math.cos(angle + turn), end[1] - 9 * math.sin(angle + turn)) for turn in (-0.4, 0.4)]
    head = " ".join(f"L{x:.1f} {y:.1f}" for x, y in wings)
    return (
        f'<path class="arrow" d="M{begin[0]:.1f} {begin[1]:.1f}L{end[0]:.1f} {end[1]:.1f}"><title>{html.escape(title)}</title></path>'
        f'<path class="head" d="M{end[0]:.1f} {end[1]:.1f}{head}Z"/>'
    )
