"""Kernel Tuner's cache files and the T4 format, plain or gzipped, read into a `MeasuredSpace`; `kernel_tuner_export` writes them.

A cache file is JSON: a head (device, kernel, problem size, parameters) and a row for each config, times in milliseconds, a
word such as "RuntimeFailedConfig" where there is none. Kernel Tuner leaves the last two braces out while it is at work, and
forever where it was killed. T4 (github.com/odgaard/TuningSchema, 1.0.0) has a list of results instead, and names no GPU.
"""

import gzip
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

from datasets.measured_space import MeasuredSpace, Parameter, Row, Value
from datasets.measurement import STATUSES, Origin, Status
from templates.errors import InputError

FAILURES: dict[str, Status] = {
    "InvalidConfig": "illegal", "CompilationFailedConfig": "compile_error", "RuntimeFailedConfig": "launch_error",
    "ErrorConfig": "launch_error",
}  # fmt: skip
INVALIDITY: dict[str, Status] = {
    "correct": "ok", "constraints": "illegal", "compile": "compile_error", "runtime": "launch_error",
    "correctness": "wrong_answer", "timeout": "timeout",
}  # fmt: skip
US_PER = {"seconds": 1e6, "milliseconds": 1e3, "miliseconds": 1e3, "microseconds": 1.0, "nanoseconds": 1e-3}
LONGEST_MS = 1e9
"""A time beyond (11 days) is a tuner's stand-in for a failure, e.g. 1e20 or the largest float."""


def read_space(path: Path) -> MeasuredSpace:
    """Read either format. InputError for a file that is none, with the row at fault where it is one row."""
    text = _text(path)
    data, notes = _parsed(path, text)
    if isinstance(data.get("results"), list):
        return _of_t4(path, data, notes)
    if not isinstance(data.get("cache"), dict) or not isinstance(data.get("tune_params_keys"), list):
        raise InputError(f"{path}: neither a Kernel Tuner cache (tune_params_keys, cache) nor a T4 file (results)")
    return _of_cache(path, data, notes)


def _text(path: Path) -> str:
    try:
        raw = path.read_bytes()
        return (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, EOFError, UnicodeDecodeError, ValueError, gzip.zlib.error) as error:  # type: ignore[attr-defined]
        raise InputError(f"{path}: cannot be read ({str(error).splitlines()[0]}); fetch it again") from error


def _parsed(path: Path, text: str) -> tuple[dict[str, Any], list[str]]:
    """The JSON object, closed where its writer did not close it; a row cut in the middle is left out and noted."""
    stem = text.rstrip().rstrip(",")
    cut = stem[: stem.rfind("},") + 1]
    tries = [(text, ""), (stem + "}", ""), (stem + "}}", ""), (cut + "}}", "ends within a row, which is left out")]
    for attempt, note in tries:
        try:
            data = json.loads(attempt)
        except ValueError:
            continue
        if isinstance(data, dict):
            return data, [note] if note else []
    raise InputError(f"{path}: not JSON; expected a Kernel Tuner cache or a T4 file")


def _of_cache(path: Path, data: dict[str, Any], notes: list[str]) -> MeasuredSpace:
    names = [str(name) for name in data["tune_params_keys"]]
    rows: dict[tuple[Value, ...], Row] = {}
    suspicious = 0
    for key, entry in data["cache"].items():
        where = f"{path}: config {key}"
        if not isinstance(entry, dict):
            raise InputError(f"{where}: expected an object with a time")
        row = _row_of_entry(where, names, entry)
        suspicious += row.status != "ok" and bool(entry.get("times"))
        rows[row.values] = row
    if suspicious:
        notes = [*notes, f"{suspicious} failed rows carry samples, which are ignored"]
    declared = data.get("tune_params")
    parameters = _parameters(path, names, declared if isinstance(declared, dict) else {}, rows)
    about = data.get("cuda_agent")
    return MeasuredSpace(
        str(data.get("kernel_name") or _stem(path)), str(data.get("device_name") or _stem(path)), _problem(data), parameters,
        tuple(rows.values()), {k: str(v) for k, v in about.items()} if isinstance(about, dict) else {}, tuple(notes),
    )  # fmt: skip


def _row_of_entry(where: str, names: list[str], entry: dict[str, Any]) -> Row:
    values = _values(where, names, entry)
    samples = _samples(where, entry.get("times"), 1e3)
    compile_ms = entry.get("compile_time")
    compile_s = compile_ms * 1e-3 if isinstance(compile_ms, int | float) and compile_ms else None
    at = str(entry.get("timestamp", ""))
    time = entry.get("__error__", entry.get("time"))
    if time is None and samples:
        time = sum(samples) / len(samples) * 1e-3
    if not isinstance(time, str | int | float) or isinstance(time, bool):
        raise InputError(f"{where}: its time is {str(time)[:40]!r}, neither a number nor a word")
    origin: Origin = entry["origin"] if entry.get("origin") in get_args(Origin) else "guided"
    if isinstance(time, str) or not 0 < time < LONGEST_MS:  # a NaN is not in between either
        named = entry.get("status")
        status: Status = named if named in STATUSES and named != "ok" else FAILURES.get(str(time), "launch_error")
        message = str(entry.get("message", "" if time in FAILURES else f"time {time}"))
        return Row(values, status, None, (), message, compile_s, at, origin)
    return Row(values, "ok", float(time) * 1e3, samples, "", compile_s, at, origin)


def _of_t4(path: Path, data: dict[str, Any], notes: list[str]) -> MeasuredSpace:
    metadata = data.get("metadata") if isinstance(data.get("metadata"), dict) else {}
    assert isinstance(metadata, dict)
    unit = str(metadata.get("timeunit", "milliseconds"))
    if unit not in US_PER:
        raise InputError(f"{path}: time unit {unit!r} is unknown; known: {', '.join(US_PER)}")
    rows: dict[tuple[Value, ...], Row] = {}
    names: list[str] = []
    for place, result in enumerate(data["results"]):
        where = f"{path}: result {place}"
        if not isinstance(result, dict) or not isinstance(result.get("configuration"), dict):
            raise InputError(f"{where}: it has no configuration")
        names = names or [str(name) for name in result["configuration"]]
        row = _row_of_result(where, names, result, US_PER[unit])
        rows[row.values] = row
    if not rows:
        raise InputError(f"{path}: a T4 file without results")
    kernel, device = metadata.get("kernel_name"), metadata.get("device_name")
    parameters = _parameters(path, names, {}, rows)
    return MeasuredSpace(
        str(kernel or _stem(path)), str(device or _stem(path)), _problem(metadata), parameters, tuple(rows.values()), {},
        tuple(notes),
    )  # fmt: skip


def _row_of_result(where: str, names: list[str], result: dict[str, Any], us: float) -> Row:
    values = _values(where, names, result["configuration"])
    invalidity = result.get("invalidity", "correct")
    if invalidity not in INVALIDITY:
        raise InputError(f"{where}: invalidity {str(invalidity)[:40]!r} is unknown; known: {', '.join(INVALIDITY)}")
    status, at = INVALIDITY[invalidity], str(result.get("timestamp", ""))
    if status != "ok":
        return Row(values, status, measured_at=at)
    times = result.get("times") or {}
    samples = _samples(where, times.get("runtimes"), us)
    named = [m.get("value") for m in result.get("measurements") or [] if isinstance(m, dict) and m.get("name") == "time"]
    time = named[0] if named else sum(samples) / len(samples) / us if samples else None
    if not isinstance(time, int | float) or not 0 < time < LONGEST_MS:
        return Row(values, "launch_error", message=f"time {time}", measured_at=at)
    return Row(values, "ok", time * us, samples, measured_at=at)


def _values(where: str, names: list[str], entry: Mapping[str, Any]) -> tuple[Value, ...]:
    for name in names:
        if not isinstance(entry.get(name), int | float | str):
            raise InputError(f"{where}: parameter {name} is missing or no number, text or boolean")
    return tuple(entry[name] for name in names)


def _samples(where: str, times: Any, us: float) -> tuple[float, ...]:
    if times is None:
        return ()
    if not isinstance(times, list) or not all(isinstance(t, int | float) and math.isfinite(t) for t in times):
        raise InputError(f"{where}: its samples are not a list of numbers")
    return tuple(t * us for t in times)


def _parameters(
    path: Path, names: list[str], declared: Mapping[str, Any], rows: Iterable[tuple[Value, ...]]
) -> tuple[Parameter, ...]:
    """Declared values, and those that occur without having been declared; numbers ascending."""
    if not names or len(set(names)) < len(names):
        raise InputError(f"{path}: its parameters are {names}; expected one or more, each once")
    columns = list(zip(*rows, strict=True)) or [()] * len(names)
    found = []
    for name, column in zip(names, columns, strict=True):
        listed = declared.get(name, [])
        values = list(dict.fromkeys([*(listed if isinstance(listed, list) else []), *column]))
        numbers = all(isinstance(value, int | float) for value in values)
        found.append(Parameter(name, tuple(sorted(values) if numbers else values)))
    return tuple(found)


def _problem(data: Mapping[str, Any]) -> tuple[int, ...]:
    size = data.get("problem_size")
    items: list[Any] = size if isinstance(size, list) else [size]
    return tuple(items) if all(isinstance(item, int) for item in items) else ()


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".json")
