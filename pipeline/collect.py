"""Measure random and guided configs into Parquet: `make collect`, or `python -m pipeline.collect collect.random=500`.

Rows go to `data_dir`; what is measured already is skipped. With no GPU the recorded timings are checked and shown instead.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from datasets.device import Device
from datasets.measurement import STATUSES
from datasets.spool import Spool
from pipeline import config, worlds
from pipeline.archive import Archive
from pipeline.collection import Collector, Tally
from pipeline.measure.build import Aside
from pipeline.measure.measurer import Measurer
from pipeline.plan import chosen, rows
from pipeline.runs import Run, progress, stage
from pipeline.tables import table
from pipeline.view import View, Watched
from templates import space
from templates.errors import InputError
from templates.knob import config_text
from templates.template import Template, load_template
from templates.workload import Workload


@stage("collect", each=True)
def main(settings: config.Settings, run: Run) -> None:
    """Collect on the GPUs, or check the recording."""
    template = load_template(settings.op.name)
    workloads = chosen(template, settings.collect)
    recorded, data = config.path(settings.recorded_dir), config.path(settings.data_dir)
    if worlds.replays(settings.gpu, settings.farm):
        device = worlds.recorded_device(recorded, settings.gpu)
        frame = worlds.recorded_rows(recorded, device, template.op)
        run.log.info("no GPU is used: checks the %d recorded timings of %s instead of measuring", len(frame), device.name)
        check(frame, template, device)
        tally, stats, aside, source = None, {}, [], "replay"
    else:
        measurer = worlds.open_farm(settings.gpu, settings.farm, run.folder)
        try:
            device, source = measurer.device, measurer.source
            describe(device, data)
            tally = collect(measurer, template, workloads, settings, [recorded, data], data)
            stats, aside = statistics(measurer), set_aside(measurer)
        finally:
            measurer.close()
        frame = rows(template, device, [recorded, data])
    print(workloads_table(frame, template, workloads))
    lines = summary(frame, tally, stats)
    print("\n".join(f"{name.replace('_', ' ')}: {value}" for name, value in lines.items()))
    if aside:
        print(aside_line(aside))
    run.write_summary({"gpu": device.name, "source": source, **lines, "farm": stats, "set_aside": list(map(asdict, aside))})
    print(f"results: {run.folder}")


def collect(
    measurer: Measurer, template: Template, workloads: Sequence[Workload], settings: config.Settings,
    roots: Sequence[Path], data: Path,
) -> Tally:  # fmt: skip
    """Measure what the settings ask for and the roots lack, into `data`."""
    with Spool(data) as spool:  # before the rows are read: it adds those that a killed run left
        archive = Archive(template, measurer.device)
        archive.add_frame(rows(template, measurer.device, roots))
        view = View(measurer)
        collector = Collector(Watched(measurer, view), archive, settings.collect, settings.seed, spool)
        with progress(collector.wanted(workloads), "measuring", view=view) as bar:
            return collector.run(workloads, bar)


def describe(device: Device, data: Path) -> None:
    """Keep what the GPU is beside its measurements: learning reads it."""
    folder = data / device.key
    folder.mkdir(parents=True, exist_ok=True)
    device.save(folder / "device.json")


def check(frame: pd.DataFrame, template: Template, device: Device) -> None:
    """InputError for a recorded row that cannot be: an unknown status, or a time for an illegal config."""
    if unknown := set(frame["status"]) - set(STATUSES):
        raise InputError(f"recorded rows with the unknown status {sorted(unknown)[0]!r}: collect again")
    ours = frame[(frame["status"] == "ok") & (frame["origin"] != "vendor") & (frame["template_version"] == template.version)]
    if missing := {f"knob_{name}" for name in template.names} - set(frame.columns):
        raise InputError(f"recorded rows lack the column {sorted(missing)[0]}: restore the recording or collect again")
    for text, group in ours.groupby("workload"):
        columns = {name: group[f"knob_{name}"].to_numpy(dtype=np.int64) for name in template.names}
        illegal = ~space.legal(template, columns, Workload.parse(str(text)), device.limits)
        if illegal.any():
            example = group["config"][illegal].iloc[0]
            raise InputError(f"{text}: {illegal.sum()} recorded times belong to illegal configs, e.g. {example}")


def statistics(measurer: Measurer) -> dict[str, Any]:
    """What the farm says of itself, where it does."""
    stats = getattr(measurer, "stats", None)
    return dict(stats()) if callable(stats) else {}


def set_aside(measurer: Measurer) -> list[Aside]:
    """What the measurer has set aside for slow compiles, where it builds."""
    aside = getattr(measurer, "aside", None)
    return list(aside()) if callable(aside) else []


def aside_line(aside: Sequence[Aside]) -> str:
    """`set aside: 2 configs for compiles of 3.2 to 8.1 s, for up to 540 s more (listed in summary.json)`."""
    slowest, quickest, left = aside[0].compile_s, aside[-1].compile_s, max(entry.left_s for entry in aside)
    took = f"{slowest:.1f} s" if len(aside) == 1 else f"{quickest:.1f} to {slowest:.1f} s"
    configs = "1 config for a compile" if len(aside) == 1 else f"{len(aside)} configs for compiles"
    return f"set aside: {configs} of {took}, for up to {left:.0f} s more (listed in summary.json)"


def workloads_table(frame: pd.DataFrame, template: Template, workloads: Sequence[Workload]) -> str:
    """A line per workload: rows, the best time in microseconds and its rate, and others' times over it."""
    lines = [_line(frame[frame["workload"] == str(workload)], template, workload) for workload in workloads]
    times = ["best us", "naive/best", "expert/best", "vendor/best"]
    return table(["workload", "rows", "random", "guided", "ok", *times, "TFLOP/s"], lines)


def _line(group: pd.DataFrame, template: Template, workload: Workload) -> list[str]:
    ours = group[group["origin"] != "vendor"]
    ok = ours[ours["status"] == "ok"]
    counts = [len(ours), (ours["origin"] == "random").sum(), (ours["origin"] == "guided").sum(), len(ok)]
    start = [str(workload), *map(str, counts)]
    if not len(ok):
        return [*start, "-", "-", "-", "-", "-"]
    best = ok["time_us"].min()
    anchors = [space.canonical_config(template, c) for c in (template.naive, template.expert(workload))]
    times = [ok.loc[ok["config"] == config_text(c), "time_us"] for c in anchors]
    times.append(group.loc[(group["origin"] == "vendor") & (group["status"] == "ok"), "time_us"])
    over_best = [f"{t.median() / best:.2f}" if len(t) else "-" for t in times]
    return [*start, f"{best:.1f}", *over_best, f"{template.flops(workload) / best * 1e-6:.1f}"]


def summary(frame: pd.DataFrame, tally: Tally | None, stats: dict[str, Any]) -> dict[str, Any]:
    """What the run came to, as it is printed and written."""
    lines: dict[str, Any] = {"rows": len(frame), "statuses": frame["status"].value_counts().to_dict()}
    if tally is not None:
        lines |= {
            "measured": tally.measured,
            "measured_statuses": tally.statuses,
            "seconds": round(tally.seconds, 1),
            "configs_per_s": round(tally.measured / max(tally.seconds, 1e-9), 2),
            "cache_hit_rate": tally.hit_rate(),
            "cache_hit_rate_last_quarter": tally.hit_rate(0.25),
            "stopped_by_budget": tally.stopped_early,
        }
    return lines | {name: value for name, value in stats.items() if "busy" in name}


if __name__ == "__main__":
    main()
