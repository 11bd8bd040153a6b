"""The compile cache: cubins on a local disk, by a hash of everything that shapes them."""

import hashlib
import json
import logging
import os
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from datasets.measurement import Resources

LAYOUT = 1
"""Version of the files below; entries of another one are left alone and built anew."""

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

    Reading or writing never raises: a damaged entry is a miss, and a full disk means going on uncached, said once.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._said: set[str] = set()
        self._lock = threading.Lock()

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

    def _paths(self, key: str) -> tuple[Path, Path]:
        folder = self.root / key[:2]
        return folder / f"{key}.cubin", folder / f"{key}.json"

    def _say(self, topic: str, text: str) -> None:
        with self._lock:
            if topic not in self._said:
                self._said.add(topic)
                log.warning(text)


def _replace(path: Path, content: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".part-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
