"""A measurer without a GPU for tests: an analytic time with an optimum inside the space, the same at every call."""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from datasets.device import Device
from datasets.measurement import Candidate, Measurement
from templates.knob import Config, config_text
from templates.space import violations
from templates.template import Template, load_template
from templates.workload import Workload

LAUNCH_US = 2.0
SPREAD = 0.15
"""Standard deviation of log time that the model below does not explain: what a config's hash adds."""


class FakeMeasurer:
    """Roofline-like times: bytes and FLOPs over what the blocks in flight can use of the device.

    noise: standard deviation of log time between repeats. fail_rate: share of configs that fail, always the same ones.
    """

    source = "fake"

    def __init__(self, device: Device, seed: int = 0, noise: float = 0.0, fail_rate: float = 0.0) -> None:
        self.device, self.seed, self.noise, self.fail_rate = device, seed, noise, fail_rate
        self._rng = np.random.default_rng(seed)

    def known(self, workload: Workload) -> Sequence[dict[str, int]] | None:
        """None: every legal config can be measured."""
        return None

    def measure(self, candidates: Sequence[Candidate]) -> Iterator[Measurement]:
        """Rows with source "fake": ok with a time, illegal where a constraint says no, wrong_answer for the failing share."""
        for candidate in candidates:
            yield self._row(candidate)

    def close(self) -> None:
        """Nothing to release."""

    def true_us(self, workload: Workload, config: Config) -> float:
        """The noise-free time of a legal config."""
        template = load_template(workload.op)
        surprise = SPREAD * _normal(self.seed, str(workload), config_text(config))
        return float(model_us(template, workload, config, self.device) * np.exp(surprise))

    def _row(self, candidate: Candidate) -> Measurement:
        workload, config = candidate.workload, dict(candidate.config)
        common: dict[str, Any] = {"origin": candidate.origin, "source": "fake", "gpu": self.device.name}
        if candidate.origin == "vendor":
            template = load_template(workload.op)
            us = float(model_us(template, workload, template.expert(workload), self.device)) * 0.9
            return Measurement(workload, {}, "ok", time_us=us, samples_us=(us,), **common)
        template = load_template(workload.op)
        reasons = violations(template, config, workload, self.device.limits)
        if reasons:
            return Measurement(workload, config, "illegal", "; ".join(reasons), **common)
        if _uniform(self.seed, "fails", str(workload), config_text(config)) < self.fail_rate:
            return Measurement(workload, config, "wrong_answer", "a pretended failure", **common)
        us = self.true_us(workload, config) * float(np.exp(self.noise * self._rng.standard_normal()))
        return Measurement(workload, config, "ok", time_us=us, samples_us=(us,), template_version=template.version, **common)


def model_us(template: Template, workload: Workload, config: Config, device: Device) -> float:
    """A plausible time: launch + max(compute, memory) / (share of the device that the grid and the block keep busy).

    Uses threads, smem_bytes, registers and blocks of `template.derived` where the template has them.
    """
    derived = {name: float(value) for name, value in template.derived(config, workload).items()}
    threads, blocks = max(derived.get("threads", 256.0), 1.0), max(derived.get("blocks", 132.0), 1.0)
    registers = max(derived.get("registers", 64.0), 16.0)
    smem = max(derived.get("smem_bytes", 0.0), 1.0)
    resident = max(1.0, min(
        device.threads_sm // threads, device.registers_sm // (registers * threads), device.smem_sm_bytes // smem, device.blocks_sm
    ))  # fmt: skip
    slots = resident * device.sm_count
    waves = np.ceil(blocks / slots)
    tail = blocks / (waves * slots) if blocks > slots else min(1.0, blocks / device.sm_count)
    occupancy = min(1.0, resident * threads / device.threads_sm)
    reuse = derived.get("fma_per_load", 1.0)
    # Large thread tiles save loads but leave few warps to hide latency: the optimum lies between.
    efficiency = reuse / (reuse + 1.0) * (occupancy / (occupancy + 0.15))
    compute_us = template.flops(workload) / (device.fp32_tflops * 1e6) / efficiency
    memory_us = template.bytes(workload) / (device.memory_bandwidth_gbs * 1e3)
    return float(LAUNCH_US + max(compute_us, memory_us) / max(tail, 1e-3))


def _uniform(*parts: object) -> float:
    digest = hashlib.sha256("|".join(map(str, parts)).encode()).digest()
    return (int.from_bytes(digest[:8], "big") + 0.5) / 2.0**64


def _normal(*parts: object) -> float:
    """A standard normal number that follows from the parts (Box and Muller)."""
    u, v = _uniform("u", *parts), _uniform("v", *parts)
    return float(np.sqrt(-2.0 * np.log(u)) * np.cos(2.0 * np.pi * v))
