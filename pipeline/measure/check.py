"""Right answers: random inputs, a float64 reference on the GPU, poisoned outputs, guard bands, and what went wrong in words."""

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.measure.gpu import Gpu
from templates.template import ELEMENT_BYTES, Launch, Template, Tensor
from templates.workload import Workload

GUARD_BYTES = 4096
GUARD_BYTE = 0xA5
POISON_BYTE = 0xFF
"""0xFF in every byte is a NaN in f32, f16 and bf16."""

SETS = 2
"""Input sets per workload: one to check with, one to time with."""

_BLOCK = 256
_REPORT = np.dtype([(name, "<u8") for name in ("worst", "bad", "unwritten", "nonzero", "expected_nonzero")])


@dataclass(frozen=True)
class Report:
    """An output compared with its reference. `ratio`: the largest |out - reference| / (bound * magnitude), at `index`."""

    ratio: float
    index: int
    bad: int
    unwritten: int
    all_zero: bool
    elements: int


def verdict(tensor: Tensor, report: Report) -> str:
    """What is wrong with an output, in one line; empty when nothing is."""
    if report.unwritten:
        return f"{tensor.name}: {_share(report.unwritten, report.elements)} of elements never written"
    if report.all_zero:
        return f"{tensor.name}: all zero"
    if report.bad:
        where = ", ".join(str(int(i)) for i in np.unravel_index(report.index, tensor.shape))
        return (
            f"{tensor.name}: max error {report.ratio:.1e} x bound at element ({where}),"
            f" {_share(report.bad, report.elements)} of elements wrong"
        )
    return ""


def _share(part: int, whole: int) -> str:
    percent = 100.0 * part / whole
    return f"{percent:.0f} %" if percent >= 1 else f"{percent:.1g} %"


@dataclass(frozen=True)
class Guarded:
    """Device memory between two guard bands; `address` is that of the data, aligned to 256 bytes."""

    name: str
    address: int
    size: int


class Checker:
    """The measurer's check kernels on one GPU; `tools` is the cubin of check.cu."""

    def __init__(self, gpu: Gpu, tools: bytes) -> None:
        self.gpu, self.tools = gpu, tools
        self._grid = 8 * gpu.describe().sm_count
        self._scratch = gpu.allocate(4096)

    def allocate(self, name: str, size: int) -> Guarded:
        """A guarded buffer, its bands painted, its content undefined."""
        base = self.gpu.allocate(size + 2 * GUARD_BYTES)
        buffer = Guarded(name, base + GUARD_BYTES, size)
        self.paint(buffer)
        return buffer

    def free(self, buffer: Guarded) -> None:
        """Return a guarded buffer's memory."""
        self.gpu.free(buffer.address - GUARD_BYTES)

    def paint(self, buffer: Guarded) -> None:
        """Queue the painting of both guard bands."""
        self.gpu.fill(buffer.address - GUARD_BYTES, GUARD_BYTE, GUARD_BYTES)
        self.gpu.fill(buffer.address + buffer.size, GUARD_BYTE, GUARD_BYTES)

    def overrun(self, buffers: Sequence[Guarded]) -> list[str]:
        """Names of the buffers with a damaged guard band."""
        if not buffers:
            return []
        self.gpu.fill(self._scratch, 0, 8 * len(buffers))
        for i, buffer in enumerate(buffers):
            for band in (buffer.address - GUARD_BYTES, buffer.address + buffer.size):
                self._run("count_changed", 4, band, np.uint64(GUARD_BYTES), np.uint32(GUARD_BYTE), self._scratch + 8 * i)
        changed = self.gpu.read(self._scratch, np.zeros(len(buffers), np.uint64))
        return [buffer.name for buffer, count in zip(buffers, changed, strict=True) if count]

    def randomise(self, buffer: Guarded, tensor: Tensor, seed: int) -> None:
        """Queue the filling of an input with uniform values in [low, high) that follow from the seed."""
        n = np.uint64(math.prod(tensor.shape))
        low, high = np.float32(tensor.low), np.float32(tensor.high)
        self._run(f"fill_{tensor.dtype}", self._grid, buffer.address, n, np.uint64(seed), low, high)

    def checksum(self, buffers: Sequence[Guarded]) -> tuple[int, ...]:
        """A sum per buffer that changes with any of its bytes."""
        self.gpu.fill(self._scratch, 0, 8 * len(buffers))
        for i, buffer in enumerate(buffers):
            self._run("checksum", self._grid, buffer.address, np.uint64(buffer.size), self._scratch + 8 * i)
        return tuple(int(value) for value in self.gpu.read(self._scratch, np.zeros(len(buffers), np.uint64)))

    def compare(self, output: Guarded, tensor: Tensor, reference: int, magnitude: int, bound: float) -> Report:
        """Every element of an output against float64 arrays at two addresses."""
        n = math.prod(tensor.shape)
        self.gpu.fill(self._scratch, 0, _REPORT.itemsize)
        args = (output.address, reference, magnitude, np.uint64(n), np.float64(bound), self._scratch)
        self._run(f"compare_{tensor.dtype}", self._grid, *args)
        found = self.gpu.read(self._scratch, np.zeros(1, _REPORT))[0]
        worst = int(found["worst"])
        return Report(
            ratio=float(np.uint32(worst >> 32).view(np.float32)),
            index=~worst & 0xFFFFFFFF,
            bad=int(found["bad"]),
            unwritten=int(found["unwritten"]),
            all_zero=int(found["nonzero"]) == 0 and int(found["expected_nonzero"]) > 0,
            elements=n,
        )

    def _run(self, entry: str, grid: int, *args: object) -> None:
        self.gpu.resident(self.tools, entry, grid, _BLOCK, *args)


@dataclass(frozen=True)
class InputSet:
    """Random inputs of a workload with the right answers: float64 reference and error magnitude of all outputs in a row."""

    seed: int
    inputs: tuple[Guarded, ...]
    answers: Guarded
    sums: tuple[int, ...]


class Bench:
    """A workload on one GPU: input sets with references, made once and used for every candidate; output buffers."""

    def __init__(self, checker: Checker, template: Template, workload: Workload, reference: bytes) -> None:
        self.checker, self.template, self.workload = checker, template, workload
        tensors = template.tensors(workload)
        self.ins = tuple(tensor for tensor in tensors if tensor.role == "in")
        self.outs = tuple(tensor for tensor in tensors if tensor.role == "out")
        self.bound = template.error_bound(workload)
        self.scalars = tuple(np.int32(value) for value in template.scalars(workload))
        self.damaged = False  # a candidate wrote where it should not: throw this bench away
        self._buffers: list[Guarded] = []
        try:
            self.outputs = tuple(self._allocate(tensor.name, _bytes(tensor)) for tensor in self.outs)
            self.sets = tuple(self._make_set(reference) for _ in range(SETS))
        except BaseException:
            self.close()
            raise

    @property
    def read_bytes(self) -> int:
        """Bytes of all inputs of one set."""
        return sum(_bytes(tensor) for tensor in self.ins)

    @property
    def held_bytes(self) -> int:
        """Device memory this workload holds."""
        return sum(buffer.size + 2 * GUARD_BYTES for buffer in self._buffers)

    def workspace(self, launch: Launch) -> Guarded | None:
        """Zeroed workspace for a launch, None where it needs none; free it with the checker."""
        if not launch.workspace_bytes:
            return None
        buffer = self.checker.allocate("workspace", launch.workspace_bytes)
        self.checker.gpu.fill(buffer.address, 0, buffer.size)
        return buffer

    def arguments(self, which: int, workspace: Guarded | None) -> tuple[object, ...]:
        """The kernel's arguments on input set `which`: inputs, outputs, scalars, workspace or null."""
        pointers = [buffer.address for buffer in (*self.sets[which].inputs, *self.outputs)]
        return (*pointers, *self.scalars, workspace.address if workspace else 0)

    def poison(self) -> None:
        """Queue the filling of all outputs with NaN."""
        for output in self.outputs:
            self.checker.gpu.fill(output.address, POISON_BYTE, output.size)

    def examine(self, which: int, workspace: Guarded | None) -> tuple[str, float]:
        """What is wrong after a launch on set `which` (empty: nothing), and the largest error in units of the bound."""
        answers, ratio, problems = self.sets[which].answers, 0.0, []
        total = sum(math.prod(tensor.shape) for tensor in self.outs)
        offset = 0
        for output, tensor in zip(self.outputs, self.outs, strict=True):
            reference = answers.address + 8 * offset
            report = self.checker.compare(output, tensor, reference, reference + 8 * total, self.bound)
            ratio, offset = max(ratio, report.ratio), offset + report.elements
            problems.append(verdict(tensor, report))
        extra = [workspace] if workspace else []
        # Foreign memory first: whoever writes there may have spoilt the rest.
        damage = [f"wrote outside buffer {name}" for name in self.checker.overrun([*self._buffers, *extra])]
        inputs = self.sets[which].inputs
        sums = self.checker.checksum(inputs)
        damage += [f"changed input {b.name}" for b, s, want in zip(inputs, sums, self.sets[which].sums, strict=True) if s != want]
        self.damaged = self.damaged or bool(damage)
        return "; ".join(filter(None, damage + problems)), ratio

    def close(self) -> None:
        """Free all memory."""
        while self._buffers:
            self.checker.free(self._buffers.pop())

    def _allocate(self, name: str, size: int) -> Guarded:
        buffer = self.checker.allocate(name, size)
        self._buffers.append(buffer)
        return buffer

    def _make_set(self, reference: bytes) -> InputSet:
        seed = secrets.randbits(63)  # fresh every time: no candidate can know the inputs
        inputs = tuple(self._allocate(tensor.name, _bytes(tensor)) for tensor in self.ins)
        for i, (buffer, tensor) in enumerate(zip(inputs, self.ins, strict=True)):
            self.checker.randomise(buffer, tensor, (seed + i) % 2**63)
        total = sum(math.prod(tensor.shape) for tensor in self.outs)
        answers = self._allocate("reference", 16 * total)
        gpu = self.checker.gpu
        pointers = [buffer.address for buffer in inputs]
        args = (*pointers, answers.address, answers.address + 8 * total, *self.scalars)
        threads = self.template.reference_threads
        gpu.resident(reference, "reference", -(-(threads(self.workload) if threads else total) // _BLOCK), _BLOCK, *args)
        gpu.sync()
        return InputSet(seed, inputs, answers, self.checker.checksum(inputs))


def _bytes(tensor: Tensor) -> int:
    return math.prod(tensor.shape) * ELEMENT_BYTES[tensor.dtype]
