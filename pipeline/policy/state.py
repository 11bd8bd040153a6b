"""The state a policy sees: a fixed-length vector with a name for every number in it.

Operator, then the cost model's features (workload, roofline, device, config), then AST counts of the source that the search
started from, then what the search knows by now. Features that an operator does not have are 0.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from cost_model import features
from cost_model.source import source_features
from datasets.device import Device
from templates.errors import InputError
from templates.knob import Columns, Config, config_text, parse_config
from templates.render import render
from templates.template import Template, load_template, operators
from templates.workload import Workload

log = logging.getLogger(__name__)

KINDS = ("none", "ok", "build_failure", "wrong", "run_failure")
"""What the last measurement came to; statuses that call for the same reaction share a kind."""

FEEDBACK = (
    "predicted_speedup",  # of the current config over naive, by the cost model, log
    "predicted_spread",  # of the ensemble's members there, log
    "level",  # the same speed-up as known now: measured, or predicted and shifted by the last measurement
    "is_measured",
    "behind_best",  # best measured level minus level
    "best_speedup",  # of the best measured config over naive, log; 0 while there is none
    "last_speedup",
    "last_surprise",  # last measured level minus what was expected there
    "gained",  # level minus the level at the start
    "distance_to_best",  # knob distance from the best measured config
    "baseline_measured",
    *(f"last_{kind}" for kind in KINDS),
    "resources_known",
    "registers",  # per thread, of the last build, over 255
    "spills",  # log2(1 + bytes)
    "measurements_left",
    "measurements_used",  # fraction of the budget
    "steps_left",  # fraction of the episode
)


@dataclass(frozen=True)
class Layout:
    """Which numbers a state holds, in order."""

    ops: tuple[str, ...]
    features: tuple[str, ...]
    source: tuple[str, ...]

    def names(self) -> list[str]:
        """A name per dimension."""
        heads = [f"op_{op}" for op in self.ops]
        return [*heads, *self.features, *(f"ast_{name}" for name in self.source), *FEEDBACK]

    @property
    def size(self) -> int:
        """Length of a state."""
        return len(self.ops) + len(self.features) + len(self.source) + len(FEEDBACK)

    @cached_property
    def places(self) -> dict[str, int]:
        """Index of every name."""
        return {name: i for i, name in enumerate(self.names())}

    def assemble(
        self, template: Template, found: np.ndarray, source: np.ndarray, feedback: Mapping[str, np.ndarray]
    ) -> np.ndarray:
        """Float32 (n, size) from features (n, d), source counts (n, s) and feedback columns (n,).

        InputError when the operator or one of its features is not in this layout.
        """
        states = np.zeros((len(found), self.size), dtype=np.float32)
        states[:, self._column(f"op_{template.op}")] = 1.0
        states[:, [self._column(name) for name in features.names(template)]] = found
        first = len(self.ops) + len(self.features)
        states[:, first : first + len(self.source)] = source
        for i, name in enumerate(FEEDBACK):
            states[:, first + len(self.source) + i] = feedback[name]
        return states

    def _column(self, name: str) -> int:
        if name not in self.places:
            raise InputError(f"the policy does not know {name!r}: it was trained by another version; run `make pretrain` again")
        return self.places[name]


def layout(ops: Sequence[str] | None = None, use_source: bool = True) -> Layout:
    """The layout over these operators; over all of them by default."""
    chosen = tuple(sorted(operators() if ops is None else ops))
    known = sorted({name for op in chosen for name in features.names(load_template(op))})
    counted = sorted({name for op in chosen for name in _counts(op, "")}) if use_source else []
    return Layout(chosen, tuple(known), tuple(counted))


def names() -> list[str]:
    """The names of a state's dimensions over all operators."""
    return layout().names()


@lru_cache(maxsize=1 << 16)
def _counts(op: str, text: str) -> dict[str, float]:
    """AST counts of one config's source; of the naive one's for an empty text. Parsing takes milliseconds, hence the cache."""
    template = load_template(op)
    return source_features(render(template, parse_config(text) if text else template.naive))


def source_row(layout: Layout, template: Template, config: Config) -> np.ndarray:
    """Float (s,): the AST counts of the source that a config renders to, log1p, in the layout's order."""
    if not layout.source:
        return np.zeros(0)
    counts = _counts(template.op, config_text(config))
    row: np.ndarray = np.log1p(np.array([max(0.0, counts.get(name, 0.0)) for name in layout.source]))
    return row


def source_rows(layout: Layout, template: Template, configs: Sequence[Config]) -> np.ndarray:
    """Float (n, s): `source_row` of each config."""
    rows: np.ndarray = np.stack([source_row(layout, template, config) for config in configs])
    return rows


def feature_rows(template: Template, workload: Workload, columns: Columns, device: Device) -> np.ndarray:
    """Float32 (n, d): the cost model's compile-free features, in the order of `features.names`."""
    found: np.ndarray = features.matrix(template, workload, columns, device)
    return found
