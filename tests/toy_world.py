"""A measurer with times by formula, for the tests of strategies and evaluation: open or closed, with failures and flukes."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pandas as pd

from datasets.device import H200, Device
from datasets.measurement import Candidate, Measurement
from datasets.schema import frame_of
from pipeline.strategy import Task
from templates import space
from templates.knob import Config, columns_of
from templates.template import load_template
from templates.workload import Workload

TEMPLATE = load_template("matmul")
SMALL = TEMPLATE.workload(M=768, N=768, K=768)
LARGE = TEMPLATE.workload(M=8192, N=8192, K=8192)
TRAIN = (TEMPLATE.workload(M=512, N=512, K=512), TEMPLATE.workload(M=4096, N=4096, K=4096))


def log_time(workload: Workload, configs: Sequence[Config]) -> np.ndarray:
    """Work per thread helps, threads far from 256 hurt, and every switch does a little: (n,) log microseconds."""
    columns = columns_of(list(configs), TEMPLATE.names)
    d = TEMPLATE.derived(columns, workload)
    ripple = 0.03 * np.sin(sum((i + 1) * columns[name] for i, name in enumerate(TEMPLATE.names)))
    slow = -0.8 * np.log(d["fma_per_load"]) + 0.2 * np.abs(np.log2(d["threads"]) - 8) + 0.5 * (columns["shared"] == 0)
    return np.asarray(np.log(TEMPLATE.flops(workload) / 3e7) + slow + ripple)


class ToyWorld:
    """Implements Measurer. `fails` says which configs do not run, `skew` multiplies single timings (a fluke, by call)."""

    def __init__(
        self,
        pools: dict[Workload, list[dict[str, int]]] | None = None,
        fails: Callable[[Config], bool] = lambda config: False,
        source: str = "replay",
        skew: Callable[[Config, int], float] = lambda config, call: 1.0,
    ) -> None:
        self.pools, self.fails, self.source, self.skew = pools, fails, source, skew
        self.device: Device = H200
        self.calls: dict[str, int] = {}
        self.asked: list[Candidate] = []

    def known(self, workload: Workload) -> Sequence[dict[str, int]] | None:
        return None if self.pools is None else self.pools.get(workload, [])

    def measure(self, candidates: Sequence[Candidate]) -> Iterator[Measurement]:
        for c in candidates:
            self.asked.append(c)
            if not c.config:
                yield Measurement(c.workload, {}, "ok", time_us=50.0, origin="vendor", source="fake")
            elif self.fails(c.config):
                yield Measurement(c.workload, c.config, "wrong_answer", "planted", origin=c.origin, source="fake")
            else:
                key = f"{c.workload} {sorted(c.config.items())}"
                call = self.calls[key] = self.calls.get(key, -1) + 1
                time_us = float(np.exp(log_time(c.workload, [c.config])[0])) * self.skew(c.config, call)
                yield Measurement(c.workload, c.config, "ok", time_us=time_us, origin=c.origin, source="fake")

    def close(self) -> None:
        pass


def task(workload: Workload = SMALL, pool: tuple[dict[str, int], ...] | None = None) -> Task:
    return Task(TEMPLATE, workload, H200, pool)


def legal_configs(workload: Workload, n: int, seed: int = 0) -> list[dict[str, int]]:
    return space.sample(TEMPLATE, workload, H200.limits, n, np.random.default_rng(seed))


def pool_of(workload: Workload, n: int = 60, seed: int = 0) -> list[dict[str, int]]:
    """Naive, expert and n random configs."""
    return [dict(TEMPLATE.naive), dict(TEMPLATE.expert(workload)), *legal_configs(workload, n, seed)]


def training_frame(n: int = 60) -> pd.DataFrame:
    """Random rows of the two training workloads."""
    world = ToyWorld()
    candidates = [Candidate(w, c) for i, w in enumerate(TRAIN) for c in legal_configs(w, n, seed=10 + i)]
    return frame_of(world.measure(candidates))
