"""A `MeasuredSpace` as a Kernel Tuner cache file, on which its simulation mode runs, or in the T4 format.

Times are in milliseconds. What Kernel Tuner demands of each row and no recording tells (verification and strategy times) is 0, as
in its own files where a step was left out; the time spent on benchmarking is the sum of the samples.
"""

import contextlib
import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from datasets.measured_space import MeasuredSpace, Row, Value
from datasets.measurement import Status
from templates.errors import InputError

WORDS: dict[Status, str] = {
    "illegal": "InvalidConfig", "compile_error": "CompilationFailedConfig", "compile_timeout": "CompilationFailedConfig",
}  # fmt: skip
"""Every other failure is a RuntimeFailedConfig; our own word stands beside it."""

INVALIDITY: dict[Status, str] = {
    "ok": "correct", "illegal": "constraints", "compile_error": "compile", "compile_timeout": "timeout",
    "launch_error": "runtime", "crash": "runtime", "wrong_answer": "correctness", "timeout": "timeout",
}  # fmt: skip


def write_cache(space: MeasuredSpace, path: Path) -> None:
    """Write a cache file, gzipped where the name ends in .gz (Kernel Tuner itself reads plain ones only)."""
    rows = [f"{json.dumps(config_key(row.values))}: {json.dumps(_entry(space, row))}" for row in space.rows]
    head = {
        "schema_version": "1.1.0",
        "device_name": space.device,
        "kernel_name": space.kernel,
        "problem_size": list(space.problem),
        "tune_params_keys": list(space.names),
        "tune_params": {parameter.name: list(parameter.values) for parameter in space.parameters},
        "objective": "time",
        "cuda_agent": dict(space.about),
    }
    # Kernel Tuner looks at the last three characters to see whether a file is complete.
    _write(path, json.dumps(head, indent="")[:-2] + ',\n"cache": {\n' + ",\n".join(rows) + "}\n}")


def write_t4(space: MeasuredSpace, path: Path) -> None:
    """Write the T4 results format, schema version 1.0.0."""
    metadata = {"timeunit": "milliseconds", "device_name": space.device, "kernel_name": space.kernel}
    problem = {"problem_size": list(space.problem)}
    data = {"metadata": metadata | problem, "results": [_result(space, row) for row in space.rows], "schema_version": "1.0.0"}
    _write(path, json.dumps(data, indent=1))


FORMATS: dict[str, Callable[[MeasuredSpace, Path], None]] = {"cache": write_cache, "t4": write_t4}


def config_key(values: tuple[Value, ...]) -> str:
    """What Kernel Tuner files a config under."""
    return ",".join(str(value) for value in values)


def _entry(space: MeasuredSpace, row: Row) -> dict[str, Any]:
    """One config's object in a cache file."""
    entry: dict[str, Any] = dict(zip(space.names, row.values, strict=True))
    if row.time_us is None:
        entry |= {"time": WORDS.get(row.status, "RuntimeFailedConfig"), "status": row.status, "message": row.message}
    else:
        entry |= {"time": row.time_us * 1e-3} | ({"times": _samples_ms(row)} if row.samples_us else {})
    times = {"compile_time": _compile_ms(row), "verification_time": 0, "benchmark_time": sum(_samples_ms(row))}
    more = {"strategy_time": 0, "framework_time": 0, "timestamp": row.measured_at, "origin": row.origin}
    return entry | times | more


def _result(space: MeasuredSpace, row: Row) -> dict[str, Any]:
    """One config's object in a T4 file."""
    times = {"compilation_time": _compile_ms(row), "framework": 0, "search_algorithm": 0, "validation": 0}
    time = [] if row.time_us is None else [{"name": "time", "value": row.time_us * 1e-3, "unit": "ms"}]
    return {
        "timestamp": row.measured_at,
        "configuration": dict(zip(space.names, row.values, strict=True)),
        "times": times | {"runtimes": _samples_ms(row)},
        "invalidity": INVALIDITY[row.status],
        "correctness": 0 if row.status == "wrong_answer" else 1,
        "measurements": time,
        "objectives": ["time"],
    }


def _compile_ms(row: Row) -> float:
    return 0.0 if row.compile_s is None else row.compile_s * 1e3


def _samples_ms(row: Row) -> list[float]:
    return [sample * 1e-3 for sample in row.samples_us]


def _write(path: Path, text: str) -> None:
    """Whole or not at all. InputError where it cannot be written."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise InputError(f"{path}: cannot be written ({error.strerror}); choose another file") from error
