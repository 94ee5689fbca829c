"""Draw docs/packages.svg from the tables of permitted imports in tests/support/rooms.py.

    draw_rooms.py            write docs/packages.svg
    draw_rooms.py --print    print the picture instead

Each package is a frame and each room in it a box. A room stands above all rooms that it may import. An arrow to a room
that can also be reached through other arrows is left out, so that the picture stays readable; the table has them all.
"""

import argparse
import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLES = ROOT / "tests" / "support" / "rooms.py"
PICTURE = ROOT / "docs" / "packages.svg"

ROWS = (
    ("cli", "testing"),
    ("octavo", "deploy"),
    ("pipeline", "repair", "gateway"),
    ("client", "bookie"),
    ("metadata",),
    ("security",),
    ("protocol", "metrics"),
)
"""The packages from top to bottom. Only imports that point down are drawn: the public face loads the names of the
pipeline when they are first used, and the pipeline uses the public face."""

BOX_WIDTH, BOX_HEIGHT = 92, 24
GAP_ACROSS, GAP_DOWN = 14, 26
FRAME_TITLE, FRAME_PADDING = 22, 12
PACKAGE_GAP = 30

type Graph = Mapping[str, frozenset[str]]


def read_table(name: str) -> dict[str, frozenset[str]]:
    """A table of the test, without importing the test: its keys with the names in their sets."""
    tree = ast.parse(TABLES.read_text(encoding="utf-8"))
    (table,) = (
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id == name
        and isinstance(node.value, ast.Dict)
    )
    return {
        str(ast.literal_eval(key)): frozenset(str(n.value) for n in ast.walk(value) if isinstance(n, ast.Constant))
        for key, value in zip(table.keys, table.values, strict=True)
        if key is not None
    }


def reduced(graph: Graph) -> dict[str, frozenset[str]]:
    """The graph without the arrows that follow from others."""

    def reach(node: str) -> frozenset[str]:
        return frozenset(graph[node]).union(*(reach(below) for below in graph[node]))

    return {node: below - frozenset[str]().union(*(reach(b) for b in below)) for node, below in graph.items()}


def floors(graph: Graph) -> list[list[str]]:
    """The rooms from the top floor to the ground floor. A room stands one floor above the highest that it imports."""

    def floor(node: str) -> int:
        return 1 + max((floor(below) for below in graph[node]), default=-1)

    heights = {node: floor(node) for node in graph}
    return [[node for node in graph if heights[node] == height] for height in range(max(heights.values()), -1, -1)]


def rooms_of(package: str, rooms: Graph) -> dict[str, frozenset[str]]:
    """The rooms of one package; a package without any is a room by itself."""
    return {room: below for room, below in rooms.items() if room.split(".")[0] == package} or {package: frozenset()}


def label(room: str) -> str:
    """The label of a box: a room's own name, ``(root)`` for what stands in no sub-folder."""
    return {"__init__": "(face)"}.get(room.rpartition(".")[2], room.rpartition(".")[2]) if "." in room else "(root)"


def frame_size(graph: Graph) -> tuple[int, int]:
    """Width and height of a package's frame."""
    if len(graph) == 1:
        return BOX_WIDTH + 2 * FRAME_PADDING, FRAME_TITLE + FRAME_PADDING
    levels = floors(graph)
    columns = max(map(len, levels))
    return (
        columns * (BOX_WIDTH + GAP_ACROSS) - GAP_ACROSS + 2 * FRAME_PADDING,
        FRAME_TITLE + len(levels) * (BOX_HEIGHT + GAP_DOWN) - GAP_DOWN + FRAME_PADDING,
    )


def draw_package(package: str, graph: Graph, left: int, top: int) -> Iterator[str]:
    """The frame of a package, its arrows and its boxes."""
    width, height = frame_size(graph)
    yield f'<rect class="frame" x="{left}" y="{top}" width="{width}" height="{height}" rx="6"/>'
    yield f'<text class="title" x="{left + width / 2:g}" y="{top + 16}">{package}</text>'
    if len(graph) == 1:
        return
    places: dict[str, tuple[float, float]] = {}
    for number, level in enumerate(floors(graph)):
        row_width = len(level) * (BOX_WIDTH + GAP_ACROSS) - GAP_ACROSS
        for column, room in enumerate(level):
            x = left + (width - row_width) / 2 + column * (BOX_WIDTH + GAP_ACROSS)
            places[room] = (x, top + FRAME_TITLE + number * (BOX_HEIGHT + GAP_DOWN))
    for room, below in reduced(graph).items():
        for lower in sorted(below):
            (x1, y1), (x2, y2) = places[room], places[lower]
            half = BOX_WIDTH / 2
            yield f'<line x1="{x1 + half:g}" y1="{y1 + BOX_HEIGHT:g}" x2="{x2 + half:g}" y2="{y2:g}"/>'
    for room, (x, y) in places.items():
        yield f'<rect x="{x:g}" y="{y:g}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="4"/>'
        yield f'<text x="{x + BOX_WIDTH / 2:g}" y="{y + 16:g}">{label(room)}</text>'


def draw() -> str:
    """The whole picture."""
    table, rooms = read_table("MAY_IMPORT"), read_table("ROOMS")
    order = [name for row in ROWS for name in row]
    assert sorted(order) == sorted(table), "ROWS has every package once"
    packages = {name: table[name] & frozenset(order[order.index(name) :]) for name in table}
    graphs = {name: rooms_of(name, rooms) for name in packages}
    sizes = {name: frame_size(graph) for name, graph in graphs.items()}
    row_widths = [sum(sizes[name][0] + PACKAGE_GAP for name in row) - PACKAGE_GAP for row in ROWS]
    width = max(row_widths) + 2 * PACKAGE_GAP
    boxes: list[str] = []
    places: dict[str, tuple[float, int]] = {}
    top = PACKAGE_GAP // 2
    for row, row_width in zip(ROWS, row_widths, strict=True):
        left = (width - row_width) // 2
        for name in row:
            boxes += draw_package(name, graphs[name], left, top)
            places[name] = (left + sizes[name][0] / 2, top)
            left += sizes[name][0] + PACKAGE_GAP
        top += max(sizes[name][1] for name in row) + PACKAGE_GAP
    arrows = [
        f'<line class="package" x1="{places[name][0]:g}" y1="{places[name][1] + sizes[name][1]}" '
        f'x2="{places[lower][0]:g}" y2="{places[lower][1]}"/>'
        for name, below in reduced(packages).items()
        for lower in sorted(below)
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top}" width="{width}" height="{top}">',
            "<title>Packages and rooms; an arrow means: may import</title>",
            "<style>rect{fill:#eef3fa;stroke:#4a6a94}rect.frame{fill:#fff;stroke:#888}line{stroke:#4a6a94;"
            "marker-end:url(#a)}line.package{stroke:#888;stroke-width:2}"
            "text{font:12px sans-serif;text-anchor:middle}text.title{font-weight:bold}</style>",
            '<marker id="a" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            '<path d="M0 0L8 4L0 8z" fill="#4a6a94"/></marker>',
            f'<rect class="frame" width="{width}" height="{top}" stroke-width="0"/>',
            *arrows,
            *boxes,
            "</svg>\n",
        ]
    )


def main() -> int:
    """Write or print the picture; exit status 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--print", action="store_true", dest="to_output", help="print the picture")
    if parser.parse_args().to_output:
        sys.stdout.write(draw())
    else:
        PICTURE.write_text(draw(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
