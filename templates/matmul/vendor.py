"""The product by cuBLAS through PyTorch: what the kernels are compared with."""

from collections.abc import Callable

from templates.workload import Workload


def launcher(workload: Workload) -> Callable[[], None]:
    """A call that launches it once on PyTorch's current stream, nothing allocated in it."""
    import torch  # here, because it is large and the rest runs without it

    a = torch.rand(workload["M"], workload["K"], device="cuda") * 2 - 1
    b = torch.rand(workload["K"], workload["N"], device="cuda") * 2 - 1
    out = torch.empty(workload["M"], workload["N"], device="cuda")

    def launch() -> None:
        torch.mm(a, b, out=out)

    return launch
