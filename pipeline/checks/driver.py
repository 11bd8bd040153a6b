"""Is there a GPU, does its driver answer, does it serve the toolkit, and does a kernel run."""

from pipeline.checks.facts import Facts, Version
from pipeline.checks.finding import Finding
from pipeline.checks.reading import dotted, driver_cuda, no_gpu, used_gpus, version_of, visible_names

DRIVER_OF = {13: "580", 12: "525.60.13", 11: "450.80.02"}
"""Oldest driver for any toolkit of a major version (CUDA Toolkit Release Notes, minor version compatibility)."""


def gpu(facts: Facts) -> Finding:
    """Whether this machine shows us a GPU; where it shows none, what that means and whether it hides one."""
    host, asked = facts.host, facts.asked.gpu
    if asked == "replay":
        return Finding("GPU", "skipped", "gpu=replay: the recorded timings answer, whatever GPU is here")
    if host.gpu_present:
        return _those_used(facts)
    if asked in ("shared", "dedicated"):
        cure = "gpu=replay answers from recorded timings; gpu=auto does so wherever there is no GPU"
        return Finding("GPU", "problem", f"gpu={asked} asks for one: {no_gpu(facts)}", cure)
    return _hidden(facts) or Finding("GPU", "skipped", "none here: stages replay the recorded timings, and measure nothing")


def _those_used(facts: Facts) -> Finding:
    names = sorted({gpu.name for gpu in used_gpus(facts) if gpu.name})
    there = len(visible_names(facts))
    if beyond := [index for index in facts.asked.gpus if not 0 <= index < there]:
        return Finding("GPU", "problem", f"farm.gpus: GPU {beyond[0]} is not there; {there} visible", "correct farm.gpus")
    return Finding("GPU", "ok", f"{len(used_gpus(facts)) or there}: {', '.join(names) or 'seen under /dev'}")


def _hidden(facts: Facts) -> Finding | None:
    """A GPU that this machine has and we do not get."""
    host = facts.host
    if host.variables.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return Finding("GPU", "skipped", "CUDA_VISIBLE_DEVICES hides all of them: stages replay the recorded timings")
    wsl = "microsoft" in host.kernel.lower()
    if not (host.kernel_driver or host.gpu_on_bus or wsl):
        return None
    if wsl:
        cure = "if Windows has an NVIDIA GPU: install its driver in Windows (none inside of WSL2), then wsl --update"
        return Finding("GPU", "warning", "WSL shows none (no /dev/dxg): stages replay the recorded timings", cure)
    if host.container:
        cure = "docker run --gpus all ... (with NVIDIA's container toolkit); podman run --device nvidia.com/gpu=all ..."
        return Finding("GPU", "warning", "the host has one, this container does not get it: stages replay recorded timings", cure)
    if host.kernel_driver:
        cure = "an administrator can: nvidia-modprobe -u -c=0"
        return Finding("GPU", "problem", "the driver is loaded, but there is no /dev/nvidia0", cure)
    return Finding("GPU", "problem", "PCI shows an NVIDIA GPU, and no NVIDIA driver runs", "install NVIDIA's driver, then reboot")


def nvml(facts: Facts) -> Finding:
    """Whether clocks, temperature and other processes can be observed."""
    if reason := no_gpu(facts):
        return Finding("NVML", "skipped", reason)
    found = facts.nvml
    if found.error:
        reason = f"cannot be read ({found.error}): throttling and other processes would go unnoticed"
        return Finding("NVML", "warning", reason, _nvml_cure(facts, found.error.lower()))
    if lost := [gpu for gpu in found.gpus if gpu.lost]:
        text = ", ".join(f"GPU {gpu.index} ({gpu.lost})" for gpu in lost)
        cure = "leave it out with farm.gpus; dmesg | grep -i xid says what befell it; a reboot usually helps"
        return Finding("NVML", "problem", f"does not reach {text}", cure)
    return Finding("NVML", "ok", f"driver {found.driver or 'of unknown version'}, {len(found.gpus)} GPU(s) readable")


def _nvml_cure(facts: Facts, error: str) -> str:
    if "mismatch" in error:
        return "the driver was updated while it ran: reboot"
    if "no module named" in error:
        return "make clean setup"
    if facts.host.container:
        return "start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility"
    if "did not answer" in error or "took over" in error:
        return "the driver hangs: an administrator should look at dmesg; a reboot usually helps"
    return "see what nvidia-smi says; reinstall the driver if it fails too"


def driver(facts: Facts) -> Finding:
    """Whether the driver is new enough for the toolkit's cubins."""
    name, used, known = "driver and toolkit", facts.compilers.used, driver_cuda(facts)
    if (reason := no_gpu(facts)) or used is None or known is None:
        unknown = "no compiler" if used is None else "the driver's CUDA version is not known"
        return Finding(name, "skipped", reason or unknown)
    toolkit = version_of(used.version or "")[:2]
    which = f"driver {facts.nvml.driver or facts.host.kernel_driver or ''} knows CUDA {dotted(known)}".replace("  ", " ")
    if toolkit <= known:
        return Finding(name, "ok", f"{which}, the toolkit is {dotted(toolkit)}")
    if toolkit[:1] == known[:1]:
        reason = f"{which}, the toolkit is {dotted(toolkit)}: cubins of the same major version run (PTX would not, none is used)"
        return Finding(name, "ok", reason)
    runs = any(trial.launched and not trial.failure for trial in facts.trials)
    so = "it runs a tiny kernel, and may refuse others" if runs else "it need not load the toolkit's cubins"
    reason = f"{which}, older than the toolkit's {dotted(toolkit)}: {so}"
    return Finding(name, "warning" if runs else "problem", reason, _driver_cure(facts, known, toolkit))


def _driver_cure(facts: Facts, known: Version, toolkit: Version) -> str:
    wanted = DRIVER_OF.get(toolkit[0])
    update = f"update the driver to {wanted} or newer" if wanted else "update the driver"
    fitting = next((t for t in facts.compilers.installed if version_of(t.version or "")[:1] == known[:1]), None)
    return f"{update}, or " + (f"farm.build.nvcc={fitting.path}" if fitting else f"install a CUDA {known[0]} toolkit")


def trial(facts: Facts) -> Finding:
    """Whether memory can be had and a kernel gives the right answer, in a process of its own."""
    name = "first kernel"
    if reason := no_gpu(facts):
        return Finding(name, "skipped", reason)
    if not facts.trials:
        return Finding(name, "warning", "no GPU could be tried in the time there was", "run the doctor again; see NVML")
    failed = [trial for trial in facts.trials if trial.failure]
    if failed:
        text = "; ".join(f"GPU {trial.visible}: {trial.failure}" for trial in failed[:3])
        return Finding(name, "problem", text, _trial_cure(facts, failed[0].failure))
    if not all(trial.launched for trial in facts.trials):
        return Finding(name, "warning", "memory can be had; no kernel was tried: none was compiled", "see nvcc, gcc, compiling")
    return Finding(name, "ok", f"runs and answers right on {len(facts.trials)} GPU(s)")


TRIAL_CURES = {
    "SYSTEM_NOT_READY": "the NVSwitch fabric is not up: an administrator can: systemctl start nvidia-fabricmanager",
    "SYSTEM_DRIVER_MISMATCH": "the driver was updated while it ran: reboot",
    "COMPAT_NOT_SUPPORTED": "take the toolkit's compat folder out of LD_LIBRARY_PATH",
    "DEVICES_UNAVAILABLE": "another process has the GPU for itself: end it, or nvidia-smi -c DEFAULT by an administrator",
    "OUT_OF_MEMORY": "end what uses the GPU's memory, or choose another: farm.gpus=[1]",
    "NO_BINARY_FOR_GPU": "build for this GPU: see architecture",
    "INVALID_IMAGE": "the driver does not know the toolkit's cubins: see driver and toolkit",
    "UNSUPPORTED": "the driver does not know the toolkit's cubins: see driver and toolkit",
    "INSUFFICIENT_DRIVER": "update the driver",
    "NO_DEVICE": "CUDA sees no GPU: check CUDA_VISIBLE_DEVICES and, in a container, --gpus all",
    "ECC_UNCORRECTABLE": "the GPU's memory is damaged: an administrator should reset or replace it",
    "INVALID_DEVICE": "CUDA_VISIBLE_DEVICES names a GPU that is not there",
    "UNKNOWN": "an administrator can reload nvidia_uvm (after a suspend: rmmod nvidia_uvm; modprobe nvidia_uvm) or reboot",
    "visible": "CUDA_VISIBLE_DEVICES or farm.gpus name a GPU that is not there",
    "DynamicLibNotFound": "reinstall the driver (no libcuda.so.1); in a container NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    "no module named": "make clean setup",
    "did not answer": "the GPU or its driver hangs: see dmesg | grep -i xid; a reboot usually helps",
}
"""What to do, by what the failure says; the first that it holds."""


def _trial_cure(facts: Facts, failure: str) -> str:
    found = next((cure for sign, cure in TRIAL_CURES.items() if sign.lower() in failure.lower()), None)
    return found or "see dmesg | grep -i -e nvrm -e xid; try nvidia-smi; reboot if both look broken"
