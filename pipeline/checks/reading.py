"""What follows from the facts: versions as numbers, the GPUs in use, why there is none."""

from pipeline.checks.facts import Facts, GpuState, Version


def version_of(text: str) -> Version:
    """The numbers a version begins with: (2, 13, 0) of 2.13.0+cpu; empty where it begins with none."""
    numbers: list[int] = []
    for part in text.partition("+")[0].split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def dotted(version: Version) -> str:
    """13.0 of (13, 0)."""
    return ".".join(map(str, version))


def used_gpus(facts: Facts) -> tuple[GpuState, ...]:
    """The GPUs the stages would measure on: those of CUDA_VISIBLE_DEVICES and of farm.gpus, as far as NVML's names tell.

    Entries that are numbers count in NVML's order; where one cannot be found (a MIG instance) all of them are meant.
    """
    found = [next((gpu for gpu in facts.nvml.gpus if _is(gpu, name)), None) for name in chosen_names(facts)]
    return facts.nvml.gpus if None in found else tuple(gpu for gpu in found if gpu is not None)


def visible_names(facts: Facts) -> list[str]:
    """CUDA_VISIBLE_DEVICES's entries, without it the numbers of all GPUs that NVML sees, of one where it sees none."""
    named = facts.host.variables.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return [str(index) for index in range(len(facts.nvml.gpus) or 1)]
    return [name.strip() for name in named.split(",") if name.strip()]


def chosen_names(facts: Facts) -> list[str]:
    """Those of them that farm.gpus picks; all where it is empty or picks none that is there."""
    names = visible_names(facts)
    return [names[index] for index in facts.asked.gpus if index < len(names)] or names


def _is(gpu: GpuState, name: str) -> bool:
    return name == str(gpu.index) if name.isdigit() else bool(gpu.uuid) and gpu.uuid.startswith(name)


def no_gpu(facts: Facts) -> str:
    """Why no GPU is measured on, in a few words; empty where one is."""
    if facts.asked.gpu == "replay":
        return "gpu=replay uses no GPU"
    if facts.host.gpu_present:
        return ""
    hidden = facts.host.variables.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    return "CUDA_VISIBLE_DEVICES hides all GPUs" if hidden else "no GPU here"


def driver_cuda(facts: Facts) -> Version | None:
    """The newest CUDA version the driver knows, from whoever could tell."""
    return facts.nvml.cuda or next((trial.cuda for trial in facts.trials if trial.cuda), None)
