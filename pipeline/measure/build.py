"""Source to cubin: the cache first, then the compiler; and the pool that does so ahead of the GPU."""

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from datasets.measurement import Resources
from pipeline.measure.cache import Cache, Entry, cache_key, default_cache_dir
from pipeline.measure.nvcc import BuildFailure, Compiled, find_nvcc
from pipeline.measure.nvrtc import Nvrtc
from pipeline.measure.settings import BuildSettings

RECENT = 200
"""Builds the recent hit rate looks back on."""


class Compiler(Protocol):
    """nvcc or NVRTC. `version` goes into the cache's keys and the rows: `13.0.88` of nvcc, `nvrtc 13.0.88` of NVRTC."""

    @property
    def path(self) -> str:
        """Where it is."""

    @property
    def version(self) -> str:
        """Which one it is."""

    def compile(self, source: str, arch: str, flags: list[str], limit_s: float) -> Compiled | BuildFailure:
        """The cubin of a source; a failure is a value."""

    def close(self) -> None:
        """End what it keeps running."""


@dataclass(frozen=True)
class Aside:
    """A choice set aside because its compile was slow: what asked for it, how long that took, for how long it still is."""

    label: str
    compile_s: float
    left_s: float


@dataclass(frozen=True)
class Cubin:
    """A binary for one architecture. `compile_s` is that of the original compile, also on a cache hit."""

    key: str
    code: bytes
    entries: dict[str, Resources]
    compile_s: float
    cache_hit: bool

    def resources(self, entry: str) -> Resources | None:
        """What ptxas said of an entry function declared extern "C"."""
        return self.entries.get(entry)


def find_compiler(settings: BuildSettings) -> Compiler:
    """The compiler the settings name; InputError where it cannot be had."""
    return Nvrtc(settings) if settings.compiler == "nvrtc" else find_nvcc(settings)


def open_cache(settings: BuildSettings) -> Cache:
    """The compile cache the settings name."""
    return Cache(Path(settings.cache_dir).expanduser() if settings.cache_dir else default_cache_dir(), settings.cache_mb)


def build(source: str, arch: str, settings: BuildSettings, compiler: Compiler, cache: Cache) -> Cubin | BuildFailure:
    """The cubin of a source, from the cache or from the compiler; a failure is a value, not an exception."""
    key = cache_key(source, arch, settings.flags, compiler.version)
    if (entry := cache.load(key)) is not None:
        return Cubin(key, entry.code, dict(entry.resources), entry.compile_s, cache_hit=True)
    made = compiler.compile(source, arch, settings.flags, settings.limit_s)
    if isinstance(made, BuildFailure):
        return made
    cache.store(key, Entry(made.code, made.resources, made.compile_s))
    return Cubin(key, made.code, made.resources, made.compile_s, cache_hit=False)


class BuildPool:
    """Compiles up to `jobs` sources at a time, in the order given, ahead of the GPU.

    A source asked for twice is compiled once. Sources that failed are remembered, those that were slow or timed out are
    set aside until their expiry. InputError where there is no usable compiler.
    """

    def __init__(self, settings: BuildSettings, arch: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.settings = settings
        self.arch = arch
        self.compiler = find_compiler(settings)
        self.cache = open_cache(settings)
        self._clock = clock
        self._threads = ThreadPoolExecutor(max(1, settings.jobs), thread_name_prefix="build")
        self._lock = threading.Lock()
        self._flying: dict[str, Future[Cubin | BuildFailure]] = {}
        self._failed: dict[str, BuildFailure] = {}
        self._aside: dict[str, tuple[str, float, float]] = {}  # label, seconds of the compile, end by the clock
        self._recent: deque[bool] = deque(maxlen=RECENT)
        self._counts = {"hits": 0, "misses": 0, "failures": 0}
        self._threads.submit(self.cache.trim)

    def submit(self, source: str, label: str = "") -> "Future[Cubin | BuildFailure]":
        """Ask for a source's cubin; never blocks. The future always has a result, never an exception.

        `label` is what the source goes by where it is listed; without one, the beginning of its key.
        """
        key = self._key(source)
        with self._lock:
            if key in self._flying:
                return self._flying[key]
            remembered = self._remembered(key)
            if remembered is not None:
                done: Future[Cubin | BuildFailure] = Future()
                done.set_result(remembered)
                return done
            future = self._threads.submit(self._build, key, source, label or key[:12])
            self._flying[key] = future
        return future

    def set_aside_s(self, source: str) -> float:
        """Seconds for which a source is still set aside, because its compile was slow; 0 when it is not."""
        with self._lock:
            return self._left_s(self._key(source))

    def aside(self) -> list[Aside]:
        """What is set aside at present because its compile was slow, the slowest first."""
        with self._lock:
            now = self._clock()
            self._aside = {key: entry for key, entry in self._aside.items() if entry[2] > now}
            entries = [Aside(label, compile_s, end - now) for label, compile_s, end in self._aside.values()]
        return sorted(entries, key=lambda entry: -entry.compile_s)

    def stats(self) -> dict[str, float]:
        """Counts of hits, misses and failures; hit rate overall and of the last builds; builds waiting or running."""
        with self._lock:
            asked = self._counts["hits"] + self._counts["misses"]
            return {
                **self._counts,
                "hit_rate": self._counts["hits"] / asked if asked else 0.0,
                "recent_hit_rate": sum(self._recent) / len(self._recent) if self._recent else 0.0,
                "queue_depth": len(self._flying),
            }

    def make(self, source: str) -> Cubin | BuildFailure:
        """Build one source, in a thread of the pool: here; a pool over a cluster has it built elsewhere."""
        return build(source, self.arch, self.settings, self.compiler, self.cache)

    def close(self) -> None:
        """Drop what is waiting and end; compiles under way run to their end or limit."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.compiler.close()

    def _key(self, source: str) -> str:
        return cache_key(source, self.arch, self.settings.flags, self.compiler.version)

    def _left_s(self, key: str) -> float:
        return max(0.0, self._aside[key][2] - self._clock()) if key in self._aside else 0.0

    def _remembered(self, key: str) -> BuildFailure | None:
        failure = self._failed.get(key)
        if failure is not None and failure.status == "compile_timeout" and self._left_s(key) == 0:
            del self._failed[key]
            return None
        return failure

    def _build(self, key: str, source: str, label: str) -> Cubin | BuildFailure:
        result: Cubin | BuildFailure
        try:
            result = self.make(source)
        except Exception as error:  # a fault here must cost one row, not the run; the row names it
            result = BuildFailure("crash", f"the build failed: {type(error).__name__}: {error}", 0.0)
        with self._lock:
            self._flying.pop(key, None)
            self._count(key, label, result)
        return result

    def _count(self, key: str, label: str, result: Cubin | BuildFailure) -> None:
        hit = isinstance(result, Cubin) and result.cache_hit
        self._recent.append(hit)
        self._counts["hits" if hit else "misses"] += 1
        if isinstance(result, BuildFailure):
            self._counts["failures"] += 1
            if result.status != "crash":  # a crash may be the machine's fault: worth another try
                self._failed[key] = result
        if not hit and result.compile_s > self.settings.slow_compile_s:
            self._aside[key] = (label, result.compile_s, self._clock() + self.settings.set_aside_s)
