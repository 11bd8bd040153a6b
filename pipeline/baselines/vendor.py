"""The vendor's kernel (cuBLAS, cuDNN, PyTorch's own), as `templates/<op>/vendor.py` calls it through PyTorch, launched on the
measurer's stream so that the very same timer times it.
"""

import importlib
from collections.abc import Callable
from types import ModuleType

from templates.errors import InputError
from templates.template import ROOT
from templates.workload import Workload

INSTALL = "install a CUDA build of PyTorch, or leave `vendor` out of evaluate.methods"


def prepare(workload: Workload, stream_handle: int) -> Callable[[], None]:
    """A call that enqueues one launch of the vendor's kernel on a CUDA stream, TF32 off.

    `stream_handle` is the address of a CUstream of the device's primary context, which is where PyTorch works as well.
    InputError without a PyTorch that has CUDA, and for an operator that has no vendor kernel here.
    """
    if not has_vendor(workload.op):
        raise InputError(f"{workload}: no vendor kernel for this operator")
    torch = _torch()
    stream = torch.cuda.ExternalStream(stream_handle)
    with torch.cuda.stream(stream), torch.no_grad():
        launch = importlib.import_module(f"templates.{workload.op}.vendor").launcher(workload)
        for _ in range(2):  # libraries make their handles and workspaces, and choose their kernels, at the first calls
            launch()
    stream.synchronize()

    def enqueue() -> None:
        with torch.cuda.stream(stream), torch.no_grad():
            launch()

    return enqueue


def has_vendor(op: str) -> bool:
    """Whether an operator says what PyTorch's kernel for it is."""
    return (ROOT / op / "vendor.py").is_file()


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
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True  # cuDNN measures its kernels and takes the fastest
    return torch
