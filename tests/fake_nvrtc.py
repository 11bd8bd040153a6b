"""NVRTC's process around a pretended library: what a source asks for in its first line happens to it.

`python -m tests.fake_nvrtc` in place of `pipeline.measure.nvrtc_server`. $FAKE_NVRTC_LOG: where each compile writes its
process id.
"""

import os
import signal
import sys
import time
from pathlib import Path

from pipeline.measure.nvrtc import Answer, Hello, Request
from pipeline.measure.nvrtc_server import main

LOG = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'twice' for 'sm_90'
ptxas info    : Function properties for twice
ptxas         .     8 bytes stack frame, 16 bytes spill stores, 24 bytes spill loads
ptxas info    : Used 12 registers, used 1 barriers, 2048 bytes smem
"""


class FakeLibrary:
    """Answers at once unless the source's first line says otherwise."""

    def hello(self) -> Hello:
        """The release of a toolkit; RuntimeError where the environment says that there is none."""
        if "FAKE_NVRTC_MISSING" in os.environ:
            raise RuntimeError('Failure finding "libnvrtc.so.13"\nand more lines')
        return Hello("13.0.88", "/pretended/libnvrtc.so.13")

    def compile(self, request: Request) -> Answer:
        """A cubin of the options and the source."""
        with open(os.environ["FAKE_NVRTC_LOG"], "a") as log:
            log.write(f"{os.getpid()}\n")
        what, *words = request.source.splitlines()[0].split()
        if what == "//signal":
            os.kill(os.getpid(), signal.Signals[words[0]])
        elif what == "//exit":
            os._exit(int(words[0]))
        elif what == "//sleep":
            time.sleep(float(words[0]))
        elif what == "//result":
            return Answer(words[0], "kernel.cu(2): warning: x\nkernel.cu(3): error: expected a ;\n", b"")
        elif what == "//garbage":
            return Answer("NVRTC_SUCCESS", LOG, b"garbage")
        return Answer("NVRTC_SUCCESS", LOG, b"\x7fELF" + " ".join(request.options).encode() + request.source.encode())


def pids() -> list[int]:
    """Process ids of the compiles so far, in order; for the test's side."""
    log = Path(os.environ["FAKE_NVRTC_LOG"])
    return [int(line) for line in log.read_text().splitlines()] if log.exists() else []


if __name__ == "__main__":
    main(sys.argv[1:], FakeLibrary)
