"""The CUDA toolkit: which nvcc, its gcc, what it builds for, and whether it builds."""

from pipeline.checks.facts import Build, Facts
from pipeline.checks.finding import Finding, replay_note
from pipeline.checks.reading import dotted, no_gpu, used_gpus


def nvcc(facts: Facts) -> Finding:
    """Whether there is a compiler; replaying needs none."""
    found = facts.compilers
    if found.used is None and found.installed and found.gcc is None:
        return Finding("nvcc", replay_note(facts, "problem"), f"{found.installed[0].path} has no gcc to work with", "see gcc")
    if found.used is None:
        reason = found.why_none.partition(":")[0] if ": install" in found.why_none else found.why_none
        needless = " (replay needs none)" if no_gpu(facts) else ""
        cure = "make setup brings one; else install the CUDA toolkit, or set farm.build.nvcc=/path/to/nvcc"
        return Finding("nvcc", replay_note(facts, "problem"), f"{reason or 'none found'}{needless}", cure)
    return Finding("nvcc", "ok", f"{found.used.version} {found.used.path}")


def toolkits(facts: Facts) -> Finding:
    """All compilers found, when there is more than one: which is used, and how to choose."""
    found = facts.compilers
    if found.home and not any(_inside(toolkit.path, found.home) for toolkit in found.installed):
        reason = f"CUDA_HOME={found.home} holds no bin/nvcc and is ignored"
        return Finding("toolkits", "warning", reason, "correct CUDA_HOME or unset it")
    if mute := [toolkit.path for toolkit in found.installed if toolkit.version is None]:
        return Finding("toolkits", "warning", f"{', '.join(mute)} does not answer", "remove it or repair its installation")
    if not found.installed:
        return Finding("toolkits", "skipped", "none found")
    used = found.used.path if found.used else ""
    listed = ", ".join(f"{t.version} {t.path}{' (used)' if t.path == used else ''}" for t in found.installed)
    if len(found.installed) == 1:
        return Finding("toolkits", "ok", listed)
    return Finding("toolkits", "ok", f"{len(found.installed)}: {listed}", "farm.build.nvcc=/path/to/nvcc chooses another one")


def _inside(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip("/") + "/")


def gcc(facts: Facts) -> Finding:
    """The host compiler, without which nvcc does nothing."""
    found = facts.compilers
    if found.gcc is None:
        cure = "install it (on Debian: apt-get install g++), or set farm.build.host_compiler=/path/to/gcc"
        return Finding("gcc", replay_note(facts, "problem"), "none found, and nvcc needs one", cure)
    return Finding("gcc", "ok", f"{found.gcc_version or 'of unknown version'} {found.gcc}")


def builds(facts: Facts) -> Finding:
    """Whether the compiler makes a cubin of tiny programs: a plain one first, then one for each thing that templates include."""
    name, found = "compiling", facts.compilers
    if not found.builds:
        return Finding(name, "skipped", "no compiler to try (see nvcc, gcc)")
    failed = [build for build in found.builds if build.failure]
    if not failed:
        return Finding(name, "ok", f"tiny programs compile for {found.arch}: {', '.join(b.needs for b in found.builds)}")
    verdict = replay_note(facts, "problem") if found.builds[0].failure else "warning"
    which = " and ".join(build.needs for build in failed)
    return Finding(name, verdict, f"{which} do not compile for {found.arch}: {failed[0].failure}", _cure(failed[0]))


def _cure(build: Build) -> str:
    text = build.failure.lower()
    if "unsupported gnu version" in text:
        return "set farm.build.host_compiler to an older gcc, e.g. gcc-13, or install a newer toolkit"
    if "no such file" in text and "#include" not in text:
        return "headers are missing: for PyPI's nvcc pip install nvidia-cuda-cccl, or set farm.build.nvcc to a whole toolkit"
    if "took over" in text:
        return "run the doctor again; if it stays, move TMPDIR and the toolkit to a local disk"
    if "unsupported gpu architecture" in text or "gpu-architecture" in text:
        return "set farm.build.nvcc to a toolkit that knows this GPU"
    if "no space left" in text or "could not write" in text:
        return "free some space, or point TMPDIR to another disk"
    return "try it by hand: nvcc -cubin on any .cu file; set farm.build.nvcc or farm.build.host_compiler"


def architecture(facts: Facts) -> Finding:
    """Whether the compiler knows the compute capability of the GPUs in use; of the recorded one where there is none."""
    name, found = "architecture", facts.compilers
    if not found.codes or found.used is None:
        return Finding(name, "skipped", "no compiler that tells what it builds for")
    capabilities = [] if no_gpu(facts) else sorted({gpu.capability for gpu in used_gpus(facts) if gpu.capability})
    if len(capabilities) > 1:
        reason = f"the GPUs differ in compute capability ({', '.join(map(dotted, capabilities))}): one build serves one"
        return Finding(name, "problem", reason, "choose alike ones, e.g. farm.gpus=[0]")
    code = "sm_" + "".join(map(str, capabilities[0])) if capabilities else found.arch
    whose = "this GPU's" if capabilities else "the recorded GPU's"
    if code in found.codes:
        return Finding(name, "ok", f"nvcc {found.used.version} builds for {code}, {whose}")
    newest = max((_number(known) for known in found.codes), default=0)
    older = "an older toolkit (CUDA 12 is the last one for 5.0 to 7.0)" if _number(code) < newest else "a newer toolkit"
    reason = f"nvcc {found.used.version} does not build for {code}, {whose} (it does for {' '.join(found.codes)})"
    return Finding(name, replay_note(facts, "problem"), reason, f"install {older} and set farm.build.nvcc to it")


def _number(code: str) -> int:
    digits = "".join(c for c in code if c.isdigit())
    return int(digits) if digits else 0
