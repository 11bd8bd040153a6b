"""Which config may be measured on a task, and the nearest one to a config that may not."""

from collections.abc import Iterable, Sequence

import numpy as np

from datasets.measurement import Measurement
from pipeline.strategy import Task
from templates import space
from templates.errors import InputError
from templates.knob import columns_of, config_text, configs_of


def admit(task: Task, config: dict[str, int]) -> dict[str, int]:
    """The config itself where it can be measured, otherwise the nearest one that can, by knob distance.

    In a closed world that is one of the pool, in an open one a legal config. InputError for an empty pool.
    """
    if task.pool is not None:
        return _nearest_of_pool(task, config)
    fixed = space.canonical_config(task.template, config)
    if not space.violations(task.template, fixed, task.workload, task.limits):
        return fixed
    return _nearest_legal(task, fixed)


def untried(configs: Iterable[dict[str, int]], history: Sequence[Measurement], n: int) -> list[dict[str, int]]:
    """The first n distinct configs that are not in the history, in order."""
    seen = {config_text(measurement.config) for measurement in history}
    fresh: list[dict[str, int]] = []
    for config in configs:
        if len(fresh) == n:
            break
        text = config_text(config)
        if text not in seen:
            seen.add(text)
            fresh.append(config)
    return fresh


def naive_config(task: Task) -> dict[str, int]:
    """The template's naive config."""
    return space.canonical_config(task.template, task.template.naive)


def expert_config(task: Task) -> dict[str, int]:
    """The config chosen by hand for this shape."""
    return space.canonical_config(task.template, task.template.expert(task.workload))


def safe_default(task: Task) -> dict[str, int]:
    """What a user gets when nothing measured works: the expert's config where it can be measured, else the naive one."""
    for config in (expert_config(task), naive_config(task)):
        if admits(task, config):
            return config
    return admit(task, naive_config(task))


def admits(task: Task, config: dict[str, int]) -> bool:
    """Whether exactly this config can be measured here."""
    if task.pool is not None:
        return config in task.pool
    return not space.violations(task.template, config, task.workload, task.limits)


def _nearest_of_pool(task: Task, config: dict[str, int]) -> dict[str, int]:
    if not task.pool:
        raise InputError(f"{task.workload}: no recorded configs to choose from; run collect for it first")
    if config in task.pool:
        return config
    return task.pool[int(space.distance(task.template, config, task.pool).argmin())]


def _nearest_legal(task: Task, config: dict[str, int]) -> dict[str, int]:
    """Among all changes of one knob, then of two; the safe default where neither is enough."""
    moves = [(knob.name, value) for knob in task.template.knobs for value in knob.values]
    singles = [{**config, name: value} for name, value in moves]
    doubles = ({**single, name: value} for i, single in enumerate(singles) for name, value in moves[i + 1 :])
    for tries in (singles, list(doubles)):
        near = _legal_of(task, tries)
        if near:
            return near[int(np.argmin(space.distance(task.template, config, near)))]
    return safe_default(task)


def _legal_of(task: Task, configs: list[dict[str, int]]) -> list[dict[str, int]]:
    fixed = space.canonical(task.template, columns_of([*configs], task.template.names))
    keep = space.legal(task.template, fixed, task.workload, task.limits)
    return configs_of({name: column[keep] for name, column in fixed.items()})
