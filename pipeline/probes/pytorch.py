"""What PyTorch says of itself: `python -m pipeline.probes.pytorch` prints it as JSON, for importing it takes long."""

import json

from pipeline.checks.facts import PyTorch
from pipeline.checks.reading import version_of
from pipeline.probes.child import ask


def probe(limit_s: float) -> PyTorch:
    """What the child process found out; asking for CUDA there leaves no context here."""
    said, failure = ask("pipeline.probes.pytorch", limit_s=limit_s)
    if "version" not in said:
        return PyTorch(error=failure or "said nothing")
    cuda = version_of(said["cuda"]) if said["cuda"] else None
    # It was imported: what fails after that concerns CUDA alone.
    return PyTorch("", said["version"], cuda, tuple(said["archs"]), bool(said.get("available")))


def main() -> None:
    """Say the version first, then what may hang or crash."""
    import torch

    archs = torch.cuda.get_arch_list() if torch.version.cuda else []
    print(json.dumps({"version": str(torch.__version__), "cuda": torch.version.cuda, "archs": archs}), flush=True)
    print(json.dumps({"available": torch.cuda.is_available()}), flush=True)


if __name__ == "__main__":
    main()
