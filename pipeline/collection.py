"""Collecting: naive and expert first, then random configs of all workloads, with rounds of guided ones among them.

All of it is one stream, which the measurer draws on as it has room, so that its build pool never runs dry; the next guided
batch is worked out in a thread while random ones are measured, and no kind gets ahead of the other: a time bound cuts both alike.
Every row goes to the spool at once: a killed run loses none and repeats none.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from typing import cast

import numpy as np

from datasets.measurement import Candidate, Measurement
from datasets.spool import Spool
from pipeline.archive import Archive
from pipeline.measure.measurer import Measurer
from pipeline.plan import CollectSettings, Plan, interleaved
from pipeline.progress import Progress
from pipeline.search import GuidedSearch
from pipeline.strategy import Task
from templates.template import Template
from templates.workload import Workload

log = logging.getLogger("collect")

RUN_UP = 400
"""Random candidates ahead of the first guided batch, at most: something to learn from, and to measure meanwhile."""


@dataclass
class Tally:
    """What a collection came to: rows by status and workload, the seconds it took, compile cache hits in order."""

    statuses: dict[str, int] = field(default_factory=dict)
    rows: dict[Workload, int] = field(default_factory=dict)
    hits: list[bool] = field(default_factory=list)
    seconds: float = 0.0
    stopped_early: bool = False

    def add(self, m: Measurement) -> None:
        """Count one measurement."""
        self.statuses[m.status] = self.statuses.get(m.status, 0) + 1
        self.rows[m.workload] = self.rows.get(m.workload, 0) + 1
        if m.cache_hit is not None:
            self.hits.append(m.cache_hit)

    @property
    def measured(self) -> int:
        """Rows measured by this run."""
        return sum(self.statuses.values())

    def hit_rate(self, part: float = 1.0) -> float | None:
        """Share of builds served by the cache, over the last `part` of them."""
        tail = self.hits[len(self.hits) - max(1, round(part * len(self.hits))) :]
        return sum(tail) / len(tail) if tail else None


class Collector:
    """Measures what the settings ask for and the archive lacks. `spool` gets every row at once; its owner closes it."""

    def __init__(self, measurer: Measurer, archive: Archive, settings: CollectSettings, seed: int, spool: Spool) -> None:
        self.measurer, self.archive, self.settings, self.seed, self.spool = measurer, archive, settings, seed, spool
        self.template: Template = archive.template
        self.plan = Plan(archive, settings, seed)
        self.search = GuidedSearch(archive, settings.guide)
        self.tally = Tally()
        self.leaving = self.vendor_failed = False
        self.started = time.monotonic()

    def run(self, workloads: Sequence[Workload], progress: Progress) -> Tally:
        """Collect; ends when the counts or the time bound are reached. What is measured is saved, however it ends."""
        self.started = time.monotonic()
        try:
            with ThreadPoolExecutor(max_workers=1, thread_name_prefix="guide") as helper, self._released():
                stream = takewhile(lambda _: not self._over(), self.stream(workloads, helper))
                # Measurers read candidates one by one, so a stream does where the protocol says sequence.
                for m in self.measurer.measure(cast(Sequence[Candidate], stream)):
                    self._keep(m)
                    progress.advance()
        finally:
            self.tally.seconds = time.monotonic() - self.started
        return self.tally

    def wanted(self, workloads: Sequence[Workload]) -> int:
        """How many measurements are left to make, at most."""
        random = sum(map(len, self.plan.random(workloads)))
        return len(self.plan.anchors(workloads)) + random + sum(self.plan.missing(w, "guided") for w in workloads)

    def stream(self, workloads: Sequence[Workload], helper: ThreadPoolExecutor) -> Iterator[Candidate]:
        """Everything to measure, in order; guided batches are worked out by `helper`, half of the workloads at a time."""
        yield from self.plan.anchors(workloads)
        random = list(interleaved(self.plan.random(workloads)))
        wanted = max(1, sum(self.plan.missing(w, "guided") for w in workloads))
        groups = [group for group in (workloads[::2], workloads[1::2]) if group]
        drawn = min(RUN_UP, len(random) // 4)
        yield from random[:drawn]
        ahead, idle, turn, proposed = helper.submit(self.guided, groups[0], 0), 0, 0, 0
        while idle < len(groups):  # a group that has all it should have proposes nothing
            due = proposed / wanted <= drawn / len(random) if random else True
            if drawn < len(random) and not (due and ahead.done()):
                yield random[drawn]
                drawn += 1
                continue
            batch = ahead.result()
            turn += 1
            ahead = helper.submit(self.guided, groups[turn % len(groups)], turn)
            idle = 0 if batch else idle + 1
            proposed += len(batch)
            yield from batch
        yield from random[drawn:]

    def guided(self, workloads: Sequence[Workload], turn: int) -> list[Candidate]:
        """The next guided batch of some workloads, interleaved, by one model; empty when they have all they should."""
        wanted = {w: min(self.settings.batch, self.plan.missing(w, "guided")) for w in workloads}
        if not any(wanted.values()) or self._over():
            return []
        started = time.monotonic()
        model = self.search.model(workloads, np.random.default_rng([self.seed, turn]))
        learnt = time.monotonic()
        batches: list[list[Candidate]] = []
        for workload, n in wanted.items():
            if n and not self.leaving:
                rng = np.random.default_rng([self.seed, turn, *str(workload).encode()])
                configs = self.search.batch(self._task(workload), n, rng, model)
                self.archive.claim(workload, configs)
                batches.append([Candidate(workload, config, "guided") for config in configs])
        batch = list(interleaved(batches))
        log.info(
            "%d guided configs in %.1f s, %.1f of them for the model", len(batch), time.monotonic() - started, learnt - started
        )
        return batch

    def _task(self, workload: Workload) -> Task:
        known = self.measurer.known(workload)
        return Task(self.template, workload, self.measurer.device, None if known is None else tuple(known))

    @contextmanager
    def _released(self) -> Iterator[None]:
        """Whatever ends the block, the guiding thread stops at the next workload instead of finishing its batch."""
        try:
            yield
        finally:
            self.leaving = True

    def _over(self) -> bool:
        bound = self.settings.budget_s
        if bound and time.monotonic() - self.started >= bound:
            if not self.tally.stopped_early:
                log.info("the %.0f s of collect.budget_s are over; the same command goes on from here", bound)
            self.tally.stopped_early = True
        return self.tally.stopped_early

    def _keep(self, m: Measurement) -> None:
        if m.origin == "vendor" and m.status != "ok":
            if not self.vendor_failed:
                log.info("the vendor's kernel is left out: %s", m.message)
            self.vendor_failed = True
            return
        self.tally.add(m)
        self.archive.add([m])
        self.spool.add(m)
