"""What is wrong with an answer, in words; and a bench on a pretended GPU: damage is found, memory goes back."""

import numpy as np
import pytest

from pipeline.measure.check import GUARD_BYTES, Bench, Checker, Report, verdict
from templates.template import Launch, Tensor, load_template

MATMUL = load_template("matmul")
W = MATMUL.workload(M=8, N=6, K=4)
C = Tensor("C", "out", (8, 6), "f32")
BOUND = MATMUL.error_bound(W)


def report(**values: object) -> Report:
    base: dict[str, object] = {"ratio": 0.5, "index": 0, "bad": 0, "unwritten": 0, "all_zero": False, "elements": 48}
    return Report(**{**base, **values})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({}, ""),
        ({"ratio": 312.0, "index": 9, "bad": 8}, "C: max error 3.1e+02 x bound at element (1, 3), 17 % of elements wrong"),
        ({"ratio": np.inf, "bad": 24, "unwritten": 24}, "C: 50 % of elements never written"),
        ({"ratio": 9e5, "bad": 48, "all_zero": True}, "C: all zero"),
    ],
)
def test_the_verdict_says_how_an_output_is_wrong(values: dict[str, object], text: str) -> None:
    assert verdict(C, report(**values)) == text


class HostGpu:
    """Device memory as one numpy array, and check.cu's kernels and the reference written again in numpy."""

    def __init__(self) -> None:
        self.memory = np.zeros(1 << 20, np.uint8)
        self.taken: dict[int, int] = {}
        self.next = 256
        self.room = 100

    def describe(self) -> object:
        from datasets.device import H200

        return H200

    def allocate(self, size: int) -> int:
        if len(self.taken) == self.room:
            raise MemoryError
        address, self.next = self.next, -(-(self.next + size) // 256) * 256
        self.taken[address] = size
        return address

    def free(self, address: int) -> None:
        del self.taken[address]

    def fill(self, address: int, byte: int, size: int) -> None:
        self.memory[address : address + size] = byte

    def read(self, address: int, array: np.ndarray) -> np.ndarray:
        array.reshape(-1).view(np.uint8)[:] = self.memory[address : address + array.nbytes]
        return array

    def sync(self) -> None:
        pass

    def view(self, address: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return self.memory[address : address + size].view(dtype).reshape(shape)

    def resident(self, code: bytes, entry: str, grid: int, block: int, *args: int) -> None:
        getattr(self, entry)(*args)

    def fill_f32(self, data: int, n: int, seed: int, low: float, high: float) -> None:
        self.view(data, (int(n),), "f4")[:] = np.random.default_rng(int(seed)).uniform(low, high, int(n))

    def count_changed(self, data: int, n: int, value: int, out: int) -> None:
        self.view(out, (1,), "u8")[0] += np.count_nonzero(self.memory[data : data + int(n)] != value)

    def checksum(self, data: int, n: int, out: int) -> None:
        self.view(out, (1,), "u8")[0] += sum(i * int(b) for i, b in enumerate(self.memory[data : data + int(n)], 1))

    def reference(self, a: int, b: int, ref: int, mag: int, m: int, n: int, k: int) -> None:
        left, right = (self.view(p, s, "f4").astype(float) for p, s in ((a, (m, k)), (b, (k, n))))
        self.view(ref, (m, n), "f8")[:] = left @ right
        self.view(mag, (m, n), "f8")[:] = np.abs(left) @ np.abs(right)

    def compare_f32(self, out: int, ref: int, mag: int, n: int, bound: float, result: int) -> None:
        value, want, size = (self.view(p, (int(n),), d) for p, d in ((out, "f4"), (ref, "f8"), (mag, "f8")))
        ratio = np.nan_to_num(np.abs(value - want) / (bound * size), nan=np.inf).astype(np.float32)
        worst = int(ratio.argmax())
        self.view(result, (5,), "u8")[:] = [
            int(ratio[worst].view(np.uint32)) << 32 | (~worst & 0xFFFFFFFF), np.sum(~(ratio <= 1)),
            np.sum(value.view(np.uint32) == 0xFFFFFFFF), np.sum(value != 0), np.sum(want != 0),
        ]  # fmt: skip


@pytest.fixture
def gpu() -> HostGpu:
    return HostGpu()


@pytest.fixture
def bench(gpu: HostGpu) -> Bench:
    return Bench(Checker(gpu, b""), MATMUL, W, b"")  # type: ignore[arg-type]


def launch(gpu: HostGpu, bench: Bench, which: int) -> np.ndarray:
    """What a right kernel does with the arguments it gets; returns C for a test to spoil."""
    a, b, c, m, n, k, _workspace = bench.arguments(which, None)
    out = gpu.view(c, (int(m), int(n)), "f4")  # type: ignore[arg-type, call-overload]
    out[:] = gpu.view(a, (int(m), int(k)), "f4") @ gpu.view(b, (int(k), int(n)), "f4")  # type: ignore[arg-type, call-overload]
    return out


def test_a_right_kernel_passes_on_both_input_sets_which_differ(gpu: HostGpu, bench: Bench) -> None:
    for which in (0, 1):
        bench.poison()
        launch(gpu, bench, which)
        problem, error = bench.examine(which, None)
        assert problem == "" and 0 < error <= 1
    assert bench.examine(0, None)[0].startswith("C: max error"), "the other set's answer is wrong here"


def test_what_was_never_written_is_still_poison(gpu: HostGpu, bench: Bench) -> None:
    launch(gpu, bench, 0)
    bench.poison()
    assert bench.examine(0, None)[0] == "C: 100 % of elements never written", "an earlier candidate's answer does not count"
    launch(gpu, bench, 0)[3, 2] += 0.01
    assert "at element (3, 2), 2 % of elements wrong" in bench.examine(0, None)[0]


@pytest.mark.parametrize("offset", [-1, -GUARD_BYTES, 8 * 6 * 4, 8 * 6 * 4 + GUARD_BYTES - 1])
def test_writes_outside_are_found_to_the_last_byte_of_the_band(gpu: HostGpu, bench: Bench, offset: int) -> None:
    launch(gpu, bench, 0)
    gpu.memory[bench.outputs[0].address + offset] ^= 1
    assert bench.examine(0, None)[0] == "wrote outside buffer C"
    assert bench.damaged


def test_a_changed_input_and_a_spoilt_workspace_band_are_found(gpu: HostGpu, bench: Bench) -> None:
    launch(gpu, bench, 0)
    workspace = bench.workspace(Launch((1, 1, 1), (1, 1, 1), 0, 100))
    assert workspace is not None and not gpu.memory[workspace.address : workspace.address + 100].any()
    gpu.memory[workspace.address + 100] ^= 1
    gpu.memory[bench.sets[0].inputs[1].address] ^= 1
    assert bench.examine(0, workspace)[0] == "wrote outside buffer workspace; changed input B"


def test_no_memory_stays_behind(gpu: HostGpu, bench: Bench) -> None:
    bench.close()
    assert len(gpu.taken) == 1, "the checker's own scratch"
    gpu.room = 5
    with pytest.raises(MemoryError):
        Bench(bench.checker, MATMUL, W, b"")
    assert len(gpu.taken) == 1, "what was allocated before it failed went back"
