"""The vendor's kernel: on the measurer's stream, TF32 off, nothing allocated per launch; one line where it cannot be."""

import contextlib
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.baselines.vendor import missing, prepare
from templates.errors import InputError
from templates.workload import Workload

MATMUL = Workload.parse("matmul/f32/M=64,N=32,K=16")


class FakeTorch:
    """What `vendor` needs of PyTorch, with a log of (stream, what happened)."""

    __version__ = "9"

    def __init__(self, present: bool = True, build: str | None = "13.0") -> None:
        self.log: list[tuple[int | None, str]] = []
        self.current: int | None = None
        self.version = SimpleNamespace(cuda=build)
        self.backends = SimpleNamespace(
            cuda=SimpleNamespace(matmul=SimpleNamespace(allow_tf32=True)), cudnn=SimpleNamespace(allow_tf32=True)
        )
        self.no_grad = contextlib.nullcontext
        self.cuda = SimpleNamespace(is_available=lambda: present, ExternalStream=self.external, stream=self.entered)

    def external(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(handle=handle, synchronize=lambda: self.log.append((handle, "synchronize")))

    @contextlib.contextmanager
    def entered(self, stream: SimpleNamespace) -> Iterator[None]:
        self.current, before = stream.handle, self.current
        yield
        self.current = before

    def rand(self, *shape: int, device: str) -> Any:
        self.log.append((self.current, f"allocate {shape}"))
        return _Array(shape)

    empty = rand

    def mm(self, a: Any, b: Any, out: Any) -> None:
        tf32 = self.backends.cuda.matmul.allow_tf32
        self.log.append((self.current, f"mm {a.shape} {b.shape} {out.shape} tf32={tf32}"))


class _Array:
    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def __mul__(self, _: float) -> "_Array":
        return self

    __sub__ = __mul__


def test_launches_go_to_the_given_stream_without_tf32_and_without_allocating(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = FakeTorch()
    monkeypatch.setitem(sys.modules, "torch", torch)  # type: ignore[arg-type]
    assert missing() is None
    launch = prepare(MATMUL, 4711)
    assert torch.log[-1] == (4711, "synchronize")
    before = len(torch.log)
    launch()
    launch()
    assert torch.log[before:] == 2 * [(4711, "mm (64, 16) (16, 32) (64, 32) tf32=False")]
    assert torch.current is None


@pytest.mark.parametrize(("build", "says"), [(None, "has none"), ("13.0", "finds none")])
def test_a_pytorch_that_cannot_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch, build: str | None, says: str) -> None:
    monkeypatch.setitem(sys.modules, "torch", FakeTorch(present=False, build=build))  # type: ignore[arg-type]
    with pytest.raises(InputError, match=f"{says}.*install a CUDA build"):
        prepare(MATMUL, 1)


def test_without_pytorch_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "not installed" in str(missing())
    with pytest.raises(InputError, match="not installed"):
        prepare(MATMUL, 1)


def test_an_operator_may_have_no_vendor_kernel() -> None:
    with pytest.raises(InputError, match="no vendor kernel"):
        prepare(Workload.parse("mine/f32/M=4,N=4"), 1)
