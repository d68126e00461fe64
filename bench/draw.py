# SPDX-License-Identifier: Apache-2.0
"""Charts as SVG, without a library.

There is no background, and every colour is one that both a white page and a black one carry.
"""
import math

INK = "#7d8590"
COLOURS = ["#2f81f7", "#d29922", "#3fb950", "#db61a2", "#a371f7", "#f0883e", "#39c5cf"]
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 360, 64, 170, 34, 46


class Axis:
    def __init__(self, low, high, ticks, logarithmic):
        self.ticks, self.logarithmic = ticks, logarithmic
        self.low, self.high = self.place(low), self.place(high)

    def place(self, value):
        return math.log10(value) if self.logarithmic else value

    def share(self, value):
        return (self.place(value) - self.low) / (self.high - self.low)


def chart(path, title, x, y, series, x_label, y_label):
    """Writes a chart. x and y are an Axis, ticks are (value, text), series (name, points, style): `line`, `dashed`,
    `points` or a mixture of them."""
    def at(point):
        return (LEFT + (WIDTH - LEFT - RIGHT) * x.share(point[0]),
                TOP + (HEIGHT - TOP - BOTTOM) * (1 - y.share(point[1])))

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
             f'font-size="12" fill="{INK}">', f"<title>{title}</title>",
             f'<text x="{LEFT}" y="18" font-size="14">{title}</text>']
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    for value, text in y.ticks:
        _, height = at((x.ticks[0][0], value))
        parts.append(f'<line x1="{LEFT}" x2="{right}" y1="{height:.1f}" y2="{height:.1f}" stroke="{INK}" '
                     f'stroke-opacity=".3"/><text x="{LEFT - 6}" y="{height + 4:.1f}" text-anchor="end">{text}</text>')
    for value, text in x.ticks:
        place, _ = at((value, y.ticks[0][0]))
        parts.append(f'<text x="{place:.1f}" y="{bottom + 16}" text-anchor="middle">{text}</text>')
    parts.append(f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 8}" text-anchor="middle">{x_label}</text>')
    parts.append(f'<text x="14" y="{(TOP + bottom) / 2}" text-anchor="middle" '
                 f'transform="rotate(-90 14 {(TOP + bottom) / 2})">{y_label}</text>')
    for number, (name, points, style, *rest) in enumerate(series):
        colour = COLOURS[(rest[0] if rest else number) % len(COLOURS)]
        places = [at(point) for point in points]
        if "line" in style or "dashed" in style:
            dashes = ' stroke-dasharray="5 4"' if "dashed" in style else ""
            parts.append(f'<polyline points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in places)}" fill="none" '
                         f'stroke="{colour}" stroke-width="2"{dashes}/>')
        if "points" in style:
            parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3.5" fill="{colour}"/>' for a, b in places]
        height = TOP + 8 + 18 * number
        mark = (f'<circle cx="{right + 23}" cy="{height}" r="3.5" fill="{colour}"/>' if style == "points" else
                f'<line x1="{right + 14}" x2="{right + 32}" y1="{height}" y2="{height}" stroke="{colour}" '
                f'stroke-width="2"' + (' stroke-dasharray="5 4"' if "dashed" in style else "") + "/>")
        parts.append(f'{mark}<text x="{right + 38}" y="{height + 4}">{name}</text>')
    path.write_text("\n".join([*parts, "</svg>"]) + "\n")
