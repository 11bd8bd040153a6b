"""The compile cache: cubins on a local disk, by a hash of everything that shapes them."""

import contextlib
import hashlib
import json
import logging
import os
import re
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from datasets.measurement import Resources

LAYOUT = 1
"""Version of the files below; entries of another one are left alone and built anew."""

KEPT = 0.9
"""Share of the cap that trimming leaves, so that it need not trim again at once."""

_PART = ".part-"
_PART_AGE_S = 3600.0
"""Files half-written by a process that died are removed once they are as old as this."""

_OURS = re.compile(r"[0-9a-f]{64}\.(cubin|json)")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Entry:
    """A cubin with what ptxas said of its entry functions and how long its compile took."""

    code: bytes
    resources: Mapping[str, Resources]
    compile_s: float


def cache_key(source: str, arch: str, flags: list[str], compiler_version: str) -> str:
    """sha256 over source, flags, architecture and compiler version, hex."""
    return hashlib.sha256(json.dumps([source, arch, flags, compiler_version]).encode()).hexdigest()


def default_cache_dir() -> Path:
    """`$XDG_CACHE_HOME/cuda-agent`, else `~/.cache/cuda-agent`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cuda-agent"


class Cache:
    """Cubins in `<root>/<2 hex>/<key>.cubin`, each with a JSON of its length and hash beside it.

    Reading or writing never raises: a damaged entry is a miss, and a full disk means going on uncached, said once. Keys say
    nothing of the machine, so a folder filled on one serves on another. limit_mb: what it may take (0: no bound).
    """

    def __init__(self, root: Path, limit_mb: int = 0) -> None:
        self.root, self.limit_bytes = root, limit_mb * 1_000_000
        self._said: set[str] = set()
        self._lock = threading.Lock()
        self._trimming = threading.Lock()
        self._new_bytes = 0

    def load(self, key: str) -> Entry | None:
        """The entry, or None where there is none that can be trusted."""
        code_path, facts_path = self._paths(key)
        try:
            facts = json.loads(facts_path.read_text())
            if facts["layout"] != LAYOUT:
                self._say("layout", f"cache {self.root} holds entries of layout {facts['layout']}, not {LAYOUT}: built anew")
                return None
            code = code_path.read_bytes()
            if len(code) != facts["length"] or hashlib.sha256(code).hexdigest() != facts["sha256"]:
                log.warning("cache entry %s is damaged: built anew", key[:12])
                return None
            resources = {name: Resources(**values) for name, values in facts["resources"].items()}
            with contextlib.suppress(OSError):  # a folder that only others may write to serves too
                os.utime(code_path)  # used now
            return Entry(code, resources, float(facts["compile_s"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("cache entry %s is unreadable (%s): built anew", key[:12], type(error).__name__)
            return None

    def store(self, key: str, entry: Entry) -> None:
        """Write an entry: the cubin first, then the JSON that vouches for it, each by an atomic rename."""
        code_path, facts_path = self._paths(key)
        facts = {
            "layout": LAYOUT,
            "length": len(entry.code),
            "sha256": hashlib.sha256(entry.code).hexdigest(),
            "resources": {name: asdict(values) for name, values in entry.resources.items()},
            "compile_s": entry.compile_s,
        }
        try:
            code_path.parent.mkdir(parents=True, exist_ok=True)
            _replace(code_path, entry.code)
            _replace(facts_path, json.dumps(facts).encode())
        except OSError as error:
            self._say("write", f"cannot write to the compile cache {self.root} ({error.strerror}): going on without it")
            return
        with self._lock:
            self._new_bytes += len(entry.code)
            due = self._new_bytes > (1 - KEPT) / 2 * self.limit_bytes
        if due:
            self.trim()

    def trim(self) -> int:
        """Remove the entries used longest ago until KEPT of the cap is left, where it is exceeded; returns how many went.

        Several processes may do so at once, and others read meanwhile: what vanishes under them is a miss.
        """
        if not self.limit_bytes or not self._trimming.acquire(blocking=False):
            return 0
        try:
            with self._lock:
                self._new_bytes = 0
            return self._trim()
        except OSError as error:
            self._say("trim", f"cannot trim the compile cache {self.root} ({error.strerror}): it may grow")
            return 0
        finally:
            self._trimming.release()

    def _trim(self) -> int:
        used = _sizes(self.root)
        total, gone = sum(size for _, size in used.values()), 0
        if total <= self.limit_bytes:
            return 0
        for key in sorted(used, key=lambda key: used[key][0]):
            for path in reversed(self._paths(key)):  # what vouches for the cubin goes first
                path.unlink(missing_ok=True)
            total, gone = total - used[key][1], gone + 1
            if total <= KEPT * self.limit_bytes:
                break
        log.info("compile cache %s: %d entries used longest ago removed, %.0f MB left", self.root, gone, total / 1e6)
        return gone

    def _paths(self, key: str) -> tuple[Path, Path]:
        folder = self.root / key[:2]
        return folder / f"{key}.cubin", folder / f"{key}.json"

    def _say(self, topic: str, text: str) -> None:
        with self._lock:
            if topic not in self._said:
                self._said.add(topic)
                log.warning(text)


def _sizes(root: Path) -> dict[str, tuple[float, int]]:
    """(when last used, bytes) by key of all that is in a cache, whole or not; what a dead process half wrote is removed."""
    used: dict[str, tuple[float, int]] = {}
    for folder in root.glob("[0-9a-f][0-9a-f]"):
        for file in os.scandir(folder):
            try:
                stat = file.stat(follow_symlinks=False)
                if _OURS.fullmatch(file.name):
                    when, size = used.get(key := file.name.partition(".")[0], (0.0, 0))
                    used[key] = (max(when, stat.st_mtime), size + stat.st_size)
                elif file.name.startswith(_PART) and time.time() - stat.st_mtime > _PART_AGE_S:
                    os.unlink(file.path)
            except FileNotFoundError:
                continue  # another process trims too
    return used


def _replace(path: Path, content: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=_PART)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
