"""The machine round the GPU, read from /proc, /sys and the environment."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from pipeline import versions
from pipeline.checks.facts import Host
from pipeline.worlds import gpu_present

VARIABLES = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "CUDA_AGENT_CLOCKS", "TMPDIR")
SYS_ADMIN = 21
"""The bit of CAP_SYS_ADMIN, which the NVIDIA driver asks for before it changes clocks."""


def probe(root: Path = Path("/"), environment: Mapping[str, str] | None = None) -> Host:
    """Everything about the machine; `root` and `environment` are replaced in tests."""
    env = os.environ if environment is None else environment
    shm = root / "dev/shm"
    return Host(
        kernel=_read(root / "proc/sys/kernel/osrelease").strip(),
        container=container(root, env),
        gpu_present=gpu_present(),
        gpu_on_bus=gpu_on_bus(root),
        kernel_driver=versions.driver(),
        cores=len(os.sched_getaffinity(0)),
        quota_cores=quota(root),
        shm_bytes=shutil.disk_usage(shm).total if shm.is_dir() else None,
        may_administer=may_administer(root),
        variables={name: env[name] for name in VARIABLES if name in env},
    )


def container(root: Path, env: Mapping[str, str]) -> str | None:
    """The kind of container we are in, by the marks each leaves; None outside of one."""
    if "APPTAINER_CONTAINER" in env or "SINGULARITY_CONTAINER" in env:
        return "Apptainer"
    if "KUBERNETES_SERVICE_HOST" in env:
        return "Kubernetes"
    if (root / "run/.containerenv").exists():
        return "Podman"
    if (root / ".dockerenv").exists():
        return "Docker"
    groups = _read(root / "proc/1/cgroup")
    named = {"kubepods": "Kubernetes", "docker": "Docker", "containerd": "containerd", "libpod": "Podman", "lxc": "LXC"}
    found = next((kind for mark, kind in named.items() if mark in groups), None)
    return found or env.get("container") or None


def gpu_on_bus(root: Path) -> bool:
    """Whether PCI shows a display or 3D controller (class 03) of NVIDIA (vendor 10de)."""
    devices = (root / "sys/bus/pci/devices").glob("*")
    return any(_read(d / "vendor").strip() == "0x10de" and _read(d / "class").startswith("0x03") for d in devices)


def quota(root: Path) -> float | None:
    """Cores that the control group allows, by its version 2 or 1; None without a quota."""
    fields = _read(root / "sys/fs/cgroup/cpu.max").split()
    if len(fields) != 2:
        folder = root / "sys/fs/cgroup/cpu"
        fields = [_read(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    if not all(field.isdigit() for field in fields):  # "max" and -1: no quota
        return None
    allowed, period = map(int, fields)
    return allowed / period if period else None


def may_administer(root: Path) -> bool:
    """Whether we hold CAP_SYS_ADMIN, outside of any user namespace."""
    lines = dict(line.split(":", 1) for line in _read(root / "proc/self/status").splitlines() if ":" in line)
    try:
        held = int(lines.get("CapEff", "0").strip(), 16)
    except ValueError:
        return False
    return bool(held >> SYS_ADMIN & 1) and _read(root / "proc/self/uid_map").split() == ["0", "0", str(2**32 - 1)]


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
