"""Figures as inline SVG, whose colours follow the page's theme, and as PNG.

Text stays text, ids are unique over the page, and nothing is fetched from anywhere. Colours: Okabe and Ito, Color Universal
Design, 2008.
"""

import html
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter

INK, MUTED, GRID, PAPER = "#1c2126", "#5c6670", "#d5dadf", "#fdfdfe"
ORANGE, SKY, GREEN, BLUE, VERMILION, PURPLE = "#e69f00", "#56b4e9", "#009e73", "#0072b2", "#d55e00", "#cc79a7"
SERIES = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY)
THEMED = {INK: "ink", MUTED: "muted", GRID: "grid", PAPER: "paper", BLUE: "blue", SKY: "sky"}
"""Colours that the page's style sheet sets by theme; the others do in light and dark."""
DASHES, MARKERS = ("-", (0, (4, 2)), (0, (1, 1.5))), ("o", "s", "^", "D", "v", "P", "X")

BETTER_WORSE = LinearSegmentedColormap.from_list("better_worse", ["#0072b1", "#f4f4f4", "#d55e01"])
"""Blue: faster, orange: slower. None of its colours is a themed one: a scale must not change by theme in one place."""

WIDTHS = {"wide": 7.6, "narrow": 3.6}
"""Inches. The page shows one or the other, scaled to its own width."""

STYLE: dict[Any, Any] = {
    "svg.fonttype": "none", "svg.hashsalt": "report", "font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8,
    "xtick.labelsize": 7, "ytick.labelsize": 7, "legend.fontsize": 7, "legend.frameon": False, "text.color": INK,
    "axes.labelcolor": INK, "axes.titlecolor": INK, "xtick.color": MUTED, "ytick.color": MUTED, "xtick.labelcolor": INK,
    "ytick.labelcolor": INK, "axes.edgecolor": MUTED, "grid.color": GRID, "grid.linewidth": 0.6, "axes.linewidth": 0.6,
    "axes.axisbelow": True, "axes.spines.top": False, "axes.spines.right": False, "lines.markersize": 4,
}  # fmt: skip


NOT_FOR_PAGES = r"<metadata>.*?</metadata>|<style type=\"text/css\">.*?</style>|<!--.*?-->"
"""What matplotlib writes besides the picture; its style would hold for the whole page."""


@contextmanager
def style() -> Iterator[None]:
    """The look of every figure, for the time of the block."""
    with matplotlib.rc_context(STYLE):
        yield


def figure(narrow: bool, height: float) -> tuple[Figure, Any]:
    """A figure of the page's width with one axes; `height` in inches."""
    made = Figure(figsize=(WIDTHS["narrow" if narrow else "wide"], height), layout="constrained")
    return made, made.subplots()


def panels(count: int, narrow: bool, columns: tuple[int, int] = (4, 2), height: float = 1.5) -> tuple[Figure, list[Any]]:
    """A figure of `count` small axes, `columns` beside each other (wide, narrow), each `height` inches high."""
    across = min(count, columns[1] if narrow else columns[0])
    down = -(-count // across)
    made = Figure(figsize=(WIDTHS["narrow" if narrow else "wide"], height * down), layout="constrained")
    axes = made.subplots(down, across, squeeze=False).ravel().tolist()
    for unused in axes[count:]:
        unused.remove()
    return made, axes[:count]


def plain_log(axis: Any, values: Sequence[float], shown: str = "{:g}") -> None:
    """Ticks of a logarithmic axis at plain numbers instead of powers."""
    axis.set_major_locator(FixedLocator(list(values)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: shown.format(value)))
    axis.set_minor_formatter(NullFormatter())


def inline_svg(figure: Figure, name: str, title: str, alt: str) -> str:
    """The figure as an element to put into a page; `name` makes its ids unique."""
    buffer = StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = buffer.getvalue()
    text = re.sub(NOT_FOR_PAGES, "", text[text.index("<svg") :], flags=re.S)
    box = re.search(r'viewBox="[^"]+"', text)
    if box is None:
        raise AssertionError("matplotlib's SVG has no viewBox")
    inner = text[text.index(">") + 1 :]
    inner = re.sub(r'\bid="', f'id="{name}-', inner).replace("url(#", f"url(#{name}-")
    inner = inner.replace("xlink:href", "href").replace('href="#', f'href="#{name}-')
    for colour, variable in THEMED.items():
        inner = inner.replace(colour, f"var(--{variable})")
    labels = f'<title id="{name}-title">{html.escape(title)}</title><desc id="{name}-alt">{html.escape(alt)}</desc>'
    return f'<svg role="img" aria-labelledby="{name}-title" aria-describedby="{name}-alt" {box[0]}>{labels}{inner}'


def scaled_rows(labels: Sequence[str], narrow: bool, each: float = 0.19) -> float:
    """Inches for a row per label, by the label with the most lines."""
    lines = max(text.count("\n") + 1 for text in labels)
    return len(labels) * max(each, 0.12 * lines + 0.05) * (1.1 if narrow else 1.0)


def save_png(figure: Figure, path: Path) -> None:
    """The figure on white, about 1,500 pixels wide."""
    figure.savefig(path, dpi=200, facecolor="white")
