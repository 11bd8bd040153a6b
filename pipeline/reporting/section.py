"""What the report is made of: sections of pictures and tables, each beside the other, or a line on why there is none."""

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from matplotlib.figure import Figure

from templates.workload import Workload


@dataclass(frozen=True)
class Table:
    """Text cells; the first column reads to the left, numbers to the right. `fold`: closed until somebody opens it."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    fold: bool = True


@dataclass(frozen=True)
class Picture:
    """`draw(narrow)` makes the figure, for a telephone or a page. `alt` says in words what one sees, `table` in numbers."""

    name: str
    title: str
    alt: str
    draw: Callable[[bool], Figure]
    table: Table | None = None


@dataclass(frozen=True)
class Section:
    """One part of the page. `links`: text and address. `missing`: why it is empty and which command would fill
    it; nothing else is shown then.
    """

    key: str
    title: str
    lead: str = ""
    pictures: Sequence[Picture] = ()
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()
    links: Sequence[tuple[str, str]] = ()
    missing: str = ""


@dataclass(frozen=True)
class Tile:
    """One figure of the summary on top: a number, what it is, and what it rests on."""

    number: str
    meaning: str
    basis: str


@dataclass(frozen=True)
class Page:
    """The whole report."""

    title: str
    subtitle: str
    tiles: Sequence[Tile] = ()
    sections: Sequence[Section] = field(default_factory=list)


def us(value: float | None) -> str:
    """Microseconds to four digits, `-` for none."""
    return "-" if value is None else f"{value:.4g}" if value < 1000 else f"{value:,.0f}"


def times(value: float | None) -> str:
    """A ratio, `-` for none."""
    return "-" if value is None else f"{value:.2f}"


def percent(value: float) -> str:
    """0.1234 -> `12.3 %`, which no line break parts."""
    return f"{100 * value:.1f}\u00a0%"


def label(workload: Workload, width: int) -> str:
    """A workload without its operator, in lines of at most `width` characters."""
    text = f"{workload.dtype} " + " ".join(f"{name}\u00a0{extent}" for name, extent in workload.dims)
    return "\n".join(textwrap.wrap(text.replace("\u00a0", "~"), width)).replace("~", "\u00a0")
