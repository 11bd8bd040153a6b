"""One GPU through cuda-core: memory, kernels, events, graphs. The only importer of `cuda.*` but for NVRTC (`nvrtc_server`).

Each object belongs to the process's one context (the primary one, which PyTorch shares).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from cuda.bindings import driver
from cuda.core import Device as CoreDevice
from cuda.core import EventOptions, LaunchConfig, ObjectCode, launch

from datasets.device import Device
from templates.template import Launch

HARMLESS = frozenset({
    "INVALID_VALUE", "OUT_OF_MEMORY", "INVALID_IMAGE", "NO_BINARY_FOR_GPU", "NOT_FOUND", "LAUNCH_OUT_OF_RESOURCES",
    "NOT_SUPPORTED", "UNSUPPORTED_PTX_VERSION", "INVALID_HANDLE", "INVALID_SOURCE",
})  # fmt: skip
"""Errors that refuse one call and leave the context usable. After any other, only a new process helps."""

_CODE = re.compile(r"CUDA_ERROR_(\w+)")
_FP32_LANES = {5: 128, 6: 64, 7: 64, 8: 128, 9: 128, 10: 128, 12: 128}
_FP32_LANES_OF = {(6, 1): 128, (6, 2): 128, (8, 0): 64}
"""fp32 lanes per SM by compute capability (CUDA C++ Programming Guide, arithmetic instructions table)."""


class GpuError(RuntimeError):
    """A driver call that failed; the text holds CUDA_ERROR_..."""


class NoGpuError(RuntimeError):
    """There is no such GPU here, or no driver."""


@dataclass(frozen=True)
class Fault:
    """A CUDA error found in an exception: its name without the prefix, and whether the context is lost."""

    code: str
    fatal: bool


def fault_of(error: BaseException) -> Fault | None:
    """The CUDA error behind an exception of ours, cuda-core's or PyTorch's, or None."""
    match = _CODE.search(str(error))
    return Fault(match.group(1), match.group(1) not in HARMLESS) if match else None


def _call(function: Callable[..., tuple[Any, ...]], *args: Any) -> Any:
    status, *values = function(*args)
    if status != driver.CUresult.CUDA_SUCCESS:
        raise GpuError(f"{status.name} from {function.__name__}")
    return values[0] if values else None


@dataclass(frozen=True)
class Kernel:
    """A loaded kernel, the launch geometry it will get, and its packed arguments; calling `Gpu.launch` queues it."""

    library: ObjectCode
    handle: Any
    config: LaunchConfig
    args: tuple[Any, ...]


class Graph:
    """A captured sequence of launches, ready to replay."""

    def __init__(self, captured: Any) -> None:
        self._graph = captured
        self.executable = _call(driver.cuGraphInstantiate, captured, 0)

    def close(self) -> None:
        """Free the graph."""
        _call(driver.cuGraphExecDestroy, self.executable)
        _call(driver.cuGraphDestroy, self._graph)


class Gpu:
    """A device, its context and one stream. NoGpuError where there is none of that index."""

    def __init__(self, index: int) -> None:
        try:
            devices = CoreDevice.get_all_devices()
        except Exception as error:  # no driver, no device, no permission: cuda-core raises a type for each
            raise NoGpuError(f"{type(error).__name__}: {error}".splitlines()[0]) from error
        self.count = len(devices)
        if index >= self.count:
            raise NoGpuError(f"GPU {index} asked for, {self.count} visible")
        self.device = CoreDevice(index)
        self.device.set_current()
        self.stream = self.device.create_stream()
        self._ordinal = _call(driver.cuDeviceGet, index)
        self._resident: dict[tuple[bytes, str], tuple[ObjectCode, Any]] = {}

    @property
    def pci_bus_id(self) -> str:
        """How NVML knows this GPU."""
        return str(self.device.pci_bus_id)

    @property
    def stream_handle(self) -> int:
        """The stream as an integer, for PyTorch's ExternalStream."""
        return int(self.stream.handle)

    def driver_version(self) -> str:
        """The CUDA version the driver supports, e.g. 13.0."""
        version = _call(driver.cuDriverGetVersion)
        return f"{version // 1000}.{version % 1000 // 10}"

    def free_bytes(self) -> int:
        """Free device memory."""
        status, free, _total = driver.cuMemGetInfo()
        if status != driver.CUresult.CUDA_SUCCESS:
            raise GpuError(f"{status.name} from cuMemGetInfo")
        return int(free)

    def allocate(self, size: int) -> int:
        """Plain device memory, as an address aligned to 256 bytes."""
        return int(_call(driver.cuMemAlloc, max(1, size)))

    def free(self, address: int) -> None:
        """Return what `allocate` gave."""
        _call(driver.cuMemFree, address)

    def fill(self, address: int, byte: int, size: int) -> None:
        """Queue a memset of `size` bytes."""
        if size:
            _call(driver.cuMemsetD8Async, address, byte, size, self.stream.handle)

    def read(self, address: int, array: np.ndarray) -> np.ndarray:
        """Copy device memory into a contiguous array, and wait."""
        _call(driver.cuMemcpyDtoHAsync, array.ctypes.data, address, array.nbytes, self.stream.handle)
        self.sync()
        return array

    def write(self, address: int, array: np.ndarray) -> None:
        """Copy a contiguous array to the device, and wait."""
        _call(driver.cuMemcpyHtoDAsync, address, array.ctypes.data, array.nbytes, self.stream.handle)
        self.sync()

    def kernel(self, code: bytes, entry: str, geometry: Launch, args: tuple[Any, ...]) -> Kernel:
        """Load an entry point from a cubin. Python ints are pointers; scalars come as numpy types of the right width."""
        library = ObjectCode.from_cubin(code)
        handle = library.get_kernel(entry)
        smem_bytes = geometry.dynamic_smem_bytes
        if smem_bytes:  # needed above 48 KiB together with the kernel's static shared memory
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            _call(driver.cuKernelSetAttribute, attribute, smem_bytes, handle.handle, self._ordinal)
        return Kernel(library, handle, LaunchConfig(grid=geometry.grid, block=geometry.block, shmem_size=smem_bytes), args)

    def resident(self, code: bytes, entry: str, grid: int, block: int, *args: Any) -> None:
        """Queue a one-dimensional launch of a kernel that stays loaded: the measurer's own and references."""
        if (code, entry) not in self._resident:
            library = ObjectCode.from_cubin(code)
            self._resident[code, entry] = library, library.get_kernel(entry)
        launch(self.stream, LaunchConfig(grid=grid, block=block), self._resident[code, entry][1], *args)

    def launch(self, kernel: Kernel) -> None:
        """Queue a kernel."""
        launch(self.stream, kernel.config, kernel.handle, *kernel.args)

    def event(self) -> Any:
        """An event that can tell time."""
        return self.device.create_event(EventOptions(timing_enabled=True))

    def record(self, event: Any) -> None:
        """Queue an event."""
        self.stream.record(event)

    def elapsed_us(self, start: Any, end: Any) -> float:
        """Microseconds between two events that have passed."""
        return float(end - start) * 1e3

    def sync(self) -> None:
        """Wait for the stream; an error of an earlier launch shows here."""
        self.stream.sync()

    def capture(self, enqueue: Callable[[], None]) -> Graph:
        """What `enqueue` queues, as a graph instead."""
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        _call(driver.cuStreamBeginCapture, self.stream.handle, mode)
        try:
            enqueue()
        finally:
            captured = _call(driver.cuStreamEndCapture, self.stream.handle)
        return Graph(captured)

    def replay(self, graph: Graph) -> None:
        """Queue a graph."""
        _call(driver.cuGraphLaunch, graph.executable, self.stream.handle)

    def describe(self) -> Device:
        """The device's sizes and rates, as the driver reports them."""
        p = self.device.properties
        capability = (int(p.compute_capability_major), int(p.compute_capability_minor))
        return Device(
            name=str(self.device.name),
            compute_capability=capability,
            sm_count=int(p.multiprocessor_count),
            smem_sm_bytes=int(p.max_shared_memory_per_multiprocessor),
            smem_block_bytes=int(p.max_shared_memory_per_block_optin),
            registers_sm=int(p.max_registers_per_multiprocessor),
            threads_sm=int(p.max_threads_per_multiprocessor),
            blocks_sm=int(p.max_blocks_per_multiprocessor),
            l2_bytes=int(p.l2_cache_size),
            clock_mhz=p.clock_rate / 1e3,
            # double data rate: two transfers per memory clock (kHz) over the bus (bits)
            memory_bandwidth_gbs=2e3 * p.memory_clock_rate * p.global_memory_bus_width / 8 / 1e9,
            fp32_lanes_sm=_FP32_LANES_OF.get(capability, _FP32_LANES.get(capability[0], 128)),
        )


def device_of(gpu_index: int) -> Device:
    """The GPU of an index; NoGpuError where there is none."""
    return Gpu(gpu_index).describe()
