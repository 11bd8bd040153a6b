"""The columns of a measurement row: names, types and units, and the way between rows and `Measurement`.

One row per attempt, failures included. Besides the fixed columns, every knob is a typed column `knob_<name>` and every
dimension `dim_<name>`, so that a reader needs no parser. A column is null where there is nothing to say; no sentinel numbers.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from datasets.measurement import Conditions, Measurement, Resources
from templates.knob import config_text, parse_config
from templates.workload import Workload

SCHEMA_VERSION = 1
"""Raised whenever a fixed column changes its name, type, unit or meaning; files of another version are refused."""

QUANTILES = {"q05_us": 0.05, "q25_us": 0.25, "q75_us": 0.75, "q95_us": 0.95}


@dataclass(frozen=True)
class Column:
    """One fixed column; `unit` is empty for text, counts and flags."""

    name: str
    kind: pa.DataType
    unit: str
    meaning: str

    def field(self) -> "pa.Field[Any]":
        """The Arrow field, unit and meaning in its metadata."""
        return pa.field(self.name, self.kind, metadata={"unit": self.unit, "meaning": self.meaning})


COLUMNS = (
    Column("schema_version", pa.int16(), "", "version of these columns"),
    Column("op", pa.string(), "", "operator"),
    Column("workload", pa.string(), "", "operator/dtype/NAME=EXTENT,..."),
    Column("config", pa.string(), "", "knob=value joined by commas, sorted by knob"),
    Column("status", pa.string(), "", "ok, or why there is no time"),
    Column("message", pa.string(), "", "what the failing tool said"),
    Column("time_us", pa.float64(), "us", "median of the samples; null unless ok"),
    Column("samples_us", pa.list_(pa.float32()), "us", "time of every timed launch; empty in shipped files"),
    Column("n_samples", pa.int32(), "launches", "how many launches were timed"),
    *(Column(name, pa.float32(), "us", f"{q:.0%} quantile of the samples") for name, q in QUANTILES.items()),
    Column("origin", pa.string(), "", "who asked; only random rows are a fair sample of the legal space"),
    Column("source", pa.string(), "", "gpu, replay, cost_model or fake"),
    Column("gpu", pa.string(), "", "GPU name as the driver gives it"),
    Column("nvcc", pa.string(), "", "compiler version"),
    Column("driver", pa.string(), "", "driver version"),
    Column("template_version", pa.string(), "", "hash of the template's CUDA file"),
    Column("l2", pa.string(), "", "cold: L2 flushed before every launch; warm: not"),
    Column("error", pa.float64(), "tolerances", "largest error over the allowed error; at most 1 for a right answer"),
    Column("compile_s", pa.float32(), "s", "time nvcc took"),
    Column("cache_hit", pa.bool_(), "", "the cubin was in the compile cache"),
    Column("measured_at", pa.string(), "", "UTC, ISO 8601"),
    Column("registers", pa.int32(), "32-bit registers/thread", "from ptxas"),
    Column("spill_bytes", pa.int32(), "bytes/thread", "from ptxas"),
    Column("static_smem_bytes", pa.int32(), "bytes/block", "from ptxas"),
    Column("sm_clock_before_mhz", pa.int32(), "MHz", "SM clock before timing"),
    Column("sm_clock_after_mhz", pa.int32(), "MHz", "SM clock after timing"),
    Column("clocks_locked", pa.bool_(), "", "the SM clock was locked, by reading back"),
    Column("throttle_reasons", pa.string(), "", "NVML's clock event reasons"),
    Column("temperature_c", pa.int32(), "degrees C", "GPU temperature"),
    Column("foreign_processes", pa.int32(), "processes", "other processes on the GPU"),
)

RESOURCES = ("registers", "spill_bytes", "static_smem_bytes")
CONDITIONS = (
    "sm_clock_before_mhz", "sm_clock_after_mhz", "clocks_locked", "throttle_reasons", "temperature_c", "foreign_processes",
)  # fmt: skip
COPIED = (
    "status", "message", "time_us", "origin", "source", "gpu", "nvcc", "driver", "template_version", "l2", "error",
    "compile_s", "cache_hit", "measured_at",
)  # fmt: skip


def schema(knobs: Sequence[str], dims: Sequence[str]) -> pa.Schema:
    """The Arrow schema of one operator's file; knobs are int16, dimensions int32."""
    fields = [column.field() for column in COLUMNS]
    fields += [pa.field(f"knob_{name}", pa.int16(), metadata={"unit": "", "meaning": "knob"}) for name in knobs]
    fields += [pa.field(f"dim_{name}", pa.int32(), metadata={"unit": "elements", "meaning": "extent"}) for name in dims]
    return pa.schema(fields, metadata={"schema_version": str(SCHEMA_VERSION)})


def row_of(m: Measurement) -> dict[str, Any]:
    """One measurement as a row; times are stored as float64, samples and quantiles as float32."""
    row: dict[str, Any] = {name: getattr(m, name) for name in COPIED}
    row |= {"schema_version": SCHEMA_VERSION, "op": m.workload.op, "workload": str(m.workload), "config": config_text(m.config)}
    row |= {"samples_us": list(m.samples_us), "n_samples": len(m.samples_us)}
    if m.samples_us:
        levels = np.quantile(np.array(m.samples_us), list(QUANTILES.values())).tolist()
        row |= dict(zip(QUANTILES, levels, strict=True))
    if m.resources is not None:
        row |= {name: getattr(m.resources, name) for name in RESOURCES}
    row |= {name: getattr(m.conditions, name) for name in CONDITIONS}
    row |= {f"knob_{name}": value for name, value in m.config.items()}
    return row | {f"dim_{name}": extent for name, extent in m.workload.dims}


def table_of(measurements: Iterable[Measurement]) -> pa.Table:
    """Measurements of one operator as an Arrow table."""
    measurements = list(measurements)
    knobs = sorted({name for m in measurements for name in m.config})
    dims = list(dict.fromkeys(name for m in measurements for name, _ in m.workload.dims))
    return pa.Table.from_pylist([row_of(m) for m in measurements], schema=schema(knobs, dims))


def measurement_of(row: Mapping[Any, Any] | pd.Series) -> Measurement:
    """The measurement a row stands for; `row` is a dict or a row of the frame that `store.load` returns."""

    def value(name: str) -> Any:
        item: Any = row[name]
        return None if item is None or item is pd.NA or item != item else item  # NaN alone differs from itself

    def whole(name: str) -> Any:
        item = value(name)
        return item if item is None or isinstance(item, bool | np.bool_ | str) else int(item)

    parts: dict[str, Any] = {name: value(name) for name in COPIED}
    for name in ("time_us", "error", "compile_s"):
        parts[name] = None if parts[name] is None else float(parts[name])
    parts["cache_hit"] = None if parts["cache_hit"] is None else bool(parts["cache_hit"])
    registers = value("registers")
    conditions = {name: whole(name) for name in CONDITIONS}
    conditions["clocks_locked"] = bool(conditions["clocks_locked"])
    return Measurement(
        workload=Workload.parse(row["workload"]),
        config=parse_config(row["config"]),
        samples_us=tuple(np.asarray(row["samples_us"], dtype=float).tolist()),
        resources=None if registers is None else Resources(*(int(row[name]) for name in RESOURCES)),
        conditions=Conditions(**conditions),
        **parts,
    )


def frame_of(measurements: Iterable[Measurement]) -> pd.DataFrame:
    """Measurements of one operator as the frame that `store.load` would return."""
    frame: pd.DataFrame = table_of(measurements).to_pandas()
    return frame
