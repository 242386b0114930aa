"""Draw the rooms and their imports into docs/pictures/architecture.svg, below the step that is drawn there by hand.

``python -m tests.architecture_picture`` writes them. The rooms come from ``ORDER`` and the arrows between them from the
imports in the source, so a test can compare the file with the code.
"""

import re
from xml.sax.saxutils import escape

from tests.cases import lines
from tests.test_house import MODULES, ORDER, ROOT, own, part, rank

PICTURE = ROOT / "docs" / "pictures" / "architecture.svg"
WIDTH, EDGE = 640, 20
TOP = 852
"""Where the rooms begin, below the step."""

LAYERS = lines("""
    What people run and read             => report
    What samples and trains              => vote
    What recorded runs say               => replay
    Servers, run folders, records        => runs
    Files, answers and settings          => toml
    The loop, advantages, whole methods  => advantages
    The decisions                        => stopping
    Values and checks                    => untrusted
""")
"""The layers from top to bottom, each with a room of its first place in ``ORDER``."""

KINDS = {
    kind: rooms.split()
    for kind, rooms in lines("""
    belief    => predictors
    decision  => selection allocators baselines stopping
    rollout   => engines lab trl verl tinker vote gateway loop
    advantage => advantages
    record    => records replay diagnosis report
    """)
}
"""The rooms of each colour."""


def picture():
    """Return the SVG with the rooms of the source in the place of those that it has."""
    drawn, _, _ = PICTURE.read_text().partition('<g id="rooms">')
    rooms, bottom = _rooms(TOP)
    size = f'height="{bottom + EDGE}" viewBox="0 0 {WIDTH} {bottom + EDGE}"'
    return "\n".join(
        [re.sub(r'height="\d+" viewBox="[\d ]+"', size, drawn) + '<g id="rooms">', *rooms, "</g>", "</svg>\n"]
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


def _text(x, y, text, kind):
    return f'<text class="{kind}" x="{x}" y="{y}">{escape(text)}</text>'


def _arrow(path):
    return f'<path class="arrow" d="{path}" marker-end="url(#head)"/>'


if __name__ == "__main__":
    write()
