"""Python, its packages, PyTorch."""

import re

from pipeline.checks.facts import Facts, PyTorch, Version
from pipeline.checks.finding import Finding
from pipeline.checks.reading import dotted, driver_cuda, no_gpu, used_gpus, version_of

SUPPORTED = ((3, 11), (3, 12))
_ARCH = re.compile(r"(sm|compute)_(\d+)(\d)([a-z]?)$")


def python(facts: Facts) -> Finding:
    """Whether this Python is one that the packages are pinned for."""
    version = facts.packages.python
    if version[:2] in SUPPORTED:
        return Finding("Python", "ok", dotted(version))
    cure = "make clean setup PYTHON=python3.11, or python3.12"
    return Finding("Python", "warning", f"{dotted(version)}: packages are pinned and tested for 3.11 and 3.12", cure)


def packages(facts: Facts) -> Finding:
    """Whether everything needed is installed, and in the versions that were tested together."""
    found = facts.packages
    if missing := [name for name in found.wanted if name not in found.installed]:
        return Finding("packages", "problem", f"not installed: {_some(missing)}", "make clean setup")
    others = [
        f"{name} {found.installed[name]} (tested: {version})"
        for name, version in found.pinned.items()
        if name in found.installed and version_of(found.installed[name]) != version_of(version)
    ]
    if others:
        return Finding("packages", "warning", f"other versions than in constraints.txt: {_some(others)}", "make clean setup")
    return Finding("packages", "ok", f"{len(found.wanted)} needed, all as in constraints.txt")


def _some(names: list[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def ray(facts: Facts) -> Finding:
    """Ray is needed for measuring on several machines only."""
    version = facts.packages.installed.get("ray")
    if version is None:
        return Finding("Ray", "skipped", "not installed; only measuring on several machines needs it", "pip install ray")
    return Finding("Ray", "ok", version)


def pytorch(facts: Facts) -> Finding:
    """Whether PyTorch, which the policy is trained with, can be imported."""
    found = facts.pytorch
    if "did not answer" in found.error:
        cure = "run the doctor again, with less load; a slow disk under the environment also does it"
        return Finding("PyTorch", "warning", f"its import {found.error}", cure)
    if found.error:
        return Finding("PyTorch", "problem", f"cannot be used ({found.error}): the policy is trained with it", "make clean setup")
    return Finding("PyTorch", "ok", found.version)


def pytorch_cuda(facts: Facts) -> Finding:
    """Whether PyTorch reaches the GPU: with it the vendor's kernels are timed beside ours."""
    name, found = "PyTorch's CUDA", facts.pytorch
    if reason := no_gpu(facts) or ("PyTorch cannot be used" if found.error else ""):
        return Finding(name, "skipped", reason)
    lost = "the vendor's kernels cannot be timed beside ours"
    if found.cuda is None:
        cure = "install PyTorch's CUDA build: make clean setup, without TORCH_INDEX"
        return Finding(name, "warning", f"torch {found.version} is a build without CUDA: {lost}", cure)
    driver = driver_cuda(facts)
    if driver and found.cuda[:1] > driver[:1]:
        reason = f"torch is built for CUDA {dotted(found.cuda)}, the driver only knows {dotted(driver)}: {lost}"
        return Finding(name, "warning", reason, f"update the driver, or install a PyTorch for CUDA {driver[0]}")
    if not found.available:
        cure = 'see what python -c "import torch; torch.cuda.init()" says'
        return Finding(name, "warning", f"torch {found.version} finds no usable GPU: {lost}", cure)
    return Finding(name, "ok", f"CUDA {dotted(found.cuda)}" + (f", the driver knows {dotted(driver)}" if driver else ""))


def pytorch_architecture(facts: Facts) -> Finding:
    """Whether PyTorch's own kernels were built for the GPUs in use."""
    name, found = "PyTorch's architectures", facts.pytorch
    if reason := no_gpu(facts) or ("PyTorch has no CUDA" if found.cuda is None or not found.archs else ""):
        return Finding(name, "skipped", reason)
    capabilities = sorted({gpu.capability for gpu in used_gpus(facts) if gpu.capability})
    if not capabilities:
        return Finding(name, "skipped", "the GPU's compute capability is not known (see NVML)")
    without = [capability for capability in capabilities if not _serves(found, capability)]
    if without:
        reason = f"torch {found.version} has no kernels for compute capability {dotted(without[0])}, only {' '.join(found.archs)}"
        cure = "install a PyTorch release whose list holds it, or leave `vendor` out of evaluate.methods"
        return Finding(name, "warning", f"{reason}: the vendor's cannot be timed", cure)
    return Finding(name, "ok", f"kernels for compute capability {', '.join(map(dotted, capabilities))}")


def _serves(torch: PyTorch, capability: Version) -> bool:
    return any(_runs_on(arch, capability) for arch in torch.archs)


def _runs_on(arch: str, capability: Version) -> bool:
    """Binaries run on the same major capability from their minor one up, PTX on everything newer, sm_90a on 9.0 alone, sm_100f on
    its family (CUDA C++ Programming Guide, compute capabilities; treated as the same major one).
    """
    found = _ARCH.match(arch)
    if found is None:
        return False
    built, mark = (int(found[2]), int(found[3])), found[4]
    if mark == "a":
        return capability == built
    if found[1] == "compute" and not mark:
        return capability >= built
    return capability[0] == built[0] and capability >= built
