"""A workload: an operator, a dtype and a shape."""

import re
from dataclasses import dataclass

from templates.errors import InputError

_TEXT = re.compile(r"(?P<op>\w+)/(?P<dtype>\w+)/(?P<dims>\w+=-?[0-9]{1,18}(,\w+=-?[0-9]{1,18})*)")
LARGEST = 2**31 - 1  # kernels take extents as int32


@dataclass(frozen=True, order=True)
class Workload:
    """An operator on one shape; its text form is `matmul/f32/M=4096,N=4096,K=4096`.

    `dims` keeps the operator's own order of (name, extent) pairs. Which extents make sense is for its template to say.
    """

    op: str
    dtype: str
    dims: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        for name, extent in self.dims:
            if not 0 <= extent <= LARGEST:
                raise InputError(f"workload {self}: {name}={extent} is not a size; use 1 to {LARGEST}")
        if len({name for name, _ in self.dims}) < len(self.dims):
            raise InputError(f"workload {self}: a dimension is given twice")

    def __getitem__(self, name: str) -> int:
        for dim, extent in self.dims:
            if dim == name:
                return extent
        raise InputError(f"workload {self}: no dimension {name!r}; it has {[d for d, _ in self.dims]}")

    def __str__(self) -> str:
        return f"{self.op}/{self.dtype}/" + ",".join(f"{name}={extent}" for name, extent in self.dims)

    @staticmethod
    def parse(text: str) -> "Workload":
        """Read the text form; InputError where it is not one."""
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise InputError(f"workload {text[:80]!r}: write it as op/dtype/NAME=EXTENT,..., e.g. matmul/f32/M=64,N=64,K=64")
        pairs = (part.split("=") for part in match["dims"].split(","))
        return Workload(match["op"], match["dtype"], tuple((name, int(extent)) for name, extent in pairs))
