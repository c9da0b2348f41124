"""Pictures as SVG, written by hand: they must also come out on a GPU host that has no plotting library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

BASE, PATCHED, WAIT, WORK = "#b35806", "#2166ac", "#d73027", "#9ecae1"
WIDTH, LEFT, RIGHT, LANE = 860, 210, 40, 20


def runs(title: str, times: dict[str, Any]) -> str:
    """Every run's median by quantity: base above patched, a dot a run, a bar at the mean; ms, from zero."""
    height = 50 + (2 * LANE + 26) * len(times)
    parts = [_text(10, 22, title, bold=True)]
    y = 48
    for name, comparison in times.items():
        most = max(comparison[arm]["slowest"] for arm in ("base", "patched"))
        parts.append(_text(10, y + LANE + 4, name))
        for arm, colour in (("base", BASE), ("patched", PATCHED)):
            middle = y + LANE / 2
            mean = _place(comparison[arm]["mean"], most)
            parts.append(_bar(LEFT, y + 4, mean - LEFT, LANE - 8, colour, 0.3))
            parts += [_dot(_place(ms, most), middle, colour) for ms in comparison[arm]["medians"]]
            parts.append(_text(WIDTH - RIGHT + 4, middle + 4, f"{comparison[arm]['mean']:.3g}", size=10))
            y += LANE
        y += 26
    return _svg(height, parts)


def _place(ms: float, most: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * ms / (most or 1.0)


@dataclass(frozen=True)
class Span:
    """Something on a timeline, ms from the step's start; ``kind``: ``wait`` (host), ``host`` or ``device``."""

    kind: str
    start: float
    length: float
    name: str


def timeline(title: str, lanes: Sequence[tuple[str, Sequence[Span]]], unit: str = "ms") -> str:
    """One step of each tree, one below the other on one scale: host, host waits (marked) and device.

    Args:
        lanes: (tree, spans), in the order to draw.
        unit: Of the axis; ``events`` where there are no times, only an order.
    """
    most = max((span.start + span.length for _, spans in lanes for span in spans), default=1.0) or 1.0
    parts, y = [_text(10, 22, title, bold=True)], 40
    for tree, spans in lanes:
        waits = [span for span in spans if span.kind == "wait"]
        blocked = f", {sum(span.length for span in waits):.2f} ms blocked" if unit == "ms" else ""
        parts.append(_text(10, y + 14, tree, bold=True))
        parts.append(_text(10, y + 28, f"{len(waits)} host waits{blocked}", size=10))
        for lane, kinds in enumerate((("host", "wait"), ("device",))):
            top = y + lane * (LANE + 4)
            parts.append(_bar(LEFT, top, WIDTH - LEFT - RIGHT, LANE, "#f4f4f4"))
            parts.append(_text(LEFT - 46, top + 14, ("host", "device")[lane], size=10))
            parts += [_span(span, top, most) for span in spans if span.kind in kinds]
        y += 2 * (LANE + 4) + 22
    return _svg(y + 20, [*parts, *_axis(y, most, unit)])


def _span(span: Span, top: float, most: float) -> str:
    x, end = _place(span.start, most), _place(span.start + span.length, most)
    colour = {"wait": WAIT, "host": "#cccccc", "device": WORK}[span.kind]
    box = _bar(x, top, max(end - x, 0.8), LANE, colour, about=f"{span.name}: {span.length:.3f}")
    return box + (f'<path d="M{x:.2f} {top - 2} l-3 -5 h6 z" fill="{WAIT}"/>' if span.kind == "wait" else "")


def _axis(y: float, most: float, unit: str) -> list[str]:
    marks = [most * i / 4 for i in range(5)]
    return [
        _text(_place(mark, most) - 8, y + 8, f"{mark:.3g} {unit if mark == most else ''}", size=10) for mark in marks
    ]


def _bar(x: float, y: float, width: float, height: float, colour: str, opacity: float = 1.0, about: str = "") -> str:
    shape = (
        f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{height}" fill="{colour}" fill-opacity="{opacity:g}"'
    )
    return f"{shape}><title>{escape(about)}</title></rect>" if about else f"{shape}/>"


def _dot(x: float, y: float, colour: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>'


def _text(x: float, y: float, text: str, size: int = 12, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}"{weight}>{escape(text)}</text>'


def _svg(height: float, parts: list[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" font-family="sans-serif">'
    return "\n".join([head, f'<rect width="{WIDTH}" height="{height:.0f}" fill="white"/>', *parts, "</svg>"]) + "\n"
