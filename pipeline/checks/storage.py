"""Where files go: compile cache, scratch, runs and measurements; and what is recorded."""

from pipeline.checks.facts import Facts, Folder
from pipeline.checks.finding import Check, Finding, Verdict, gib
from pipeline.checks.reading import no_gpu

SLOW = ("9p", "drvfs", "v9fs", "nfs", "cifs", "smb", "fuse", "afs", "ceph", "glusterfs", "lustre", "gpfs", "beegfs", "vboxsf",
        "virtiofs", "prl_fs", "davfs")  # fmt: skip
"""Beginnings of the names of file systems behind a network or another operating system."""

LOCAL_FUSE = ("fuse-overlayfs",)
SLOW_WRITE_MS = 100.0
LITTLE_BYTES, LEAST_BYTES = 1 << 30, 50 << 20

CURES = {
    "cache": "farm.build.cache_dir=/local/disk/cuda-agent, or XDG_CACHE_HOME in the environment",
    "scratch": "TMPDIR=/local/disk in the environment",
    "outputs": "make ... OUTPUTS=/local/disk/outputs (or outputs_dir=...); best the whole repository on a local disk",
    "data": "data_dir=/local/disk/data",
}
"""How each folder is moved."""

LOSES = {
    "cache": "kernels are compiled again each time",
    "scratch": "every compile writes there",
    "outputs": "runs are written there",
    "data": "measurements are flushed there batch by batch",
}
"""What each is for, said when it is slow."""


def folder(role: str, title: str, unwritable: Verdict) -> Check:
    """The check of one folder: writable, with room, on a fast local disk. `unwritable`: how bad it is when it is not."""

    def check(facts: Facts) -> Finding:
        found = facts.folders.get(role)
        if found is None:
            return Finding(title, "warning", "was not looked at in the time there was: its disk hangs", CURES[role])
        verdict: Verdict = "warning" if role == "scratch" and no_gpu(facts) else unwritable
        worst = _writable(found, verdict) or _fast(facts, found, role) or ("ok", f"{found.path} ({_where(found)})")
        return Finding(title, worst[0], worst[1], "" if worst[0] == "ok" else CURES[role])

    check.__name__ = title
    return check


def _where(found: Folder) -> str:
    free = "" if found.free_bytes is None else f", {gib(found.free_bytes)} free"
    return f"{found.kind or 'unknown file system'}{free}"


def _writable(found: Folder, unwritable: Verdict) -> tuple[Verdict, str] | None:
    if found.error:
        return unwritable, f"{found.path}: cannot be written ({found.error})"
    if found.free_bytes is not None and found.free_bytes < LEAST_BYTES:
        return unwritable, f"{found.path}: the disk is full ({_where(found)})"
    if found.free_bytes is not None and found.free_bytes < LITTLE_BYTES:
        return "warning", f"{found.path}: little room ({_where(found)})"
    return None


def _fast(facts: Facts, found: Folder, role: str) -> tuple[Verdict, str] | None:
    if slow_kind(found.kind):
        return "warning", f"{found.path} lies on {found.kind} ({found.mount}), which is slow: {LOSES[role]}"
    if found.write_ms is not None and found.write_ms > SLOW_WRITE_MS:
        return "warning", f"{found.path}: a small file takes {found.write_ms:.0f} ms ({_where(found)}): {LOSES[role]}"
    if role != "scratch" and found.kind in ("overlay", "fuse.fuse-overlayfs") and facts.host.container:
        return "warning", f"{found.path} lies in the container's own layer and goes when it goes: mount a folder of the host"
    return None


def slow_kind(kind: str) -> bool:
    """Whether a file system's type, as /proc/mounts names it, is a slow one."""
    return kind.startswith(SLOW) and kind.partition(".")[2] not in LOCAL_FUSE


cache = folder("cache", "compile cache", "warning")
scratch = folder("scratch", "scratch", "problem")
outputs = folder("outputs", "outputs", "problem")
data = folder("data", "measurements", "problem")


def temporary(facts: Facts) -> Finding:
    """TMPDIR names a folder that is used."""
    wish, found = facts.host.variables.get("TMPDIR"), facts.folders.get("scratch")
    if wish is None or found is None:
        return Finding("TMPDIR", "ok", "not set" if wish is None else wish)
    if wish.rstrip("/") != found.path.rstrip("/"):
        return Finding("TMPDIR", "warning", f"{wish} cannot be used: {found.path} is instead", "make it, or correct TMPDIR")
    return Finding("TMPDIR", "ok", wish)


def recording(facts: Facts) -> Finding:
    """Whether the recorded timings can be replayed; without a GPU every stage stands on them."""
    name, asked = "recorded timings", facts.asked
    cure = "git checkout datasets/recorded brings them back; make collect on a GPU makes new ones"
    mine = next((r for r in facts.recordings if r.gpu == asked.recorded and asked.op in (r.op, "all")), None)
    gravity: Verdict = "problem" if no_gpu(facts) else "warning"
    if mine is None:
        known = ", ".join(f"{r.gpu}/{r.op}" for r in facts.recordings) or "nothing"
        wanted = "any operator" if asked.op == "all" else asked.op
        return Finding(name, gravity, f"{asked.recorded} has none of {wanted}; there is {known}", cure)
    if mine.error:
        return Finding(name, gravity, mine.error, cure)
    if broken := [r for r in facts.recordings if r.error]:
        return Finding(name, "warning", f"{broken[0].gpu}/{broken[0].op}: {broken[0].error}", cure)
    text = ", ".join(f"{r.gpu}/{r.op} {r.rows:,}" for r in facts.recordings)
    return Finding(name, "ok", f"can be replayed: {text}")
