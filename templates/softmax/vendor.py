"""Softmax by PyTorch: what the kernels are compared with."""

from collections.abc import Callable

from templates.workload import Workload


def launcher(workload: Workload) -> Callable[[], None]:
    """A call that launches it once on PyTorch's current stream, nothing allocated in it."""
    import torch  # here, because it is large and the rest runs without it

    dtype = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[workload.dtype]
    x = (torch.rand(workload["M"], workload["N"], device="cuda") * 20 + 80).to(dtype)
    y = torch.empty_like(x)

    def launch() -> None:
        torch.softmax(x, dim=-1, out=y)

    return launch
