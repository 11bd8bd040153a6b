"""Hydra's files and overrides -> one frozen `Settings`; every mistake in them becomes one line."""

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, cast

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from cost_model.fitting import FitSettings
from cost_model.model import CostModelSettings
from datasets import split
from pipeline.evaluation import EvaluateSettings
from pipeline.finetuning import FinetuneSettings
from pipeline.measure.settings import FarmSettings
from pipeline.plan import CollectSettings
from pipeline.pretraining import PretrainSettings
from pipeline.reporting.settings import ReportSettings
from pipeline.spaces.study import TransferSettings
from pipeline.worlds import GpuSettings
from templates.errors import InputError
from templates.template import ALL

ROOT = Path(__file__).resolve().parents[1]
CONF = ROOT / "conf"
GROUPS = ("op", "gpu", "farm", "experiment")


@dataclass(frozen=True)
class OpSettings:
    """An operator and its workloads by split, as conf/op lists them; or, by the name "all", every operator."""

    name: str = ""
    train: list[str] = field(default_factory=list)
    validation: list[str] = field(default_factory=list)
    test: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        lists = {} if self.name == ALL else split.workloads(self.name)
        for name in split.SPLITS:
            if list(getattr(self, name)) != [str(workload) for workload in lists.get(name, [])]:
                raise InputError(f"op.{name} is fixed by conf/op/{self.name}.yaml: edit that file, or use collect.workloads")


@dataclass(frozen=True)
class Settings:
    """Everything a run can be told. Each part is described where it is used.

    data_dir: where measurements go; recorded_dir: the ones shipped; outputs_dir: the runs. Relative to the repository.
    """

    op: OpSettings
    seed: int = 0
    resume: bool = True
    outputs_dir: str = "outputs"
    data_dir: str = "outputs/data"
    recorded_dir: str = "datasets/recorded"
    gpu: GpuSettings = field(default_factory=GpuSettings)
    farm: FarmSettings = field(default_factory=FarmSettings)
    collect: CollectSettings = field(default_factory=CollectSettings)
    cost_model: CostModelSettings = field(default_factory=CostModelSettings)
    fit: FitSettings = field(default_factory=FitSettings)
    pretrain: PretrainSettings = field(default_factory=PretrainSettings)
    finetune: FinetuneSettings = field(default_factory=FinetuneSettings)
    evaluate: EvaluateSettings = field(default_factory=EvaluateSettings)
    report: ReportSettings = field(default_factory=ReportSettings)
    transfer: TransferSettings = field(default_factory=TransferSettings)

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise InputError(f"seed={self.seed}: use 0 or more")


def path(text: str) -> Path:
    """A path of the settings: relative ones start at the repository."""
    return ROOT / Path(text).expanduser()


@cache
def schema() -> DictConfig:
    """Types and defaults of all settings; copied by Hydra, not changed."""
    return _thaw(OmegaConf.structured(Settings))


def _thaw(node: DictConfig) -> DictConfig:
    """Frozen dataclasses make read-only nodes, which Hydra then cannot merge into: lift that, they are made frozen again."""
    node._set_flag("readonly", None)
    for key in node:
        child = node._get_node(key)
        if isinstance(child, DictConfig):
            _thaw(child)
    return node


def compose_config(overrides: Sequence[str], conf: Path = CONF) -> DictConfig:
    """The composed config; InputError for an unknown key or option, a bad value, or an override that cannot be read."""
    for override in overrides:
        if "=" not in override or override[0] in "+~-=":
            raise InputError(f"override {override!r}: write key=value, e.g. seed=1 (see --help)")
    ConfigStore.instance().store(name="schema", node=schema())
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(conf), version_base="1.3"):
            return compose("config", overrides=list(overrides))
    except InputError:
        raise
    except (HydraException, OmegaConfBaseException, TypeError, ValueError) as error:
        raise InputError(_explain(error, overrides)) from error


def load(cfg: DictConfig) -> Settings:
    """Frozen dataclasses from a composed config; InputError for a value that its room refuses."""
    try:
        return cast(Settings, OmegaConf.to_object(cfg))
    except InputError:
        raise
    except (OmegaConfBaseException, ValueError, TypeError) as error:
        raise InputError(_explain(error, ())) from error


def settings(*overrides: str) -> Settings:
    """Settings from overrides alone: `settings("gpu=replay", "seed=1")`."""
    return load(compose_config(overrides))


def keys(node: Any, prefix: str = "") -> Iterator[str]:
    """Every key of a config, dotted."""
    for key in node:
        full = f"{prefix}{key}"
        yield full
        child = node._get_node(key)
        if isinstance(child, DictConfig):
            yield from keys(child, full + ".")


def options(group: str, conf: Path = CONF) -> list[str]:
    """The choices of a config group."""
    return sorted(file.stem for file in (conf / group).glob("*.yaml"))


def describe(cfg: DictConfig) -> str:
    """What --help shows: the groups with their options, and every setting with its value."""
    groups = "\n".join(f"  {group}={'|'.join(options(group))}" for group in GROUPS)
    return f"Overrides are key=value.\n\nGroups:\n{groups}\n\nSettings:\n{OmegaConf.to_yaml(cfg)}"


def _explain(error: BaseException, overrides: Sequence[str]) -> str:
    """One line for one of Hydra's or OmegaConf's errors, which take several."""
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None:
        causes.append(cause)
        cause = cause.__cause__ or cause.__context__
    for found in causes:
        if isinstance(found, InputError):
            return str(found)
    if isinstance(error, OverrideParseException):
        return f"override {error.override!r} cannot be read: write key=value, lists as key=[a,b], text with spaces in quotes"
    text = " ".join(str(error).split())
    if missing := re.search(r"Could not find '([\w/.-]+)'", text):
        group, _, option = missing[1].rpartition("/")
        if group:
            return f"{group}={option} is unknown; use one of {', '.join(options(group))}"
    if unknown := re.search(r"Could not override '([^']+)'|Key '[^']+' (?:is )?not in .*?full_key: (\S+)", text):
        return _unknown(unknown[1] or unknown[2])
    detail = (str(causes[-1]).splitlines() or [type(causes[-1]).__name__])[0]
    where = re.search(r"full_key: (\S+)", " ".join(str(c) for c in causes))
    merging = re.search(r"merging override (\S+)", text)
    at = merging[1] if merging else where[1] if where else " ".join(overrides)
    return f"setting {at}: {detail} (see --help)"


def _unknown(key: str) -> str:
    known = list(keys(schema()))
    near = difflib.get_close_matches(key, known, n=3, cutoff=0.5)
    near = near or [k for k in known if k.rpartition(".")[2] == key.rpartition(".")[2]][:3]
    hint = f"; did you mean {' or '.join(near)}?" if near else f"; top-level ones: {', '.join(k for k in known if '.' not in k)}"
    return f"setting {key!r} is unknown{hint}"
