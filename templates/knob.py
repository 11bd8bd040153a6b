"""Knobs and configs: the choices a template leaves open, and one value for each of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from templates.errors import InputError

Category = Literal["layout", "memory", "schedule"]
CATEGORIES: tuple[Category, ...] = ("layout", "memory", "schedule")

Config = Mapping[str, int]
"""A value for every knob of a template, by knob name."""

Columns = Mapping[str, Any]
"""Many configs at once: knob name -> int array of shape (n,). A `Config` is the n-less case of the same expressions."""


@dataclass(frozen=True)
class Knob:
    """One choice: ordered integer values (0/1 for a switch), a default, and why one would turn it.

    `active` says, for a config or for columns, whether the knob has any effect; where it has none, the
    config holds the default, so that two configs never stand for the same source. It must be written with
    operators that work on ints and arrays alike (`&`, `|`, `==`; not `and`, `or`).
    """

    name: str
    category: Category
    values: tuple[int, ...]
    default: int
    reason: str
    active: Callable[[Columns], Any] | None = None

    def __post_init__(self) -> None:
        if self.default not in self.values or list(self.values) != sorted(set(self.values)):
            raise AssertionError(f"knob {self.name}: values must ascend and hold the default")


def config_text(config: Config) -> str:
    """`knob=value` joined by commas, sorted by knob: the form of the `config` column."""
    return ",".join(f"{name}={config[name]}" for name in sorted(config))


def parse_config(text: str) -> dict[str, int]:
    """Read `knob=value,...`; InputError where a part is not of that form."""
    config: dict[str, int] = {}
    for part in text.split(",") if text else []:
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name in config:
            raise InputError(f"config: knob {name!r} is given twice")
        try:
            config[name] = int(value)
        except ValueError:
            raise InputError(f"config part {part[:80]!r}: write knob=integer, e.g. block_m=64") from None
    return config


def columns_of(configs: list[Config] | tuple[Config, ...], names: list[str] | tuple[str, ...]) -> dict[str, np.ndarray]:
    """Stack n configs into int64 columns of shape (n,), one per knob name."""
    return {name: np.array([config[name] for config in configs], dtype=np.int64) for name in names}


def configs_of(columns: Columns) -> list[dict[str, int]]:
    """The inverse of `columns_of`: n configs of plain ints."""
    names = list(columns)
    rows = zip(*(np.asarray(columns[name]).tolist() for name in names), strict=True)
    return [dict(zip(names, row, strict=True)) for row in rows]
