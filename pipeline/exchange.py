"""Trade measured spaces with Kernel Tuner, by its cache files or the T4 format.

    make import-cache FILE=space.json.gz
    python -m pipeline.exchange import file=space.json.gz [workload=... data_dir=...]
    make export-cache WORKLOAD=softmax/f32/M=4096,N=1024 TO=space.json
    python -m pipeline.exchange export workload=... to=... [gpu=nvidia-h200 format=t4 data_dir=... recorded_dir=...]

Import reads a file and says what is in it; rows of one of our operators (the file says so, or `workload` does) join our own in
`data_dir`. Export writes the recorded and own rows of one workload on one GPU. No run folder: neither is a run.
"""

import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from datasets import store
from datasets.kernel_tuner_export import FORMATS
from datasets.kernel_tuner_io import read_space
from datasets.measured_space import MeasuredSpace, measurements_of, space_of
from datasets.schema import frame_of
from datasets.store import RECORDED
from templates.errors import InputError
from templates.knob import config_text
from templates.template import load_template
from templates.workload import Workload

DATA = "outputs/data"
KEYS = {"import": ("file", "workload", "data_dir"), "export": ("workload", "to", "gpu", "format", "data_dir", "recorded_dir")}


def import_file(asked: Mapping[str, str]) -> str:
    """What the file holds, as text; its rows are in `data_dir` afterwards, where they are of an operator of ours."""
    space = read_space(Path(_needed(asked, "file")).expanduser())
    lines = describe(space)
    text = asked.get("workload") or space.about.get("workload")
    if text is None:
        return "\n".join([*lines, "not of an operator of ours: nothing was added (workload=op/dtype/... says otherwise)"])
    workload = Workload.parse(text)
    template = load_template(workload.op)
    rows = measurements_of(space, template, template.check_workload(workload))
    data = Path(asked.get("data_dir", DATA)).expanduser()
    there = store.load(data, op=template.op, gpu=space.device) if data.is_dir() else frame_of([])
    known = set(there.loc[there["workload"] == str(workload), "config"])
    new = [m for m in rows if config_text(m.config) not in known]
    store.append(data, new)
    return "\n".join([*lines, f"added {len(new)} of {len(rows)} rows of {workload} to {data}; the others were there"])


def describe(space: MeasuredSpace) -> list[str]:
    """A space in a few lines."""
    counts = ", ".join(f"{count} {status}" for status, count in space.statuses.items())
    choices = ", ".join(f"{parameter.name} ({len(parameter.values)})" for parameter in space.parameters)
    lines = [f"kernel     {space.kernel} {list(space.problem)}", f"gpu        {space.device}", f"parameters {choices}"]
    lines += [f"rows       {len(space.rows)}: {counts}", *(f"note       {note}" for note in space.notes)]
    if space.best is not None:
        best = ", ".join(f"{name}={value}" for name, value in zip(space.names, space.best.values, strict=True))
        lines.append(f"best       {space.best.time_us:.2f} us: {best}")
    return lines


def export_file(asked: Mapping[str, str]) -> str:
    """Write the file; what it holds, as text."""
    workload, target = Workload.parse(_needed(asked, "workload")), Path(_needed(asked, "to")).expanduser()
    template = load_template(workload.op)
    template.check_workload(workload)
    form = asked.get("format", "cache")
    if form not in FORMATS:
        raise InputError(f"format={form} is unknown; use one of {', '.join(FORMATS)}")
    roots = [Path(asked.get("recorded_dir", str(RECORDED))).expanduser(), Path(asked.get("data_dir", DATA)).expanduser()]
    frame = store.load([root for root in roots if root.is_dir()], op=template.op, gpu=asked.get("gpu"))
    space = space_of(frame, template, workload)
    FORMATS[form](space, target)
    return "\n".join([*describe(space), f"written to {target}"])


def _needed(asked: Mapping[str, str], key: str) -> str:
    if not asked.get(key):
        raise InputError(f"needs {key}=...")
    return asked[key]


def _asked(arguments: Sequence[str]) -> tuple[str, dict[str, str]]:
    name = arguments[0] if arguments else ""
    if name not in KEYS:
        raise InputError(f"say {' or '.join(KEYS)} first (see --help)")
    asked: dict[str, str] = {}
    for argument in arguments[1:]:
        key, equals, value = argument.partition("=")
        if key not in KEYS[name] or not equals:
            raise InputError(f"argument {argument!r}: write {', '.join(f'{k}=...' for k in KEYS[name])}")
        asked[key] = value.strip("'\"")
    return name, asked


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0, or 2 with one line on stderr for bad input."""
    if {"--help", "-h"} & set(arguments):
        print(__doc__)
        return 0
    try:
        name, asked = _asked(arguments)
        print((import_file if name == "import" else export_file)(asked))
    except InputError as error:
        print(f"exchange: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("exchange: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main(sys.argv[1:]))
