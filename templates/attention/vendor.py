"""Attention by PyTorch's scaled_dot_product_attention: what the kernels are compared with."""

from collections.abc import Callable
from typing import Any

from templates.workload import Workload

ROUNDS = 3


def launcher(workload: Workload) -> Callable[[], None]:
    """A call that launches it once on PyTorch's current stream; its memory comes from PyTorch's pool.

    Grouped heads can be put to it in several ways, and which of its kernels takes them differs: the fastest one is taken.
    """
    import torch  # here, because it is large and the rest runs without it

    b, h, kv, dim = (workload[name] for name in ("B", "H", "KV", "D"))
    queries, keys, causal = workload["Q"], workload["K"], bool(workload["causal"])
    q = torch.rand(b, h, queries, dim, device="cuda") * 4 - 2
    k = torch.rand(b, kv, keys, dim, device="cuda") * 4 - 2
    v = torch.rand(b, kv, keys, dim, device="cuda") * 2 - 1
    ways = _ways(torch.nn.functional.scaled_dot_product_attention, q, k, v, causal)
    if len(ways) == 1:
        return ways[0]
    times = [_seconds(torch, way) for way in ways]
    return ways[times.index(min(times))]


def _ways(attend: Any, q: Any, k: Any, v: Any, causal: bool) -> list[Callable[[], None]]:
    """The calls that compute it."""
    b, h, queries, dim = q.shape
    kv = k.shape[1]
    if h == kv:
        return [lambda: attend(q, k, v, is_causal=causal)]
    group = h // kv
    grouped = q.view(b * kv, group, queries, dim)  # one head of keys per batch, repeated without a copy
    shared_k, shared_v = (x.view(b * kv, 1, -1, dim).expand(-1, group, -1, -1) for x in (k, v))
    ways = [
        lambda: attend(q, k, v, is_causal=causal, enable_gqa=True),
        lambda: attend(grouped, shared_k, shared_v, is_causal=causal),
    ]
    if not causal:
        rows = q.view(b, kv, group * queries, dim)  # heads that share keys are but more queries
        ways.append(lambda: attend(rows, k, v))
    return ways


def _seconds(torch: Any, way: Callable[[], None]) -> float:
    """The shortest of a few launches, after two that do not count."""
    best = float("inf")
    for i in range(ROUNDS + 2):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        way()
        end.record()
        end.synchronize()
        best = min(best, start.elapsed_time(end) / 1e3) if i >= 2 else best
    return best
