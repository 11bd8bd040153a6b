"""A GPU as the learning sees it: sizes, rates, and what it accepts of a launch."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from templates.errors import InputError
from templates.template import Limits


@dataclass(frozen=True)
class Device:
    """One GPU model. Bytes, registers (32-bit) and MHz as the driver reports them; rates computed from them or measured.

    `key` is the folder name in `datasets/recorded/`, e.g. `nvidia-h200`.
    """

    name: str
    compute_capability: tuple[int, int]
    sm_count: int
    smem_sm_bytes: int
    smem_block_bytes: int
    registers_sm: int
    threads_sm: int
    blocks_sm: int
    l2_bytes: int
    clock_mhz: float
    memory_bandwidth_gbs: float
    fp32_lanes_sm: int

    @property
    def key(self) -> str:
        """Lower-case name with dashes."""
        return "-".join(self.name.lower().split())

    @property
    def fp32_tflops(self) -> float:
        """Peak fp32 rate: two FLOPs per lane and clock."""
        return 2e-6 * self.sm_count * self.fp32_lanes_sm * self.clock_mhz

    @property
    def limits(self) -> Limits:
        """What a launch may ask of this GPU."""
        return Limits(
            compute_capability=self.compute_capability,
            smem_block_bytes=self.smem_block_bytes,
            registers_per_sm=self.registers_sm,
        )

    def save(self, path: Path) -> None:
        """Write as JSON."""
        path.write_text(json.dumps(asdict(self), indent=2) + "\n")

    @staticmethod
    def load(path: Path) -> "Device":
        """Read what `save` wrote; InputError for a file that is something else."""
        try:
            fields = json.loads(path.read_text())
            return Device(**{**fields, "compute_capability": tuple(fields["compute_capability"])})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{path}: no description of a GPU ({type(error).__name__}); restore it or collect again") from error


H200 = Device(
    name="NVIDIA H200",
    compute_capability=(9, 0),
    sm_count=132,
    smem_sm_bytes=228 * 1024,
    smem_block_bytes=227 * 1024,
    registers_sm=65536,
    threads_sm=2048,
    blocks_sm=32,
    l2_bytes=60 * 1024 * 1024,
    clock_mhz=1980.0,
    memory_bandwidth_gbs=4800.0,
    fp32_lanes_sm=128,
)
