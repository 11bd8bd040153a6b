"""All probes, side by side, within one deadline."""

from collections.abc import Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as LateError
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from datasets.device import H200, Device
from pipeline.checks.facts import Asked, Compilers, Facts, Folder, Host, Nvml, Packages, PyTorch
from pipeline.checks.finding import Finding
from pipeline.checks.reading import chosen_names, no_gpu, used_gpus
from pipeline.measure.settings import BuildSettings
from pipeline.probes import compilers, folders, host, nvml, packages, pytorch, recordings, trial
from pipeline.probes.child import Deadline, later
from templates.errors import InputError

LIMIT_S = 26.0
T = TypeVar("T")


@dataclass(frozen=True)
class Place:
    """Where to look. `folders` by role: cache, scratch, outputs, data; nvml: the module that is NVML."""

    recorded: Path
    folders: Mapping[str, Path]
    build: BuildSettings = field(default_factory=BuildSettings)
    nvml: str = "pynvml"


def look(asked: Asked, place: Place, limit_s: float = LIMIT_S) -> tuple[Facts, list[Finding]]:
    """Everything that is found out in time, and a finding for each probe that gave nothing."""
    deadline, silent = Deadline(limit_s), list[Finding]()

    def take(name: str, future: "Future[T]", otherwise: T) -> T:
        try:
            return future.result(deadline.left() + 1.0)  # a child process that is ended at the deadline still says so
        except LateError:
            silent.append(Finding(name, "warning", f"no answer within {limit_s:.0f} s", "run the doctor again, with less load"))
        except Exception as error:  # a fault of one probe: the others still count
            reason = " ".join(f"could not be looked at ({type(error).__name__}: {error})".split())
            silent.append(Finding(name, "warning", reason, "please report it"))
        return otherwise

    torch = later(lambda: pytorch.probe(deadline.left(20.0)))
    recorded = later(lambda: recordings.probe(place.recorded))
    tried = {role: later(partial(_folder, path)) for role, path in place.folders.items()}
    gpus = later(lambda: nvml.probe(deadline.left(8.0), place.nvml))
    here = take("machine", later(host.probe), Host())
    named = take("packages", later(packages.probe), Packages())
    seen = take("NVML", gpus, Nvml(error="did not answer"))
    first = Facts(asked, named, here, nvml=seen)
    built = take("compilers", later(lambda: compilers.probe(place.build, arch(first, place.recorded), deadline)), Compilers())
    cubin = built.builds[0].cubin if built.builds else b""
    names = [] if no_gpu(first) else chosen_names(first)
    trials = take("first kernel", later(lambda: trial.probe(names, cubin, deadline)), ())
    facts = Facts(
        asked, named, here, built, seen, trials,
        pytorch=take("PyTorch", torch, PyTorch(error="did not answer")),
        folders={role: found for role, future in tried.items() if (found := take(role, future, None))},
        recordings=take("recorded timings", recorded, ()),
    )  # fmt: skip
    return facts, silent


def arch(facts: Facts, recorded: Path) -> str:
    """The architecture to build for: the GPU's, where there is none the recorded one's."""
    capability = next((gpu.capability for gpu in used_gpus(facts) if gpu.capability), None)
    if no_gpu(facts) or capability is None:
        try:
            capability = Device.load(recorded / facts.asked.recorded / "device.json").compute_capability
        except InputError:
            capability = H200.compute_capability
    return "sm_" + "".join(map(str, capability))


def _folder(path: Path) -> Folder | None:
    return folders.probe(path)
