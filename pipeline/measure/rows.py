"""A candidate, its build and its outcome as one row."""

from datetime import UTC, datetime
from statistics import median

from datasets.measurement import Candidate, Measurement
from pipeline.measure.build import Cubin
from pipeline.measure.jobs import Hello, Outcome
from pipeline.measure.nvcc import BuildFailure
from templates.template import load_template


def row_of(
    candidate: Candidate, built: Cubin | BuildFailure | None, outcome: Outcome, hello: Hello, nvcc: str, l2: str
) -> Measurement:
    """The measurement of a candidate; `built` is None for the vendor's kernel and for what was never built."""
    template = load_template(candidate.workload.op)
    cubin = built if isinstance(built, Cubin) else None
    return Measurement(
        workload=candidate.workload,
        config=dict(candidate.config),
        status=outcome.status,
        message=outcome.message,
        time_us=median(outcome.samples_us) if outcome.status == "ok" else None,
        samples_us=outcome.samples_us,
        origin=candidate.origin,
        gpu=hello.device.name,
        nvcc=nvcc,
        driver=hello.driver,
        template_version=template.version,
        l2="warm" if l2 == "warm" else "cold",
        error=outcome.error,
        compile_s=built.compile_s if built is not None else None,
        cache_hit=cubin.cache_hit if cubin is not None else None,
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        resources=cubin.resources(template.entry) if cubin is not None else None,
        conditions=outcome.conditions,
    )
