"""A `Page` as one HTML file, and its pictures as PNG files."""

from collections.abc import Callable
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from datasets.store import writing
from pipeline.reporting.drawing import WIDTHS, inline_svg, save_png, style
from pipeline.reporting.section import Page, Picture

HERE = Path(__file__).parent


def write(page: Page, folder: Path, advance: Callable[[int, str], None] = lambda n, note: None) -> Path:
    """Write report.html and png/*.png into a folder; the page's path. InputError where the disk refuses."""
    drawn: dict[str, Markup] = {}
    with writing(folder), style():
        (folder / "png").mkdir(parents=True, exist_ok=True)
        for section in page.sections:
            for picture in section.pictures:
                drawn[picture.name] = _drawn(picture, folder / "png" / f"{picture.name}.png")
                advance(1, picture.title)
        environment = Environment(loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
                                  lstrip_blocks=True)  # fmt: skip
        css, script = (Markup((HERE / name).read_text()) for name in ("page.css", "page.js"))  # ours, hence not escaped
        text = environment.get_template("page.html.j2").render(page=page, drawn=drawn, css=css, script=script)
        target, scratch = folder / "report.html", folder / ".report.html.tmp"
        scratch.write_text(text, encoding="utf-8")
        scratch.replace(target)
    return target


def _drawn(picture: Picture, png: Path) -> Markup:
    """The picture in both widths; the style sheet shows the one that fits."""
    parts = []
    for width in WIDTHS:
        figure = picture.draw(width == "narrow")
        svg = inline_svg(figure, f"{picture.name}-{width}", picture.title, picture.alt)
        parts.append(f'<div class="{width}">{svg}</div>')
        if width == "wide":
            save_png(figure, png)
    return Markup("".join(parts))
