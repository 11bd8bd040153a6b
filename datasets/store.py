"""Measurements on disk: `<root>/<gpu key>/<op>/*.parquet`.

Every batch appended becomes its own part file, written beside its final name, flushed to the disk and renamed, so that a
killed run loses nothing that was appended and a reader never meets half a file. `compact` writes the few small files that
are shipped in `datasets/recorded/`.
"""

import errno
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from datasets.measurement import Measurement
from datasets.schema import COLUMNS, SCHEMA_VERSION, schema, table_of
from templates.errors import InputError

RECORDED = Path(__file__).parent / "recorded"
"""The data shipped with the repository."""

FILE_BYTES = 4 * 1024 * 1024


def gpu_key(name: str) -> str:
    """The folder of a GPU: its name in lower case with dashes, as `Device.key`."""
    return "-".join(name.lower().split()) or "unknown"


def append(root: Path, measurements: Iterable[Measurement], name: str | None = None) -> None:
    """Add measurements as new part files, one per GPU and operator; on the disk when this returns.

    `name` of the files, a new one unless given; the same name again replaces them. InputError when the disk is full or the
    folder cannot be written.
    """
    name = name or f"part-{time.time_ns()}-{uuid.uuid4().hex[:8]}"

    def place(m: Measurement) -> tuple[str, str]:
        return gpu_key(m.gpu), m.workload.op

    for (gpu, op), group in groupby(sorted(measurements, key=place), key=place):
        write(table_of(group), root / gpu / op / f"{name}.parquet")


def write(table: pa.Table, path: Path, level: int = 3) -> None:
    """Write one Parquet file atomically: a temporary file beside it, flushed, then renamed. `level`: zstd's."""
    temporary = path.with_name(f".{path.name}.tmp")
    with writing(path.parent):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                pq.write_table(table, file, compression="zstd", compression_level=level, use_dictionary=True,
                               write_page_checksum=True)  # fmt: skip
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            _flush_folder(path.parent)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """What the file system refuses inside becomes an InputError that names the folder and what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise InputError(f"{folder}: the disk is full; free some space and run again, it continues") from error
        raise InputError(f"{folder}: cannot write ({error.strerror}); choose another output folder") from error


def _flush_folder(folder: Path) -> None:
    """Make a rename durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def files(roots: Path | Sequence[Path], op: str | None = None, gpu: str | None = None) -> list[Path]:
    """The Parquet files under the roots, in name order; `gpu` is a GPU's name or key. InputError for a missing root."""
    found: list[Path] = []
    for root in [roots] if isinstance(roots, Path) else roots:
        if not root.is_dir():
            raise InputError(f"{root}: no such folder of measurements; run `make collect` or correct the path")
        pattern = f"{gpu_key(gpu) if gpu else '*'}/{op or '*'}/*.parquet"
        found += sorted(path for path in root.glob(pattern) if not path.name.startswith("."))
    return found


def load(roots: Path | Sequence[Path], op: str | None = None, gpu: str | None = None) -> pd.DataFrame:
    """Every row under the roots as one frame: the fixed columns of `schema`, then `knob_*` and `dim_*`.

    Where operators are mixed, a row's foreign knob and dimension columns are NaN. InputError for a damaged file or one of
    another schema version.
    """
    tables = [read(path) for path in files(roots, op, gpu)]
    if not tables:
        return schema([], []).empty_table().to_pandas()
    frame: pd.DataFrame = pa.concat_tables(tables, promote_options="default").to_pandas()
    return frame


def read(path: Path) -> pa.Table:
    """One file with all its columns; the config text of shipped files is rebuilt from the knobs."""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            _check_version(path, file.schema_arrow)
            table = file.read()
        _check_types(table)
    except (pa.ArrowException, OSError, EOFError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{path}: damaged or not Parquet ({reason}); delete it, the rows are measured again") from error
    return table if "config" in table.column_names else _with_config(table)


def _check_version(path: Path, found: pa.Schema) -> None:
    version = (found.metadata or {}).get(b"schema_version", b"none").decode()
    if version != str(SCHEMA_VERSION):
        raise InputError(f"{path}: schema version {version}, this program reads {SCHEMA_VERSION}; collect again or remove it")
    names = {column.name for column in COLUMNS} - {"config", "samples_us"}
    if missing := names - set(found.names):
        raise InputError(f"{path}: column {sorted(missing)[0]} is missing; delete the file, the rows are measured again")


def _check_types(table: pa.Table) -> None:
    """ArrowInvalid for a column of another type than the schema's."""
    for column in COLUMNS:
        if column.name in table.column_names and not (found := table.schema.field(column.name).type).equals(column.kind):
            raise pa.ArrowInvalid(f"column {column.name} is {found}, not {column.kind}")


def _with_config(table: pa.Table) -> pa.Table:
    """Add the `config` and `samples_us` columns that `compact` left out."""
    join: Any = pc.binary_join_element_wise  # its stubs know no scalars beside arrays
    knobs = sorted(name.removeprefix("knob_") for name in table.column_names if name.startswith("knob_"))
    parts = [join(f"{knob}=", pc.cast(table[f"knob_{knob}"], pa.string()), "") for knob in knobs]
    samples = pa.array([[]] * len(table), pa.list_(pa.float32()))
    # A row of nulls alone (the vendor's, which has no knobs) would be dropped: the empty string keeps it.
    texts = join(pa.array([""] * len(table)), *parts, ",", null_handling="skip")
    columns: dict[str, Any] = {"config": pc.utf8_ltrim(texts, ","), "samples_us": samples}
    wanted = schema(knobs, [name.removeprefix("dim_") for name in table.column_names if name.startswith("dim_")])
    return pa.table([columns[name] if name in columns else table[name] for name in wanted.names], schema=wanted)


def measured_keys(root: Path) -> set[tuple[str, str]]:
    """(workload text, config text) of every attempt under a root; empty where the root does not exist yet."""
    if not root.is_dir():
        return set()
    keys: set[tuple[str, str]] = set()
    for path in files(root):
        keys |= {(row["workload"], row["config"]) for row in read(path).select(["workload", "config"]).to_pylist()}
    return keys


def compact(roots: Path | Sequence[Path], dest: Path, file_bytes: int = FILE_BYTES) -> list[Path]:
    """Rewrite everything under the roots as few files of less than `file_bytes` each; returns their paths.

    Raw samples go (quantiles and counts stay), and so does the config text, which the knobs repeat. InputError where `dest`
    already holds files of the same GPU and operator.
    """
    groups: dict[tuple[str, str], list[pa.Table]] = {}
    for path in files(roots):
        groups.setdefault((path.parent.parent.name, path.parent.name), []).append(read(path))
    written: list[Path] = []
    for (gpu, op), tables in groups.items():
        folder = dest / gpu / op
        if any(folder.glob("*.parquet")):
            raise InputError(f"{folder}: holds measurements already; compact into an empty folder")
        table = pa.concat_tables(tables, promote_options="default").drop_columns(["config", "samples_us"])
        written += _write_parts(table.sort_by([("workload", "ascending"), ("time_us", "ascending")]), folder, file_bytes)
    return written


def _write_parts(table: pa.Table, folder: Path, file_bytes: int) -> list[Path]:
    """Write a table as 1, 2, 4, ... equal slices, the fewest whose files are all small enough."""
    count = 1
    while True:
        rows = -(-len(table) // count)
        paths = [folder / f"{i:03d}.parquet" for i in range(count)]
        for i, path in enumerate(paths):
            write(table.slice(i * rows, rows), path, level=19)
        if all(path.stat().st_size < file_bytes for path in paths) or rows <= 1:
            return paths
        count *= 2
