"""SVG charts in panels: bandwidth and latency of the demo, lines over categories. No plotting library is needed, nothing but Python."""

from html import escape
from math import ceil, log2

PANEL_W, PANEL_H, LEFT, TOP, BOTTOM = 520, 340, 60, 60, 60
# Width of an average character of the 12 px labels, rounded up, and the space between two labels, in pixels.
CHARACTER_W, LABEL_GAP = 7, 6
COLORS = ["#1f6fb4", "#d1622b", "#2f8f4e", "#8a4fa3", "#7a7a7a", "#b8961a"]
TEXT = 'font-family="sans-serif" font-size="12"'


def size_label(size):
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size // factor} {unit}"
    return f"{size} B"


def nice_ceiling(value):
    """The next round number, for the end of an axis."""
    step = 10 ** (len(str(int(value))) - 1) if value >= 1 else 1
    return max(step, ceil(value / step) * step)


def bandwidth_panel(x0, series, reference):
    """Gbit/s over message size (logarithmic), one line per operation, the TCP stream dashed."""
    sizes = sorted({size for points in series.values() for size, _ in points})
    top = nice_ceiling(max([reference, *(y for points in series.values() for _, y in points)]) * 1.05)
    low, high = log2(sizes[0]), log2(sizes[-1])
    px = lambda size: x0 + LEFT + (log2(size) - low) / max(high - low, 1) * (PANEL_W - LEFT - 20)
    py = lambda y: TOP + (1 - y / top) * (PANEL_H - TOP - BOTTOM + 20)
    parts = [title(x0, "Bandwidth, one queue pair (Gbit/s)"), *y_axis(x0, top, py)]
    labels = [(px(size), size_label(size)) for size in sizes]
    for (x, label), row in zip(labels, rows_of(labels)):
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{py(0):.1f}" y2="{py(0) + 5 + 14 * row:.1f}" stroke="#999"/>')
        parts.append(f'<text {TEXT} x="{x:.0f}" y="{py(0) + 18 + 14 * row:.0f}" text-anchor="middle">{label}</text>')
    parts.append(
        f'<line x1="{x0 + LEFT}" x2="{x0 + PANEL_W - 20}" y1="{py(reference):.1f}" y2="{py(reference):.1f}" '
        'stroke="#555" stroke-dasharray="6 4"/>'
    )
    parts.append(f'<text {TEXT} x="{x0 + LEFT + 6}" y="{py(reference) - 5:.0f}" fill="#555">TCP, 1 stream</text>')
    for color, (name, points) in zip(COLORS, series.items()):
        line = " ".join(f"{px(s):.1f},{py(y):.1f}" for s, y in sorted(points))
        parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts += [f'<circle cx="{px(s):.1f}" cy="{py(y):.1f}" r="3" fill="{color}"/>' for s, y in points]
    parts += legend(x0, list(series))
    return parts


def latency_panel(x0, bars):
    """Median and 99th percentile in microseconds, one pair of bars per test."""
    top = nice_ceiling(max(p99 for _, _, p99 in bars) * 1.05)
    py = lambda y: TOP + (1 - y / top) * (PANEL_H - TOP - BOTTOM + 20)
    slot = (PANEL_W - LEFT - 20) / len(bars)
    parts = [title(x0, "64 B, half a round trip (µs): median, 99th percentile"), *y_axis(x0, top, py)]
    for number, (name, p50, p99) in enumerate(bars):
        x = x0 + LEFT + number * slot
        for offset, value, color in ((0.15, p50, COLORS[0]), (0.5, p99, "#a9c8e6")):
            parts.append(
                f'<rect x="{x + offset * slot:.1f}" y="{py(value):.1f}" width="{0.33 * slot:.1f}" '
                f'height="{py(0) - py(value):.1f}" fill="{color}"/>'
            )
            parts.append(
                f'<text {TEXT} x="{x + (offset + 0.165) * slot:.1f}" y="{py(value) - 4:.0f}" text-anchor="middle">{value:.0f}</text>'
            )
        for row, word in enumerate(name.split("\n")):
            parts.append(
                f'<text {TEXT} x="{x + slot / 2:.0f}" y="{py(0) + 18 + 14 * row:.0f}" text-anchor="middle">{escape(word)}</text>'
            )
    return parts


def rows_of(labels):
    """For each (centre in pixels, text), from left to right, the first row below the axis in which it overlaps no earlier label."""
    ends, rows = [], []
    for x, label in labels:
        half = len(label) * CHARACTER_W / 2
        row = next((r for r, end in enumerate(ends) if x - half >= end + LABEL_GAP), len(ends))
        ends[row : row + 1] = [x + half]
        rows.append(row)
    return rows


def title(x0, text):
    return f'<text font-family="sans-serif" font-size="15" font-weight="bold" x="{x0 + LEFT}" y="24">{escape(text)}</text>'


def y_axis(x0, top, py):
    parts = []
    for step in range(5):
        value = top * step / 4
        y = py(value)
        parts.append(f'<line x1="{x0 + LEFT}" x2="{x0 + PANEL_W - 20}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text {TEXT} x="{x0 + LEFT - 8}" y="{y + 4:.0f}" text-anchor="end">{value:g}</text>')
    return parts


def legend(x0, names):
    parts, width = [], min(130, (PANEL_W - LEFT) // max(len(names), 1))
    for number, (name, color) in enumerate(zip(names, COLORS)):
        x = x0 + LEFT + number * width
        parts.append(f'<rect x="{x}" y="36" width="12" height="12" fill="{color}"/>')
        parts.append(f'<text {TEXT} x="{x + 17}" y="46">{escape(name)}</text>')
    return parts


def svg(series, reference, bars):
    """The demo's drawing. `series`: {name: [(bytes, Gbit/s)]}; `bars`: [(name, p50, p99)]."""
    bandwidth = lambda x0: bandwidth_panel(x0, series, reference) if series else []  # noqa: E731
    latency = lambda x0: latency_panel(x0, bars) if bars else []  # noqa: E731
    return drawing([bandwidth, latency])


def categories_panel(x0, heading, labels, series, top=None):
    """Lines over categories in equal distances: {name: [value or None]}."""
    top = top or nice_ceiling(max(y for values in series.values() for y in values if y is not None) * 1.05)
    px = lambda at: x0 + LEFT + (at + 0.5) * (PANEL_W - LEFT - 20) / len(labels)  # noqa: E731
    py = lambda y: TOP + (1 - min(y, top) / top) * (PANEL_H - TOP - BOTTOM + 20)  # noqa: E731
    parts = [title(x0, heading), *y_axis(x0, top, py)]
    for at, label in enumerate(labels):
        parts.append(f'<text {TEXT} x="{px(at):.0f}" y="{py(0) + 18:.0f}" text-anchor="middle">{escape(label)}</text>')
    for color, (name, values) in zip(COLORS, series.items()):
        points = [(px(at), py(y)) for at, y in enumerate(values) if y is not None]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in points]
    return parts + legend(x0, list(series))


def drawing(panels, columns=2):
    """The whole drawing of panels, which are functions of the position of their left edge, row by row."""
    rows = -(-len(panels) // columns)
    parts = []
    for number, panel in enumerate(panels):
        y = number // columns * PANEL_H
        parts += [f'<g transform="translate(0,{y})">', *panel(number % columns * PANEL_W), "</g>"]
    body = "\n".join(parts)
    width, height = columns * PANEL_W, rows * PANEL_H
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
    )
