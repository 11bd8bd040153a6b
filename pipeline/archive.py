"""All measurements of one operator on one device, by workload, ready to be learnt from while more are added."""

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from cost_model import features
from datasets.device import Device
from datasets.measurement import Measurement
from templates.knob import Config, columns_of, configs_of
from templates.template import Template
from templates.workload import Workload

CENTRE_ROWS = 8
"""With fewer random rows than this their mean says little, and all timed rows stand in."""


@dataclass
class Rows:
    """What is measured on one workload; `log_us` is NaN where there is no time."""

    configs: list[dict[str, int]] = field(default_factory=list)
    log_us: list[float] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)
    keys: set[tuple[int, ...]] = field(default_factory=set)
    claimed: set[tuple[int, ...]] = field(default_factory=set)
    features: np.ndarray | None = None

    def best(self, n: int) -> list[dict[str, int]]:
        """The n fastest configs, fastest first."""
        times = np.array(self.log_us)
        return [self.configs[i] for i in np.argsort(times)[: min(n, int(np.isfinite(times).sum()))]]


class Archive:
    """All measurements of one operator on one device, ready to be learnt from. Safe to read while another thread adds."""

    def __init__(self, template: Template, device: Device) -> None:
        self.template, self.device = template, device
        self.rows: dict[Workload, Rows] = {}
        self.vendor_us: dict[Workload, float] = {}
        self.lock = threading.Lock()

    def key(self, config: dict[str, int]) -> tuple[int, ...]:
        """A config as a tuple, knobs in the template's order."""
        return tuple(config[name] for name in self.template.names)

    def add(self, measurements: Iterable[Measurement]) -> None:
        """Remember measurements; known configs and contaminated ones are passed over."""
        with self.lock:
            for m in measurements:
                if m.origin == "vendor":
                    if m.time_us is not None:
                        self.vendor_us[m.workload] = m.time_us
                    continue
                self._add(m.workload, dict(m.config), m.status, m.time_us, m.origin)

    def add_frame(self, frame: pd.DataFrame) -> None:
        """Remember the rows of this template's present version in a frame that `store.load` returned."""
        same = (frame["op"] == self.template.op) & (frame["template_version"] == self.template.version)
        vendor = frame[(frame["origin"] == "vendor") & (frame["status"] == "ok")]
        same &= frame["origin"] != "vendor"
        with self.lock:
            for text, time_us in zip(vendor["workload"], vendor["time_us"], strict=True):
                self.vendor_us[Workload.parse(str(text))] = float(time_us)
            for text, group in frame[same].groupby("workload", sort=False):
                workload = Workload.parse(str(text))
                configs = configs_of({name: group[f"knob_{name}"].to_numpy(dtype=np.int64) for name in self.template.names})
                times = [None if np.isnan(t) else float(t) for t in group["time_us"].to_numpy(dtype=float)]
                for config, status, time_us, origin in zip(configs, group["status"], times, group["origin"], strict=True):
                    self._add(workload, config, str(status), time_us, str(origin))

    def _add(self, workload: Workload, config: dict[str, int], status: str, time_us: float | None, origin: str) -> None:
        rows, key = self.rows.setdefault(workload, Rows()), self.key(config)
        rows.claimed.discard(key)
        if status != "contaminated" and key not in rows.keys:
            rows.keys.add(key)
            rows.configs.append(config)
            rows.log_us.append(float("nan") if time_us is None else float(np.log(time_us)))
            rows.origins.append(origin)

    def claim(self, workload: Workload, configs: Iterable[dict[str, int]]) -> None:
        """Mark configs as being measured, so that nobody proposes them again meanwhile."""
        with self.lock:
            self.rows.setdefault(workload, Rows()).claimed.update(self.key(c) for c in configs)

    def claimed(self, workload: Workload) -> int:
        """How many configs of a workload are being measured."""
        return len(self.rows[workload].claimed) if workload in self.rows else 0

    def knows(self, workload: Workload, config: dict[str, int]) -> bool:
        """Whether a config is measured on a workload, or is being measured."""
        rows = self.rows.get(workload)
        return rows is not None and ((key := self.key(config)) in rows.keys or key in rows.claimed)

    def count(self, workload: Workload, origin: str | None = None) -> int:
        """How many configs are measured on a workload, of one origin or of all."""
        with self.lock:
            origins = self.rows[workload].origins if workload in self.rows else []
            return len(origins) if origin is None else origins.count(origin)

    def best(self, workload: Workload, n: int) -> list[dict[str, int]]:
        """The n fastest configs of a workload, fastest first."""
        with self.lock:
            return self.rows[workload].best(n) if workload in self.rows else []

    def table(self, workload: Workload) -> tuple[np.ndarray, np.ndarray]:
        """Features (n, d) and targets (n,): log time less the mean over the workload's random rows, NaN for failures.

        Random rows are drawn alike on every workload, so their mean is what makes workloads comparable.
        """
        with self.lock:
            rows = self.rows[workload]
            done = 0 if rows.features is None else len(rows.features)
            configs: list[Config] = list(rows.configs[done:])
            log_us, random = np.array(rows.log_us), np.array(rows.origins) == "random"
        if configs:
            new = features.matrix(self.template, workload, columns_of(configs, self.template.names), self.device)
            rows.features = new if rows.features is None else np.concatenate([rows.features, new])
        assert rows.features is not None
        timed = np.isfinite(log_us)
        base = timed & random if (timed & random).sum() >= CENTRE_ROWS else timed
        centre = log_us[base].mean() if base.any() else 0.0
        return rows.features[: len(log_us)], log_us - centre
