"""Small measured spaces by formula, and the files that hold them, for the tests of Kernel Tuner's formats and of transfer."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from datasets.measured_space import MeasuredSpace, Parameter, Row

PARAMETERS = (Parameter("block", (16, 32, 64, 128, 256)), Parameter("tile", (1, 2, 4, 8)), Parameter("cache", (0, 1)))


def space(
    device: str = "GPU A", best_block: int = 64, failing: int = 256, parameters: tuple[Parameter, ...] = PARAMETERS
) -> MeasuredSpace:
    """Times grow with the distance of the logarithms from the best block and from tile 4; `failing` with tile 8 does not run."""
    rows, level = [], 1000.0 + ord(device[-1])
    for values in product(*(parameter.values for parameter in parameters)):
        block, tile, cache = (float(value) for value in values[:3])
        if block == failing and tile == 8:
            rows.append(Row(values, "launch_error"))
        else:
            slow = abs(np.log2(block / best_block)) * 0.5 + abs(np.log2(tile / 4)) * 0.3 + 0.1 * cache
            rows.append(Row(values, "ok", float(level * np.exp(slow))))
    return MeasuredSpace("toy", device, (4096, 4096), parameters, tuple(rows))


def cache_text(entries: dict[str, dict[str, Any]], **head: Any) -> str:
    """A cache file as Kernel Tuner writes it, of the parameters a and b."""
    values = {"a": [1, 2], "b": [4, 8]}
    start = {"device_name": "GPU A", "kernel_name": "k", "problem_size": [64]}
    start |= {"tune_params_keys": [*values], "tune_params": values}
    rows = ",\n".join(f'"{key}": {json.dumps(entry)}' for key, entry in entries.items())
    return json.dumps(start | head, indent="")[:-2] + ',\n"cache": {\n' + rows + "}\n}"


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path
