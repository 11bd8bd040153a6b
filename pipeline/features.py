"""Print every feature of one workload and config, by name: `make features`, or
`python -m pipeline.features op=matmul workload="matmul/f32/M=512,N=512,K=512" config="block_m=64,shared=1" gpu=nvidia-h200`.

`config` may leave knobs out: they are the expert config's. `gpu` is a folder of datasets/recorded. A question, not a run: it
leaves no folder in outputs/.
"""

import signal
import sys
from collections.abc import Sequence

from cost_model.features import GROUPS, explain
from datasets import split
from datasets.device import H200, Device
from datasets.store import RECORDED
from templates.errors import InputError
from templates.knob import config_text, parse_config
from templates.space import complete, violations
from templates.template import load_template
from templates.workload import Workload

KEYS = ("op", "workload", "config", "gpu")


def answer(arguments: Sequence[str]) -> str:
    """The features as text, grouped with headings. InputError for an argument that cannot be used."""
    asked = _asked(arguments)
    workload = Workload.parse(asked["workload"]) if "workload" in asked else None
    template = load_template(asked.get("op") or (workload.op if workload else "matmul"))
    workload = template.check_workload(workload) if workload else split.workloads(template.op)["train"][0]
    device = _device(asked.get("gpu", H200.key))
    config = complete(template, parse_config(asked.get("config", "")), base=template.expert(workload))
    lines = [f"workload  {workload}", f"config    {config_text(config)}", f"gpu       {device.name}"]
    if reasons := violations(template, config, workload, device.limits):
        lines.append(f"illegal   {'; '.join(reasons)}")
    found = explain(template, workload, config, device)
    width = max(map(len, found))
    for group, meaning in GROUPS.items():
        members = {name: value for name, value in found.items() if name.startswith(f"{group}_")}
        lines += ["", f"{group}_: {meaning}", *(f"  {name:<{width}}  {value:.4g}" for name, value in members.items())]
    return "\n".join(lines)


def _asked(arguments: Sequence[str]) -> dict[str, str]:
    asked: dict[str, str] = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if key not in KEYS or not equals:
            raise InputError(f"argument {argument!r}: write {', '.join(f'{k}=...' for k in KEYS)}")
        asked[key] = value.strip("'\"")
    return asked


def _device(key: str) -> Device:
    path = RECORDED / key / "device.json"
    if path.is_file():
        return Device.load(path)
    if key == H200.key:
        return H200
    known = ", ".join(sorted({p.parent.name for p in RECORDED.glob("*/device.json")} | {H200.key}))
    raise InputError(f"gpu={key} is unknown; known: {known}")


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0, or 2 with one line on stderr for bad input."""
    if "--help" in arguments or "-h" in arguments:
        print(__doc__)
        return 0
    try:
        print(answer(arguments))
    except InputError as error:
        print(f"features: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("features: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a reader that goes away, as `head` does, ends it quietly
    sys.exit(main(sys.argv[1:]))
