"""Charts as SVG: lines with a logarithmic y axis, dots in rows, and heat maps. They are legible at 500 pixels."""

import math

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 560, 340, 62, 40, 16, 46
# A chart has at most seven colors, which color-blind readers can tell apart. An eighth line is dashed, and if there are more, all
# lines after the seventh are thin and gray.
COLORS = ["#222222", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"]
REST = "#c4c4c4"


def escape(text):
    return str(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def text(x, y, what, anchor="middle", size=13, color="#222"):
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


def ticks(low, high):
    """Returns ticks of each power of ten, from the last below `low` to the first above `high`: 1, 2, and 5, or more where
    values are close together."""
    steps = (1, 2, 5) if high / low > 3 else (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9)
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    every = [step * 10.0**power for power in powers for step in steps]
    return [y for y in every if max(t for t in every if t <= low) <= y <= min(t for t in every if t >= high)]


def lines(title, x_name, y_name, series, mark=None):
    """Draws `series`, a list of (name, [(x, y)]), on a logarithmic y axis. `mark` is (x, name) of a vertical line."""
    xs = sorted({x for _, points in series for x, _ in points})
    ys = [y for _, points in series for _, y in points]
    labels = ticks(min(ys), max(ys))
    low, high = math.log10(labels[0]), math.log10(labels[-1]) + 0.02
    # A point is in the middle of its bucket, so the axis ends half a bucket later.
    most = xs[-1] + (xs[-1] - xs[-2] if len(xs) > 1 else 0) / 2

    def at(x, y):
        return (
            LEFT + x / most * (WIDTH - LEFT - RIGHT),
            TOP + (high - math.log10(y)) / (high - low) * (HEIGHT - TOP - BOTTOM),
        )

    parts = []
    for y in labels:
        _, py = at(0, y)
        parts.append(f'<path d="M{LEFT} {py:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(text(LEFT - 6, py + 4, f"{y:g}", "end"))
    step = 2 ** math.ceil(math.log2(most / 5))
    for i in range(int(most // step) + 1):
        px, _ = at(i * step, labels[0])
        parts.append(f'<path d="M{px:.1f} {HEIGHT - BOTTOM}v4" stroke="#888"/>')
        last = px > WIDTH - RIGHT - 20
        parts.append(
            text(WIDTH - 4 if last else px, HEIGHT - BOTTOM + 18, f"{i * step:,.0f}", "end" if last else "middle")
        )
    if mark:
        px, _ = at(mark[0], labels[0])
        parts.append(f'<path d="M{px:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#888" stroke-dasharray="4 4"/>')
    pens = [f'stroke="{color}" stroke-width="2"' for color in COLORS]
    if len(series) == len(pens) + 1:
        pens.append(f'stroke="{COLORS[0]}" stroke-width="2" stroke-dasharray="5 4"')
    gray = f'stroke="{REST}" stroke-width="1.5"'
    styles = [*zip(series, pens), *((of, gray) for of in series[len(pens) :])]
    legend = [(name, pen) for (name, _), pen in styles[: len(pens)]]
    if len(series) > len(pens):
        legend.append((f"{len(series) - len(pens)} others (see the table)", gray))
    for (_, points), pen in reversed(styles):
        path = "L".join("{:.1f} {:.1f}".format(*at(x, y)) for x, y in points)
        parts.append(f'<path d="M{path}" fill="none" {pen}/>')
    if mark:
        label = text(px + 5, TOP + 12, mark[1], "start", 12, "#666")
        # A white outline separates the label from lines under it.
        parts.append(f'<g stroke="#fff" stroke-width="4">{label}</g>')
        parts.append(label)
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, x_name))
    parts.append(f'<g transform="translate(16 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)">{text(0, 0, y_name)}</g>')
    # The legend is a table under the chart, in as many columns as its longest name allows.
    longest = max(len(name) for name, _ in legend)
    columns = max(1, min(4, len(legend), int((WIDTH - LEFT) // (44 + 7 * longest))))
    wide = (WIDTH - LEFT) / columns
    for i, (name, pen) in enumerate(legend):
        x, y = LEFT + wide * (i % columns), HEIGHT + 16 + 20 * (i // columns)
        parts.append(f'<path d="M{x:.1f} {y}h22" {pen}/>')
        parts.append(text(x + 28, y + 4, name, "start"))
    return frame(WIDTH, HEIGHT + 12 + 20 * math.ceil(len(legend) / columns), title, parts)


def dots(title, x_name, rows):
    """Draws a row for each (name, values) of `rows`, from 0: a dot for each value, and a bar at their mean."""
    left, row_height, bottom = 40 + 6 * max(len(name) for name, _ in rows), 26, TOP + 26 * len(rows) + 6
    most = min(100, 10 * math.ceil(max(max(values) for _, values in rows) / 10 + 0.01))
    scale = (WIDTH - RIGHT - 24 - left) / most
    parts = []
    for x in range(0, most + 1, 10):
        px = left + x * scale
        parts.append(f'<path d="M{px:.1f} {TOP - 4}V{bottom}" stroke="#ddd"/>')
        parts.append(text(px, bottom + 18, x))
    for i, (name, values) in enumerate(rows):
        y = TOP + row_height * (i + 0.5)
        middle = left + scale * sum(values) / len(values)
        parts.append(text(left - 10, y + 4, name, "end"))
        parts.append(f'<path d="M{middle:.1f} {y - 9}v18" stroke="{COLORS[1]}" stroke-width="4"/>')
        for value in values:
            parts.append(
                f'<circle cx="{left + scale * value:.1f}" cy="{y}" r="4" fill="#fff" fill-opacity="0.6" stroke="{COLORS[0]}"/>'
            )
        last = left + scale * max(values)
        parts.append(text(last + 10, y + 4, f"{sum(values) / len(values):.0f}", "start"))
    parts.append(text((left + WIDTH - RIGHT) / 2, bottom + 40, x_name))
    return frame(WIDTH, bottom + 52, title, parts)


def maps(title, grids, columns, rows):
    """Draws one heat map for each (name, {(column, row): (right, asked)}) of `grids`, two in a row."""
    cell, row_height, left, top, per_row = 50, 28, 92, 40, 2
    wide, high = len(columns) * cell, len(rows) * row_height + 60
    width = max(WIDTH, left + per_row * (wide + 24))
    parts = []
    for g, (name, cells) in enumerate(grids):
        x0, y0 = left + (g % per_row) * (wide + 24), top + (g // per_row) * high + 24
        parts.append(text(x0 + wide / 2, y0 - 8, name))
        if g % per_row == 0:
            middle = y0 + len(rows) * row_height / 2
            parts.append(f'<g transform="translate(28 {middle}) rotate(-90)">{text(0, 0, "needle depth")}</g>')
        for j, row in enumerate(rows):
            if g % per_row == 0:
                parts.append(text(left - 8, y0 + (j + 0.5) * row_height + 4, f"{row}%", "end"))
            for i, column in enumerate(columns):
                right, asked = cells.get((column, row), (0, 0))
                share = right / asked if asked else 0
                fill = (
                    f"rgb({int(245 - 222 * share)},{int(245 - 100 * share)},{int(245 - 72 * share)})"
                    if asked
                    else "#fff"
                )
                parts.append(
                    f'<rect x="{x0 + i * cell}" y="{y0 + j * row_height}" width="{cell - 2}" height="{row_height - 2}" fill="{fill}" stroke="#ccc"/>'
                )
                if asked:
                    middle = y0 + (j + 0.5) * row_height
                    parts.append(text(x0 + (i + 0.5) * cell - 1, middle + 4, f"{right:g}/{asked}"))
        for i, column in enumerate(columns):
            parts.append(text(x0 + (i + 0.5) * cell - 1, y0 + len(rows) * row_height + 14, f"{column // 1024}k"))
    height = top + math.ceil(len(grids) / per_row) * high + 14
    parts.append(text(left + min(len(grids), per_row) * (wide + 24) / 2 - 12, height - 10, "context (tokens)"))
    return frame(width, height, title, parts)
