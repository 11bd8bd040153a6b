"""What a collection measures: the workloads and configs that the settings ask for and no row holds yet.

Needs no GPU: `pipeline.compile` builds the same configs where there is none.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from pathlib import Path

import numpy as np
import pandas as pd

from datasets import schema, split, store
from datasets.device import Device
from datasets.measurement import Candidate
from pipeline.archive import Archive
from pipeline.search import GuidedSettings
from templates import space
from templates.errors import InputError
from templates.knob import Config, columns_of
from templates.template import Template
from templates.workload import Workload


@dataclass(frozen=True)
class CollectSettings:
    """What to collect. Counts are per workload and include what is measured already.

    splits: of conf/op; workloads: these instead, as `matmul/f32/M=1,N=64,K=64`. batch: guided configs per workload and
    round. reuse: share of a workload's random configs that earlier workloads drew too, so that fewer have to be compiled.
    vendor: time the vendor's kernel too, where PyTorch has CUDA. budget_s: start nothing new after so many seconds (0: no bound).
    """

    splits: list[str] = field(default_factory=lambda: ["train", "validation", "test"])
    workloads: list[str] = field(default_factory=list)
    random: int = 200
    guided: int = 64
    batch: int = 32
    reuse: float = 0.0
    vendor: bool = True
    budget_s: float = 900.0
    guide: GuidedSettings = field(default_factory=GuidedSettings)

    def __post_init__(self) -> None:
        if min(self.random, self.guided, self.budget_s) < 0 or self.batch < 1 or not 0 <= self.reuse <= 1:
            raise InputError("collect: random, guided and budget_s from 0, batch from 1 up, reuse from 0 to 1")


class Plan:
    """The candidates that the settings ask for and an archive lacks. Guided ones are not among them: they follow from timings."""

    def __init__(self, archive: Archive, settings: CollectSettings, seed: int) -> None:
        self.archive, self.settings, self.seed = archive, settings, seed
        self.template: Template = archive.template

    def anchors(self, workloads: Sequence[Workload]) -> list[Candidate]:
        """The vendor's kernel and the expert and naive configs that are not measured yet, fastest kind first."""
        experts = [Candidate(w, self.canonical(self.template.expert(w)), "expert") for w in workloads]
        naives = [Candidate(w, self.canonical(self.template.naive), "naive") for w in workloads]
        vendors = [Candidate(w, {}, "vendor") for w in workloads if self.settings.vendor and w not in self.archive.vendor_us]
        return vendors + [c for c in chain(experts, naives) if not self.archive.knows(c.workload, c.config)]

    def random(self, workloads: Sequence[Workload]) -> list[list[Candidate]]:
        """The random configs still missing, a list per workload: a draw of its own for each, the same whenever repeated.

        A share `reuse` of a draw comes at random from the earlier workloads' draws, where it is legal: their cubins serve twice.
        """
        pool: list[dict[str, int]] = []
        lists = []
        for workload in workloads:
            drawn, new = self._draw(workload, pool)
            pool += new
            unknown = [c for c in drawn if not self.archive.knows(workload, c)]
            lists.append([Candidate(workload, c, "random") for c in unknown[: self.missing(workload, "random")]])
        return lists

    def _draw(self, workload: Workload, pool: list[dict[str, int]]) -> tuple[list[dict[str, int]], list[dict[str, int]]]:
        """A workload's random configs in random order, and those of them that are not in the pool."""
        limits, n = self.archive.device.limits, self.settings.random
        rng = np.random.default_rng([self.seed, *str(workload).encode()])
        shared: list[dict[str, int]] = []
        if pool and self.settings.reuse > 0:
            fits = np.flatnonzero(space.legal(self.template, columns_of(list(pool), self.template.names), workload, limits))
            shared = [pool[i] for i in rng.permutation(fits)[: round(self.settings.reuse * n)]]
        known = {self.archive.key(c) for c in pool}
        fresh = space.sample(self.template, workload, limits, n - len(shared), rng)
        drawn = list({self.archive.key(c): c for c in shared + fresh}.values())
        return [drawn[i] for i in rng.permutation(len(drawn))], [c for c in fresh if self.archive.key(c) not in known]

    def canonical(self, config: Config) -> dict[str, int]:
        """A config as it is measured: knobs without effect at their defaults."""
        return space.canonical_config(self.template, config)

    def missing(self, workload: Workload, origin: str) -> int:
        """How many configs of an origin a workload still lacks."""
        target = self.settings.random if origin == "random" else self.settings.guided - self.archive.claimed(workload)
        return max(0, target - self.archive.count(workload, origin))


def chosen(template: Template, settings: CollectSettings) -> list[Workload]:
    """The workloads to collect on; InputError for an unknown split, operator or shape."""
    if settings.workloads:
        return split.named(template.op, settings.workloads, "collect.workloads")
    lists = split.workloads(template.op)
    for name in settings.splits:
        if name not in lists:
            raise InputError(f"collect.splits: {name!r} is unknown; use {', '.join(lists)}")
    return [workload for name in settings.splits for workload in lists[name]]


def rows(template: Template, device: Device, roots: Sequence[Path]) -> pd.DataFrame:
    """What is measured already of this template's present version on this GPU."""
    found = [root for root in roots if root.is_dir() and store.files(root, template.op, device.key)]
    frame = store.load(found, op=template.op, gpu=device.key) if found else schema.frame_of([])
    return frame[(frame["template_version"] == template.version) | (frame["origin"] == "vendor")]


def interleaved(lists: Iterable[Sequence[Candidate]]) -> Iterator[Candidate]:
    """One of each list in turn, so that whatever ends early ends fairly."""
    for group in zip_longest(*lists):
        yield from (item for item in group if item is not None)
