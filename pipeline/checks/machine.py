"""The machine round the GPU: WSL2, containers, cores, shared memory."""

from pipeline.checks.facts import Facts
from pipeline.checks.finding import Finding, gib
from pipeline.checks.reading import no_gpu

SMALL_SHM = 1 << 30
"""Ray keeps its objects there; containers get 64 MiB unless told otherwise."""


def wsl(facts: Facts) -> Finding:
    """Windows Subsystem for Linux: what is different there."""
    kernel = facts.host.kernel.lower()
    if "microsoft" not in kernel:
        return Finding("WSL", "ok", "not WSL")
    if "wsl2" not in kernel and "microsoft-standard" not in kernel:
        return Finding("WSL", "warning", "WSL1: it has no GPU", "in Windows: wsl --set-version <distribution> 2")
    reason = "WSL2: clocks cannot be locked, other processes are not shown, Windows shares the GPU; /mnt/... is slow"
    return Finding("WSL", "warning", reason, "keep repository, cache and outputs outside of /mnt; final numbers on plain Linux")


def container(facts: Facts) -> Finding:
    """Whether we are in a container, and whether it was given a GPU."""
    host = facts.host
    if host.container is None:
        return Finding("container", "ok", "not in one")
    given = host.variables.get("NVIDIA_VISIBLE_DEVICES")
    wish = f", NVIDIA_VISIBLE_DEVICES={given}" if given is not None else ""
    return Finding("container", "ok", f"{host.container}, {'with' if host.gpu_present else 'without'} a GPU{wish}")


def cores(facts: Facts) -> Finding:
    """Whether as many compilers as are started at once find a core each: a slow compile costs its config."""
    host, jobs = facts.host, facts.asked.jobs
    if host.cores is None:
        return Finding("CPU cores", "skipped", "their number is not known")
    usable = max(1, min(host.cores, int(host.quota_cores or host.cores)))
    limited = f" (of {host.cores}: the container's quota)" if usable < host.cores else ""
    text = f"{usable}{limited}, farm.build.jobs={jobs}"
    if no_gpu(facts):
        return Finding("CPU cores", "ok", f"{usable}{limited}; nothing is compiled for measuring, {no_gpu(facts)}")
    if jobs > usable:
        slow = f"compilers wait for each other, and one over {facts.asked.slow_compile_s:g} s sets its config aside"
        return Finding("CPU cores", "warning", f"{text}: {slow}", f"farm.build.jobs={usable}")
    if usable >= 2 * jobs:
        return Finding("CPU cores", "ok", text, f"on a machine of your own farm.build.jobs={usable} compiles faster")
    return Finding("CPU cores", "ok", text)


def shared_memory(facts: Facts) -> Finding:
    """/dev/shm, which only Ray uses much of."""
    size = facts.host.shm_bytes
    if size is None:
        return Finding("/dev/shm", "skipped", "there is none")
    if size >= SMALL_SHM or "ray" not in facts.packages.installed:
        return Finding("/dev/shm", "ok", gib(size) + ("" if size >= SMALL_SHM else ", little, but only Ray would need more"))
    return Finding("/dev/shm", "warning", f"{gib(size)}: Ray falls back to slower files", "docker run --shm-size=4g ...")
