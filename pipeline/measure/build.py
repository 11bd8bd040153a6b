"""Source to cubin: the cache first, then nvcc; and the pool that does so ahead of the GPU."""

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from datasets.measurement import Resources
from pipeline.measure.cache import Cache, Entry, cache_key, default_cache_dir
from pipeline.measure.nvcc import BuildFailure, Compiler, compile_cubin, find_nvcc
from pipeline.measure.settings import BuildSettings

RECENT = 200
"""Builds the recent hit rate looks back on."""


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


def build(source: str, arch: str, settings: BuildSettings, compiler: Compiler, cache: Cache) -> Cubin | BuildFailure:
    """The cubin of a source, from the cache or from nvcc; a failure is a value, not an exception."""
    key = cache_key(source, arch, settings.flags, compiler.version)
    if (entry := cache.load(key)) is not None:
        return Cubin(key, entry.code, dict(entry.resources), entry.compile_s, cache_hit=True)
    made = compile_cubin(compiler, source, arch, settings.flags, settings.limit_s)
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
        self.compiler = find_nvcc(settings)
        self.cache = Cache(Path(settings.cache_dir).expanduser() if settings.cache_dir else default_cache_dir())
        self._clock = clock
        self._threads = ThreadPoolExecutor(max(1, settings.jobs), thread_name_prefix="build")
        self._lock = threading.Lock()
        self._flying: dict[str, Future[Cubin | BuildFailure]] = {}
        self._failed: dict[str, BuildFailure] = {}
        self._aside: dict[str, float] = {}
        self._recent: deque[bool] = deque(maxlen=RECENT)
        self._counts = {"hits": 0, "misses": 0, "failures": 0}

    def submit(self, source: str) -> "Future[Cubin | BuildFailure]":
        """Ask for a source's cubin; never blocks. The future always has a result, never an exception."""
        key = self._key(source)
        with self._lock:
            if key in self._flying:
                return self._flying[key]
            remembered = self._remembered(key)
            if remembered is not None:
                done: Future[Cubin | BuildFailure] = Future()
                done.set_result(remembered)
                return done
            future = self._threads.submit(self._build, key, source)
            self._flying[key] = future
        return future

    def set_aside_s(self, source: str) -> float:
        """Seconds for which a source is still set aside, because its compile was slow; 0 when it is not."""
        with self._lock:
            return max(0.0, self._aside.get(self._key(source), 0.0) - self._clock())

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

    def close(self) -> None:
        """Drop what is waiting and end; compiles under way run to their end or limit."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _key(self, source: str) -> str:
        return cache_key(source, self.arch, self.settings.flags, self.compiler.version)

    def _remembered(self, key: str) -> BuildFailure | None:
        failure = self._failed.get(key)
        if failure is not None and failure.status == "compile_timeout" and self._aside.get(key, 0.0) <= self._clock():
            del self._failed[key]
            return None
        return failure

    def _build(self, key: str, source: str) -> Cubin | BuildFailure:
        result: Cubin | BuildFailure
        try:
            result = build(source, self.arch, self.settings, self.compiler, self.cache)
        except Exception as error:  # a fault here must cost one row, not the run; the row names it
            result = BuildFailure("crash", f"the build failed: {type(error).__name__}: {error}", 0.0)
        with self._lock:
            self._flying.pop(key, None)
            self._count(key, result)
        return result

    def _count(self, key: str, result: Cubin | BuildFailure) -> None:
        hit = isinstance(result, Cubin) and result.cache_hit
        self._recent.append(hit)
        self._counts["hits" if hit else "misses"] += 1
        if isinstance(result, BuildFailure):
            self._counts["failures"] += 1
            if result.status != "crash":  # a crash may be the machine's fault: worth another try
                self._failed[key] = result
        if not hit and result.compile_s > self.settings.slow_compile_s:
            self._aside[key] = self._clock() + self.settings.set_aside_s
