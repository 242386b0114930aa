"""Draw docs/pictures/architecture.svg: one training step through the package, and its rooms with their imports.

``python -m tests.architecture_picture`` writes it. The rooms come from ``ORDER`` and the arrows between them from the
imports in the source, so a test can compare the file with the code.
"""

from xml.sax.saxutils import escape

from tests.test_house import MODULES, ORDER, ROOT, own, part, rank

PICTURE = ROOT / "docs" / "pictures" / "architecture.svg"
WIDTH, EDGE = 640, 20
FONT = 'system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif'

LAYERS = (
    ("What people run and read", "report"),
    ("What samples and trains", "vote"),
    ("What recorded and simulated runs say", "replay"),
    ("Servers, run folders, records", "runs"),
    ("Files, answers and settings", "toml"),
    ("The loop, advantages, whole methods", "advantages"),
    ("The decisions", "stopping"),
    ("Values and checks", "untrusted"),
)
"""The layers from top to bottom, each with a room of its first place in ``ORDER``."""

KINDS = {
    "belief": ("predictors",),
    "decision": ("selection", "allocators", "baselines", "stopping"),
    "rollout": ("engines", "lab", "trl", "verl", "tinker", "vote", "gateway", "loop"),
    "advantage": ("advantages",),
    "record": ("records", "replay", "diagnosis", "report"),
}
"""The rooms of each colour."""

LIGHT = {
    "ground": "#ffffff", "text": "#1c2430", "quiet": "#56606e", "band": "#f4f6f8", "plain": "#ffffff",
    "line": "#7b8594", "belief": "#cfe5f7", "decision": "#fde3c2", "rollout": "#cdebdd", "advantage": "#f6d3e3",
    "record": "#e3dcf5",
}  # fmt: skip
DARK = {
    "ground": "#14181f", "text": "#eef1f5", "quiet": "#aab4c2", "band": "#1d232c", "plain": "#2a323e",
    "line": "#8894a4", "belief": "#1d4a70", "decision": "#6b431a", "rollout": "#1c5640", "advantage": "#6b2a4a",
    "record": "#453a70",
}  # fmt: skip


def picture():
    """Return the SVG: the step above, and the rooms below."""
    step, top = _step(58)
    rooms, bottom = _rooms(top + 64)
    height = bottom + EDGE
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
            f'viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="title">',
            '<title id="title">How a training step runs through apportion, and which rooms import which</title>',
            f"<style>{_style()}</style>",
            '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="10" markerHeight="10" '
            'markerUnits="userSpaceOnUse" orient="auto"><path class="head" d="M0 0L10 5L0 10z"/></marker></defs>',
            f'<rect class="ground" width="{WIDTH}" height="{height}"/>',
            *step,
            *rooms,
            "</svg>\n",
        ]
    )


def write():
    """Write the picture where the documents show it."""
    PICTURE.write_text(picture())


def imports_by_layer():
    """Return how many pairs of rooms import one another, by the layers of the importing and the imported room."""
    pairs = {(part(module), part(name)) for module in MODULES for name in own(module) if name in MODULES}
    found = {}
    for layers in ((_layer(rank_of(one)), _layer(rank_of(other))) for one, other in sorted(pairs)):
        if layers[0] != layers[1]:
            found[layers] = found.get(layers, 0) + 1
    return found


def rank_of(room):
    """Return the place of a room in ``ORDER``."""
    return rank(f"apportion.{room}" if room else "apportion")


def rooms_of(layer):
    """Return the rooms of a layer, the last in ``ORDER`` first."""
    places = [place for place in range(len(ORDER)) if _layer(place) == layer]
    return [room for place in reversed(places) for room in sorted(ORDER[place]) if room != "__main__"]


def _layer(place):
    """Return the layer of a place in ``ORDER``."""
    return next(layer for layer, (_, first) in enumerate(LAYERS) if place >= rank_of(first))


def _step(top):
    """Return the picture of a step from ``top``, and where it ends."""
    left, right, middle = 64, WIDTH - EDGE, 342
    third = 172
    columns = [left + at * (third + 20) for at in range(3)]
    drivers = ("lab", "trl", "verl", "tinker", "loop")
    y = [top, top + 116, top + 232, top + 392, top + 548, top + 664]
    parts = [
        _text(EDGE, top - 22, "One step, from prompts to update and back", "title"),
        *_box(left, y[0], right - left, 66, "prompts", "config and data/, or the trainer's own data set", "plain"),
        *_box(left, y[1], right - left, 66, "belief", "predictors/: how likely is a right rollout?", "belief"),
        *_box(columns[0], y[2], third, 66, "which prompts", "selection/", "decision"),
        *_box(columns[1], y[2], third, 66, "how many", "allocators/", "decision"),
        *_box(columns[2], y[2], third, 66, "baseline", "baselines/", "decision"),
        *_box(left, y[3], columns[1] + third - left, 106, "rollouts", "sampled and scored by one driver:", "rollout"),
        *_box(left, y[4], right - left, 66, "advantages", "advantages/: groups, estimator, weights", "advantage"),
        *_box(left, y[5], 248, 66, "update", "the trainer's own", "plain"),
        *_box(left + 276, y[5], right - left - 276, 66, "rollout log", "records/, for replay and report", "record"),
    ]
    for at, driver in enumerate(drivers):
        parts += _tag(left + 10 + at * 69, y[3] + 66, 66, driver)
    for x in (columns[0] + third // 2, columns[1] + third // 2, columns[2] + third // 2):
        parts.append(_arrow(f"M{x} {y[1] + 66}V{y[2] - 3}"))
    parts += [
        _arrow(f"M{middle} {y[0] + 66}V{y[1] - 3}"),
        _arrow(f"M{columns[0] + third} {y[2] + 33}H{columns[1] - 3}"),
        _arrow(f"M{columns[1] + 60} {y[2] + 66}V{y[3] - 3}"),
        _text(columns[1] + 50, y[2] + 100, "Plan", "name end"),
        _text(columns[1] + 50, y[2] + 120, "counts by prompt", "note end"),
        _arrow(f"M{columns[1] + 100} {y[3]}V{y[2] + 69}"),
        _text(columns[1] + 110, y[2] + 100, "Batch", "name"),
        _text(columns[1] + 110, y[2] + 120, "until the plan", "note"),
        _text(columns[1] + 110, y[2] + 138, "is empty", "note"),
        _arrow(f"M{columns[2] + 120} {y[2] + 66}V{y[4] - 3}"),
        _text(columns[2] + 110, y[3] + 40, "fixed before", "note end"),
        _text(columns[2] + 110, y[3] + 58, "the rollouts", "note end"),
        _arrow(f"M{left + 124} {y[3] + 106}V{y[4] - 3}"),
        _text(left + 134, y[3] + 136, "Groups", "name"),
        _arrow(f"M{left + 124} {y[4] + 66}V{y[5] - 3}"),
        _arrow(f"M{left + 420} {y[4] + 66}V{y[5] - 3}"),
        _arrow(f"M{left} {y[5] + 33}H{EDGE + 12}V{y[1] + 33}H{left - 3}"),
        f'<text class="note" text-anchor="middle" transform="translate({EDGE + 4} {y[3] + 20}) rotate(-90)">'
        "observe: the finished batch teaches the belief</text>",
    ]
    return parts, y[5] + 66


def _rooms(top):
    """Return the picture of the rooms from ``top``, and where it ends."""
    right = WIDTH - 140
    parts = [
        _text(EDGE, top, "The rooms, in layers", "title"),
        _text(EDGE, top + 26, "A dot on a line: this layer imports the one that the arrow enters.", "note"),
    ]
    y, spans = top + 46, list[tuple[int, int]]()
    for layer, (title, _) in enumerate(LAYERS):
        boxes, height = _tags(EDGE + 12, y + 38, right - 12, rooms_of(layer))
        height += 50
        parts += [f'<rect class="band" x="{EDGE}" y="{y}" width="{right - EDGE}" height="{height}" rx="8"/>']
        parts += [_text(EDGE + 12, y + 26, title, "name"), *boxes]
        spans.append((y, height))
        y += height + 12
    return [*parts, *_imports(right, spans)], y - 12


def _imports(x, spans):
    """Yield a line with an arrow for each layer that is imported, and a dot for each layer that imports it."""
    found = imports_by_layer()
    columns = {below: x + 18 + 15 * (below - 1) for below in range(1, len(LAYERS))}
    leaves = [y + round(height * 0.68) for y, height in spans]
    enters = [y + round(height * 0.26) for y, height in spans]
    for below, column in columns.items():
        first = min(above for above, imported in found if imported == below)
        yield _arrow(f"M{column} {leaves[first]}V{enters[below]}H{x + 3}")
    for above in range(len(LAYERS) - 1):
        last = max(columns[below] for source, below in found if source == above)
        yield f'<path class="arrow" d="M{x} {leaves[above]}H{last}"/>'
    for (above, below), pairs in sorted(found.items()):
        yield f'<circle class="head" cx="{columns[below]}" cy="{leaves[above]}" r="{3 + min(pairs // 6, 3)}"/>'


def _tags(left, top, right, rooms):
    """Return small boxes in as many lines as they need, and the height of them all."""
    parts, x, y = list[str](), left, top
    for room in rooms:
        name = room or "__init__"
        width = 26 + round(9.4 * len(name))
        if x + width > right:
            x, y = left, y + 36
        parts += _tag(x, y, width, name)
        x += width + 8
    return parts, y + 30 - top


def _tag(x, y, width, room):
    kind = next((kind for kind, rooms in KINDS.items() if room in rooms), "plain")
    return [
        f'<rect class="{kind} edge" x="{x}" y="{y}" width="{width}" height="30" rx="6"/>',
        _text(x + width // 2, y + 20, room, "room mid"),
    ]


def _box(x, y, width, height, name, note, kind):
    return [
        f'<rect class="{kind} edge" x="{x}" y="{y}" width="{width}" height="{height}" rx="8"/>',
        _text(x + 14, y + 27, name, "name"),
        _text(x + 14, y + 50, note, "note dark"),
    ]


def _text(x, y, text, kind):
    return f'<text class="{kind}" x="{x}" y="{y}">{escape(text)}</text>'


def _arrow(path):
    return f'<path class="arrow" d="{path}" marker-end="url(#head)"/>'


def _style():
    def colours(theme):
        return f"svg{{{''.join(f'--{name}:{value};' for name, value in theme.items())}}}"

    fills = "".join(f".{name}{{fill:var(--{name})}}" for name in ("ground", "band", "plain", *KINDS))
    return (
        f"{colours(LIGHT)}@media(prefers-color-scheme:dark){{{colours(DARK)}}}"
        f"text{{font:16px {FONT};fill:var(--text)}}.title{{font-size:21px;font-weight:700}}"
        ".name{font-size:17px;font-weight:650}.note{font-size:15.5px;fill:var(--quiet)}.dark{fill:var(--text)}"
        ".mid{text-anchor:middle}.end{text-anchor:end}"
        f"{fills}.edge{{stroke:var(--line);stroke-width:1.2}}.head{{fill:var(--line)}}"
        ".arrow{fill:none;stroke:var(--line);stroke-width:1.8}"
    )


if __name__ == "__main__":
    write()
