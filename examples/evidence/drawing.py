"""Charts as SVG: lines with a logarithmic axis, and heat maps."""

import math

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 760, 420, 64, 40, 190, 48
COLORS = [
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#56b4e9",
    "#e69f00",
    "#555555",
    "#8c564b",
    "#9467bd",
    "#17becf",
    "#bcbd22",
    "#1f77b4",
]
DASHES = ["", "6 3", "2 3"]


def escape(text):
    return str(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def text(x, y, what, anchor="middle", size=12, color="#222"):
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{color}">{escape(what)}</text>'
    )


def frame(width, height, title, parts):
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">'
    back = f'<rect width="{width}" height="{height}" fill="#fff"/>'
    return (
        "\n".join(
            [head, f"<title>{escape(title)}</title>", back, text(width / 2, 22, title, size=14), *parts, "</svg>"]
        )
        + "\n"
    )


def lines(title, x_name, y_name, series, mark=None):
    """`series` is [(name, [(x, y)])]; the y axis is logarithmic. `mark` is (x, name) of a line down."""
    xs = [x for _, points in series for x, _ in points]
    ys = [y for _, points in series for _, y in points]
    low, high = math.log10(min(ys)) - 0.03, math.log10(max(ys)) + 0.03
    most = max(xs) * 1.03

    def at(x, y):
        return (
            LEFT + x / most * (WIDTH - LEFT - RIGHT),
            TOP + (high - math.log10(y)) / (high - low) * (HEIGHT - TOP - BOTTOM),
        )

    parts = []
    for power in range(math.floor(low), math.ceil(high) + 1):
        for step in (1, 2, 5):
            y = step * 10**power
            if low <= math.log10(y) <= high:
                _, py = at(0, y)
                parts.append(f'<path d="M{LEFT} {py:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
                parts.append(text(LEFT - 6, py + 4, f"{y:g}", "end"))
    step = 2 ** math.floor(math.log2(most / 5))
    for i in range(int(most // step) + 1):
        px, _ = at(i * step, 10**low)
        parts.append(text(px, HEIGHT - BOTTOM + 18, f"{i * step:,.0f}"))
    if mark:
        px, _ = at(mark[0], 10**low)
        parts.append(f'<path d="M{px:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#888" stroke-dasharray="4 4"/>')
        parts.append(text(px + 4, TOP + 12, mark[1], "start", 11, "#666"))
    for i, (name, points) in enumerate(series):
        color, dash = COLORS[i % len(COLORS)], DASHES[i // len(COLORS) % len(DASHES)]
        path = "L".join("{:.1f} {:.1f}".format(*at(x, y)) for x, y in points)
        parts.append(f'<path d="M{path}" fill="none" stroke="{color}" stroke-width="2" stroke-dasharray="{dash}"/>')
        y = TOP + 10 + 16 * i
        parts.append(
            f'<path d="M{WIDTH - RIGHT + 12} {y}h22" stroke="{color}" stroke-width="2" stroke-dasharray="{dash}"/>'
        )
        parts.append(text(WIDTH - RIGHT + 40, y + 4, name, "start", 11))
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, x_name))
    parts.append(f'<g transform="translate(16 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)">{text(0, 0, y_name)}</g>')
    return frame(WIDTH, max(HEIGHT, TOP + 26 + 16 * len(series)), title, parts)


def maps(title, grids, columns, rows):
    """`grids` is [(name, {(column, row): (right, asked)})]: one heat map each."""
    cell, gap, left, top = 46, 26, 52, 64
    wide = len(columns) * cell
    parts = []
    for g, (name, cells) in enumerate(grids):
        x0 = left + g * (wide + gap)
        parts.append(text(x0 + wide / 2, top - 10, name, size=12))
        for j, row in enumerate(rows):
            if g == 0:
                parts.append(text(left - 6, top + j * cell + cell / 2 + 4, f"{row} %", "end"))
            for i, column in enumerate(columns):
                right, asked = cells.get((column, row), (0, 0))
                share = right / asked if asked else 0
                fill = (
                    f"rgb({int(245 - 222 * share)},{int(245 - 100 * share)},{int(245 - 72 * share)})"
                    if asked
                    else "#fff"
                )
                parts.append(
                    f'<rect x="{x0 + i * cell}" y="{top + j * cell}" width="{cell - 2}" height="{cell - 2}" fill="{fill}" stroke="#ccc"/>'
                )
                if asked:
                    parts.append(
                        text(x0 + i * cell + cell / 2 - 1, top + j * cell + cell / 2 + 4, f"{right:g}/{asked}", size=11)
                    )
        for i, column in enumerate(columns):
            parts.append(text(x0 + i * cell + cell / 2, top + len(rows) * cell + 14, f"{column // 1024}k", size=11))
    width = left + len(grids) * (wide + gap)
    return frame(width, top + len(rows) * cell + 30, title, parts)
