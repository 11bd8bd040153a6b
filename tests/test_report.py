"""The report's page: whole with and without data, self-contained, and one clear line for whatever cannot be used."""

import json
import re
import shutil
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest

from pipeline import report
from pipeline.reporting.contents import SECTIONS, page
from pipeline.reporting.page import write
from pipeline.reporting.sources import find_runs, part_of
from templates.errors import InputError, NothingToDo
from templates.template import operators
from tests.report_place import NASTY, TEST, TRAIN, build, cells, complete, material

VOID = {"meta", "link", "br", "img", "input", "hr"}


class Checker(HTMLParser):
    """Every tag is closed in its place; ids and headings are noted."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.faults: list[str] = []
        self.ids: Counter[str] = Counter()
        self.attributes: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes.append((tag, dict(attrs)))
        self.ids.update(value for name, value in attrs if name == "id" and value)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"</{tag}> at {self.getpos()}")


def checked(text: str) -> Checker:
    found = Checker()
    found.feed(text)
    found.close()
    assert not found.faults and not found.open
    assert max(found.ids.values()) == 1
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("report"))


@pytest.fixture
def copy(place: Path, tmp_path: Path) -> Path:
    """The same, to be damaged."""
    return Path(shutil.copytree(place, tmp_path / "copy", symlinks=True))


def run(root: Path, *more: str) -> int:
    dirs = [f"outputs_dir={root / 'outputs'}", f"recorded_dir={root / 'recorded'}", f"data_dir={root / 'data'}"]
    named = any(text.startswith(("op=", "report.run=")) for text in more)
    return report.main.run(report.with_op([*dirs, *([] if named else ["op=matmul"]), *more]))


@pytest.fixture(scope="module")
def whole(place: Path) -> Path:
    """The folder of a report on everything."""
    assert run(place) == 0
    return (place / "outputs/report/latest-matmul").resolve()


def test_every_section_is_there_and_the_page_is_well_formed(whole: Path) -> None:
    text = (whole / "report.html").read_text()
    found = checked(text)
    assert set(SECTIONS) <= set(found.ids)
    assert json.loads((whole / "summary.json").read_text())["missing"] == {}
    assert "Nothing to show" not in text
    for link in re.findall(r'href="#([^"]+)"', text):
        assert link in found.ids


def test_the_page_fetches_nothing(whole: Path) -> None:
    text = (whole / "report.html").read_text()
    assert not re.search(r"https?:|@import|//[a-z]+\.[a-z]", text)
    for tag, attributes in checked(text).attributes:
        for name in ("src", "href", "xlink:href", "data", "action"):
            assert (attributes.get(name) or "#").startswith(("#", "data:")), (tag, attributes)
    assert not re.search(r"url\((?!#)", text)


def test_pictures_are_named_described_themed_and_also_png_files(whole: Path) -> None:
    text = (whole / "report.html").read_text()
    found = checked(text)
    svgs = [attributes for tag, attributes in found.attributes if tag == "svg"]
    assert len(svgs) >= 2 * 10  # wide and narrow
    for attributes in svgs:
        assert attributes["role"] == "img"
        assert {attributes["aria-labelledby"], attributes["aria-describedby"]} <= set(found.ids)
    assert "var(--ink)" in text and "#1c2126" not in text[text.index("<main>") :]
    pngs = sorted((whole / "png").glob("*.png"))
    assert len(pngs) == len(svgs) / 2
    assert all(png.read_bytes().startswith(b"\x89PNG") and png.stat().st_size > 2000 for png in pngs)


def test_text_from_files_is_escaped(whole: Path) -> None:
    text = (whole / "report.html").read_text()
    assert NASTY not in text and "&lt;script&gt;alert" in text


def test_tables_and_tiles_say_what_was_measured(whole: Path) -> None:
    text = (whole / "report.html").read_text()
    assert f'<th scope="row">{TEST[0]}</th>' in text
    assert "10.0\u00a0%" in text  # the policy's regret with nothing measured
    assert "measured, best of 20" in text and "49.5 to 50.5" in text


NEEDS = {
    "regret": ("evaluate", "make evaluate"),
    "tuned": ("tune", "make tune"),
    "predictions": ("fit", "make fit"),
    "decisions": ("fit", "make fit"),
}


@pytest.mark.parametrize("key", NEEDS)
def test_a_section_without_its_run_says_which_command_fills_it(key: str, copy: Path) -> None:
    stage, command = NEEDS[key]
    shutil.rmtree(copy / "outputs" / stage)
    with pytest.raises(InputError, match=command):
        SECTIONS[key][1](material(copy))


@pytest.mark.parametrize("key", ["decisions", "curves"])
def test_without_any_training_pretrain_is_named(key: str, copy: Path) -> None:
    for stage in ("pretrain", "finetune"):
        shutil.rmtree(copy / "outputs" / stage)
    with pytest.raises(InputError, match="make pretrain"):
        SECTIONS[key][1](material(copy))


@pytest.mark.parametrize("key", ["speedups", "knobs", "noise", "statuses", "predictions"])
def test_a_section_without_rows_says_make_collect(key: str, copy: Path) -> None:
    for path in (copy / "recorded").rglob("*.parquet"):
        path.unlink()
    with pytest.raises(InputError, match="make collect"):
        SECTIONS[key][1](material(copy))


def test_nothing_at_all_is_still_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "op=softmax") == 0
    text = (tmp_path / "outputs/report/latest/report.html").read_text()
    checked(text)
    assert text.count("Nothing to show") == len(SECTIONS)
    assert "Traceback" not in capsys.readouterr().err


def test_a_training_run_that_goes_on_shows_its_curves_and_says_so(copy: Path, tmp_path: Path) -> None:
    shutil.rmtree(copy / "outputs" / "finetune")
    for name in ("latest", "latest-matmul"):
        (copy / "outputs/pretrain" / name).unlink()
    (copy / "outputs/pretrain/one/summary.json").unlink()
    complete(copy, "pretrain", None, state="running")
    section = SECTIONS["curves"][1](material(copy))
    assert [picture.name for picture in section.pictures] == ["losses-pretrain"]
    assert "has not ended" in section.notes[0]


BROKEN = {
    "cut off": '{"methods": [',
    "a list": "[1, 2]",
    "no methods": json.dumps({"world": "replays"}),
    "methods of text": json.dumps({"world": "replays", "methods": ["policy"]}),
    "a mean of text": json.dumps({"world": "replays", "methods": [{**cells()[0], "mean": "good"}]}),
    "a mean that is no number": json.dumps({"world": "replays", "methods": [{**cells()[0], "mean": float("nan")}]}),
    "a mean that is missing": json.dumps({"world": "x", "methods": [{k: v for k, v in cells()[0].items() if k != "mean"}]}),
    "none": json.dumps({"world": "replays", "methods": []}),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_malformed_summary_is_a_line_that_names_it(name: str, copy: Path) -> None:
    (copy / "outputs/evaluate/one/summary.json").write_text(BROKEN[name])
    with pytest.raises(InputError, match="evaluate/one/summary.json.*again"):
        SECTIONS["regret"][1](material(copy))
    SECTIONS["speedups"][1](material(copy))  # which can do without


FILES = {
    "losses.csv": ("outputs/pretrain/one/losses.csv", "curves", "step,loss\n1,x\n"),
    "ragged losses.csv": ("outputs/pretrain/one/losses.csv", "curves", "step,loss\n1,2\n1\n"),
    "episodes": ("outputs/finetune/one/episodes-0001.npz", "curves", "no"),
    "kernels.json": ("outputs/tune/one/kernels.json", "tuned", "{"),
    "kernels.json of another schema": ("outputs/tune/one/kernels.json", "tuned", '{"schema": 9, "kernels": []}'),
    "a kernel without a workload": ("outputs/tune/one/kernels.json", "tuned", '{"schema": 1, "kernels": [{}]}'),
    "cost model": ("outputs/fit/one/cost_model/model.json", "predictions", "{}"),
    "policy": ("outputs/finetune/one/policy/policy.json", "decisions", "{}"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_a_line_that_names_it(name: str, copy: Path, tmp_path: Path) -> None:
    place, key, content = FILES[name]
    (copy / place).write_text(content)
    made = page(material(copy), "now")
    section = next(section for section in made.sections if section.key == key)
    assert Path(place).parts[-2] in section.missing and "\n" not in section.missing


def test_damaged_measurements_are_a_line_too(copy: Path) -> None:
    path = next((copy / "recorded").rglob("*.parquet"))
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match="damaged"):
        SECTIONS["statuses"][1](material(copy))


BAD = {
    "no such run": ("report.run=/nowhere/at/all", "no such folder"),
    "not a run": ("report.run={root}", "not a run"),
    "another operator's": ("report.run={root}/outputs/evaluate/one op=softmax", "is a run on matmul"),
    "another operator's workload": ("report.workload='softmax/f32/M=64,N=64'", "belongs to softmax"),
    "no workload": ("report.workload=nonsense", "nonsense"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line(name: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, says = BAD[name]
    assert run(place, *arguments.format(root=place).split()) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "runs in" not in line]
    assert len(lines) == 1 and says in lines[0]


def test_a_named_run_brings_its_operator_and_what_it_stands_on(copy: Path) -> None:
    named = copy / "outputs/finetune/two"
    shutil.copytree(copy / "outputs/finetune/one", named)
    shutil.copytree(copy / "outputs/pretrain/one", copy / "outputs/pretrain/older")
    (named / "stands_on.json").write_text('{"pretrain": "older"}')
    found = material(copy, named=named).runs
    assert found["finetune"].folder == named and found["pretrain"].folder.name == "older"
    (named / "config.yaml").write_text("op:\n  name: softmax\n")
    assert report.with_op([f"report.run='{named}'"]) == [f"report.run='{named}'", "op=softmax"]
    assert report.with_op([f"report.run={named}", "op=matmul"])[-1] == "op=matmul"


def test_a_disk_that_refuses_is_one_line(place: Path, tmp_path: Path) -> None:
    (tmp_path / "png").write_text("in the way")
    with pytest.raises(InputError, match="cannot write"):
        write(page(material(place), "now"), tmp_path)


def test_decisions_are_shown_on_the_workload_that_was_asked_for(place: Path) -> None:
    section = SECTIONS["decisions"][1](material(place, str(TRAIN[0])))
    assert str(TRAIN[0]) in section.lead
    assert section.pictures[0].table is not None
    assert any(row[0] == "roofline_log_intensity" for row in section.pictures[0].table.rows)


def test_all_operators_have_a_page_each_and_one_that_leads_there(place: Path, tmp_path: Path) -> None:
    assert run(place, "op=all", f"outputs_dir={tmp_path}") == 0
    folder = (tmp_path / "report/latest").resolve()
    text = (folder / "report.html").read_text()
    checked(text)
    pages = re.findall(r'href="(\.\./[^"]+)"', text)
    assert len(pages) == len(operators()) and all((folder / page).is_file() for page in pages)
    assert "matmul on NVIDIA H200" in (tmp_path / "report/latest-matmul/report.html").read_text()


def test_the_part_of_a_run_over_all_operators_is_found(copy: Path) -> None:
    together = copy / "outputs/evaluate/all"
    shutil.copytree(copy / "outputs/evaluate/one", together)
    (together / "config.yaml").write_text("op:\n  name: all\n")
    (together / "runs.json").write_text('{"matmul": "one"}')
    assert part_of(together, "matmul") == copy / "outputs/evaluate/one"
    with pytest.raises(NothingToDo, match="op=matmul"):
        part_of(together, "softmax")
    (together / "runs.json").unlink()
    assert part_of(together, "softmax") == together  # one policy for all


def test_a_complete_run_over_all_operators_is_not_taken_for_one_it_left_out(tmp_path: Path) -> None:
    folder = complete(tmp_path, "pretrain", {"gains": {}})
    (folder / "config.yaml").write_text("op:\n  name: all\n")
    assert find_runs(tmp_path / "outputs", "softmax") == {}
    complete(tmp_path, "pretrain", None, state="running")
    (folder / "config.yaml").write_text("op:\n  name: all\n")
    assert set(find_runs(tmp_path / "outputs", "softmax")) == {"pretrain"}
