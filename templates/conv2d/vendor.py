"""The convolution by cuDNN through PyTorch: what the kernels are compared with."""

from collections.abc import Callable

from templates.workload import Workload


def launcher(workload: Workload) -> Callable[[], None]:
    """A call that launches it once on PyTorch's current stream. PyTorch keeps the memory of y from call to call."""
    import torch  # here, because it is large and the rest runs without it

    w = workload
    layout = torch.channels_last if w["nhwc"] else torch.contiguous_format
    x = (torch.rand(w["N"], w["C"], w["H"], w["W"], device="cuda") * 2 - 1).contiguous(memory_format=layout)
    filters = torch.rand(w["K"], w["C"] // w["groups"], w["R"], w["S"], device="cuda") * 2 - 1
    filters = filters.contiguous(memory_format=layout)

    def launch() -> None:
        torch.nn.functional.conv2d(x, filters, None, w["stride"], w["pad"], w["dilation"], w["groups"])

    return launch
