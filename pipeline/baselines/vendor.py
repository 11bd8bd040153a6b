"""The vendor's kernel: cuBLAS through PyTorch, launched on the measurer's stream so that the very same timer times it."""

from collections.abc import Callable
from types import ModuleType

from templates.errors import InputError
from templates.workload import Workload

INSTALL = "install a CUDA build of PyTorch, or leave `vendor` out of evaluate.methods"


def prepare(workload: Workload, stream_handle: int) -> Callable[[], None]:
    """A call that enqueues one launch of the vendor's fp32 kernel on a CUDA stream, TF32 off, nothing allocated in it.

    `stream_handle` is the address of a CUstream of the device's primary context, which is where PyTorch works as well.
    InputError without a PyTorch that has CUDA, and for an operator that has no vendor kernel here.
    """
    launchers = {"matmul": _matmul}
    if workload.op not in launchers or workload.dtype != "f32":
        raise InputError(f"{workload}: no vendor kernel for this operator and dtype")
    torch = _torch()
    stream = torch.cuda.ExternalStream(stream_handle)
    with torch.cuda.stream(stream):
        launch = launchers[workload.op](workload)
        launch()  # cuBLAS makes its handle and workspace, and chooses its kernel, at the first call
    stream.synchronize()

    def enqueue() -> None:
        with torch.cuda.stream(stream):
            launch()

    return enqueue


def missing() -> str | None:
    """Why this installation has no vendor kernels, or None where it does; asks nothing of the GPU."""
    try:
        import torch  # here, because it is large and the rest runs without it
    except ImportError:
        return f"the vendor's kernel needs PyTorch, which is not installed: {INSTALL}"
    if torch.version.cuda is None:
        return f"the vendor's kernel needs PyTorch with CUDA, torch {torch.__version__} has none: {INSTALL}"
    return None


def _torch() -> ModuleType:
    """PyTorch with TF32 off."""
    if reason := missing():
        raise InputError(reason)
    import torch

    if not torch.cuda.is_available():
        raise InputError(f"the vendor's kernel needs a GPU, and torch {torch.__version__} finds none: {INSTALL}")
    # TF32 rounds the inputs to 10 bits: another problem, and one that our fp32 kernels would lose to unfairly.
    torch.backends.cuda.matmul.allow_tf32 = False
    return torch


def _matmul(workload: Workload) -> Callable[[], None]:
    import torch

    a = torch.rand(workload["M"], workload["K"], device="cuda") * 2 - 1
    b = torch.rand(workload["K"], workload["N"], device="cuda") * 2 - 1
    out = torch.empty(workload["M"], workload["N"], device="cuda")

    def launch() -> None:
        torch.mm(a, b, out=out)

    return launch
