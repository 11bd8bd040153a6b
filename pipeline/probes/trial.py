"""An allocation and a tiny kernel on one GPU: `python -m pipeline.probes.trial [cubin]` in a process that may hang or die."""

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.checks.facts import Trial
from pipeline.checks.reading import version_of
from pipeline.probes.child import Deadline, ask

COUNT = 1000


def probe(visible: Sequence[str], cubin: bytes, deadline: Deadline) -> tuple[Trial, ...]:
    """Try every GPU, each in its own process, all at once; `cubin` holds `doubled`, or nothing."""
    if not visible:
        return ()
    with tempfile.TemporaryDirectory(prefix="cuda-agent-") as folder:
        path = Path(folder) / "doubled.cubin"
        path.write_bytes(cubin)
        with ThreadPoolExecutor(len(visible)) as threads:
            return tuple(threads.map(lambda name: _try(name, str(path) if cubin else "", deadline), visible))


def _try(visible: str, path: str, deadline: Deadline) -> Trial:
    env = {"CUDA_VISIBLE_DEVICES": visible}
    if "CUDA_VISIBLE_DEVICES" not in os.environ:
        env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # NVML's order, which the numbers are of
    said, failure = ask("pipeline.probes.trial", path, limit_s=deadline.left(15.0), env=env)
    return trial_of(visible, said, failure)


def trial_of(visible: str, said: dict[str, Any], failure: str) -> Trial:
    """What the child said, as a trial; it names each step before it takes it, so that the one that ended it is known."""
    step = said.get("step", "start")
    if not failure and step != "done":
        failure = "ended without a word"
    told = said.get("error") or (f"{failure} ({step})" if failure else "")
    cuda = version_of(said.get("cuda", "")) or None
    return Trial(visible, told, not told and bool(said.get("launched")), cuda, said.get("free_bytes"))


def main(path: str = "") -> None:
    """Open, allocate, launch, compare; an error is said, and ends it."""
    try:
        _steps(path)
    except Exception as error:  # CUDA's, cuda-core's, a missing library: the doctor wants the words, not the traceback
        _say(error=f"{type(error).__name__}: {error}".splitlines()[0][:300])


def _steps(path: str) -> None:
    _say(step="import")
    from pipeline.measure.gpu import Gpu

    _say(step="open the GPU")
    gpu = Gpu(0)
    _say(step="allocate", cuda=gpu.driver_version(), free_bytes=gpu.free_bytes())
    values = np.arange(COUNT, dtype=np.float32)
    address = gpu.allocate(values.nbytes)
    gpu.write(address, values)
    if path:
        _say(step="launch")
        gpu.resident(Path(path).read_bytes(), "doubled", -(-COUNT // 256), 256, address, np.int32(COUNT))
        if not np.array_equal(gpu.read(address, np.zeros_like(values)), 2.0 * values):
            _say(error="the kernel ran and its answer is wrong")
        _say(launched=True)
    gpu.free(address)
    _say(step="done")


def _say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:2])
    os._exit(0)  # tearing down a lost context at interpreter exit can hang
