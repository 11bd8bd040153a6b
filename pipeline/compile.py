"""Fill the compile cache, no GPU needed: `make compile`, or `python -m pipeline.compile farm.build.cache_dir=/some/folder`.

Builds what collect would measure on the GPU that `gpu.recorded` names - naive, expert and random configs that have no row
yet - and the farm's own kernels. The cache may then be copied to the machine with the GPU: with the same compiler release and
flags, collect finds everything there. Guided configs follow from timings, so they are built where those are taken.
"""

import logging
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import as_completed
from typing import Any

from pipeline import config, worlds
from pipeline.archive import Archive
from pipeline.measure.build import BuildPool, Cubin
from pipeline.measure.farm import tool_sources
from pipeline.measure.nvcc import BuildFailure
from pipeline.plan import Plan, chosen, interleaved, rows
from pipeline.runs import Run, progress, stage
from templates.knob import config_text
from templates.render import render
from templates.template import load_template
from templates.workload import Workload

log = logging.getLogger("compile")


@stage("compile", each=True)
def main(settings: config.Settings, run: Run) -> None:
    """Build everything that is known by now to be measured."""
    template = load_template(settings.op.name)
    recorded, data = config.path(settings.recorded_dir), config.path(settings.data_dir)
    device = worlds.recorded_device(recorded, settings.gpu)
    archive = Archive(template, device)
    archive.add_frame(rows(template, device, [recorded, data]))
    wanted = sources(Plan(archive, settings.collect, settings.seed), chosen(template, settings.collect))
    major, minor = device.compute_capability
    pool = BuildPool(settings.farm.build, f"sm_{major}{minor}")
    try:
        run.log.info("for %s, %s, with %s; cache %s", device.name, pool.arch, pool.compiler.version, pool.cache.root)
        lines = build_all(pool, wanted)
    finally:
        pool.close()
    print("\n".join(f"{name.replace('_', ' ')}: {value}" for name, value in lines.items()))
    run.write_summary({"gpu": device.name, "arch": pool.arch, "compiler": pool.compiler.version, **lines})


def sources(plan: Plan, workloads: Sequence[Workload]) -> dict[str, str]:
    """The sources to build, each once, with what it goes by: the farm's own kernels first, then in the order of measuring."""
    found = {text: path.name for path, text in tool_sources().values()}
    for candidate in [*plan.anchors(workloads), *interleaved(plan.random(workloads))]:
        if candidate.origin != "vendor":
            text = render(plan.template, candidate.config, candidate.workload.dtype)
            found.setdefault(text, f"{plan.template.op} {config_text(candidate.config)}")
    return found


def build_all(pool: BuildPool, sources: dict[str, str]) -> dict[str, Any]:
    """Build sources into the pool's cache; what came of it. A failure is logged and costs nothing but itself."""
    started, outcomes = time.monotonic(), Counter[str]()
    futures = {pool.submit(source, label): label for source, label in sources.items()}
    with progress(len(futures), "compiling") as bar:
        for future in as_completed(futures):
            outcomes[_outcome(future.result(), futures[future])] += 1
            bar.advance()
    seconds = time.monotonic() - started
    return {
        "sources": len(sources),
        "outcomes": dict(sorted(outcomes.items())),
        "seconds": round(seconds, 1),
        "builds_per_s": round(outcomes["compiled"] / max(seconds, 1e-9), 2),
    }


def _outcome(result: Cubin | BuildFailure, label: str) -> str:
    if isinstance(result, Cubin):
        return "cached" if result.cache_hit else "compiled"
    log.warning("%s: %s: %s", result.status, label, result.message)
    return result.status


if __name__ == "__main__":
    main()
