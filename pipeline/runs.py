"""A stage's run: its folder, log and records, and one clear line for every way it can end.

    @stage("pretrain")
    def main(settings: Settings, run: Run) -> None: ...

    if __name__ == "__main__":
        main()

Folder: `<outputs_dir>/<stage>/<time>/` with config.yaml, versions.json, log.txt, state.json, summary.json and whatever the stage
leaves there. A run that did not end (killed, Ctrl-C, full disk) is continued in its folder by the same command; `latest` points
at the last run that ended well, and never at half a run; `latest-<op>` at the last one on an operator: the next stage's input.

With op=all a stage that makes one thing of all operators (pretrain, finetune) runs once. One that works on each by itself
(`each`) has a run per operator, and then a last one, in which `overall` says what they come to together.
"""

import argparse
import contextlib
import errno
import logging
import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from omegaconf import OmegaConf

from pipeline.measure.build import find_compiler
from pipeline.progress import progress
from pipeline.run_folder import OWN_FILES, TRACEBACK, find_or_make, logged, point, read_json, terminate_as_interrupt, write_json
from pipeline.versions import ROOT, versions
from templates.errors import InputError, NothingToDo
from templates.template import ALL, operators

if TYPE_CHECKING:
    from pipeline.config import Settings

__all__ = ["InputError", "Run", "Stage", "latest", "progress", "stage"]

OUTPUTS = ROOT / "outputs"
NOT_OURS = {
    errno.ENOSPC: "the disk is full: free some space",
    errno.EDQUOT: "the disk quota is used up: free some space",
    errno.EROFS: "the file system is read-only: set outputs_dir and data_dir",
    errno.EPIPE: "nobody reads the output any more",
    errno.EACCES: "permission denied: set outputs_dir and data_dir",
}


@dataclass(frozen=True)
class Run:
    """One run of a stage. `resumed`: the folder holds what an earlier, unfinished run with the same settings left. `covered`:
    the operators that it is a run on, of those that the settings name.
    """

    stage: str
    folder: Path
    settings: "Settings"
    outputs: Path
    resumed: bool = False
    covered: list[str] = field(default_factory=list)

    @property
    def log(self) -> logging.Logger:
        """Goes to stderr and to the run's log.txt."""
        return logging.getLogger(self.stage)

    def rng(self, purpose: str = "") -> np.random.Generator:
        """Random numbers that depend on the seed, the stage and the purpose only."""
        return np.random.default_rng([self.settings.seed, *f"{self.stage}/{purpose}".encode()])

    def write_summary(self, summary: Mapping[str, Any]) -> Path:
        """Write summary.json, whole or not at all."""
        target = self.folder / "summary.json"
        write_json(target, summary)
        return target

    def operators(self) -> list[str]:
        """The operators that the settings name."""
        return operators() if self.settings.op.name == ALL else [self.settings.op.name]

    @contextlib.contextmanager
    def leaving_out(self, op: str) -> Iterator[None]:
        """Whatever gathers an operator's timings: where there are none, a run over all operators goes on without it."""
        try:
            yield
        except NothingToDo as error:
            if self.settings.op.name != ALL:
                raise
            self.log.info("leaves %s out: %s", op, error)
        else:
            self.covered.append(op)

    def latest(self, stage: str, op: str | None = None) -> Path | None:
        """Folder of the last complete run of another stage on the same operator, or on the one named."""
        return latest(stage, self.outputs, op or self.settings.op.name)

    def need(self, stage: str, op: str | None = None) -> Path:
        """The same; InputError when there is none."""
        op = op or self.settings.op.name
        found = self.latest(stage, op)
        if found is None:
            raise InputError(
                f"{self.stage} needs a complete {stage} run on {op} under {self.outputs}: run `make {stage} ARGS=op={op}` first"
            )
        self.log.info("uses the %s run %s", stage, found)
        several = self.settings.op.name != op
        self.stands_on(**{f"{stage} of {op}" if several else stage: found.name})
        return found

    def stands_on(self, **facts: str) -> None:
        """Note what the run builds on; InputError when the unfinished run in this folder was begun on something else."""
        target = self.folder / "stands_on.json"
        known = read_json(target) if target.exists() else {}
        for name, value in facts.items():
            if known.get(name, value) != value:
                raise InputError(
                    f"the unfinished run in {self.folder} was begun with {name} {known[name]}, now it is {value}: "
                    "give resume=false to begin anew"
                )
        write_json(target, {**known, **facts})


def latest(stage: str, outputs: Path = OUTPUTS, op: str | None = None) -> Path | None:
    """Folder of a stage's last complete run, on an operator if one is named, or None."""
    link = outputs / stage / (f"latest-{op}" if op else "latest")
    return link.resolve() if link.exists() else None


Work = Callable[["Settings", Run], Any]
Overall = Callable[["Settings", Run, Mapping[str, Path]], Any]
"""Says in a run of its own what the runs on single operators, by operator, come to."""


def list_runs(settings: "Settings", run: Run, folders: Mapping[str, Path]) -> None:
    """What a run over all operators leaves where there is no more to say: which runs it consists of."""
    run.write_summary({"runs": {op: folder.name for op, folder in folders.items()}})


@dataclass(frozen=True)
class Stage:
    """A stage's function with the front door round it. Calling it reads sys.argv and exits; `run` is for tests."""

    name: str
    work: Work
    each: bool = False
    overall: Overall = list_runs

    def __call__(self) -> NoReturn:
        sys.exit(self.run(sys.argv[1:]))

    def run(self, argv: Sequence[str]) -> int:
        """Exit status: 0 done, 1 a fault of this program, 2 bad input or a full disk, 130 interrupted."""
        begun: list[Path] = []
        try:
            from pipeline import config  # here, so that rooms may import this module before all their settings exist

            options, overrides = _parser(self).parse_known_args(list(argv))
            cfg = config.compose_config(overrides)
            if options.help or options.cfg:
                print(config.describe(cfg) if options.help else OmegaConf.to_yaml(cfg))
                return 0
            with opened(self.name, config.load(cfg), OmegaConf.to_yaml(cfg, resolve=True)) as run:
                begun.append(run.folder)
                if self.each and run.settings.op.name == ALL:
                    self.overall(run.settings, run, self._each(run, overrides))
                else:
                    self.work(run.settings, run)
            return 0
        except InputError as error:
            return _say(self.name, str(error), 2)
        except KeyboardInterrupt:
            return _say(self.name, f"interrupted; the same command continues in {begun[0]}" if begun else "interrupted", 130)
        except OSError as error:
            reason = not_ours(error)
            if reason is None:
                return _fault(self.name, error, begun)
            where = error.filename or (begun[0] if begun else "outputs")
            return _say(self.name, f"{reason} ({where}); the same command continues", 2)
        except Exception as error:
            return _fault(self.name, error, begun)

    def _each(self, run: Run, overrides: Sequence[str]) -> dict[str, Path]:
        """A run on every operator that has timings, inside `run`; an interrupted one goes on with those that are left."""
        from pipeline import config

        path = run.folder / "runs.json"
        done = read_json(path) if path.exists() else {}
        for op in operators():
            if op in done:
                continue
            cfg = config.compose_config([*(text for text in overrides if not text.startswith("op=")), f"op={op}"])
            try:
                with opened(self.name, config.load(cfg), OmegaConf.to_yaml(cfg, resolve=True)) as part:
                    self.work(part.settings, part)
            except NothingToDo as error:
                run.log.info("leaves %s out: %s", op, error)
                continue
            write_json(path, done := {**done, op: part.folder.name})
        if not done:
            raise InputError("there are no timings of any operator: run `make collect` on a GPU")
        return {op: run.folder.parent / name for op, name in done.items()}


def stage(name: str, each: bool = False, overall: Overall = list_runs) -> Callable[[Work], Stage]:
    """Make `main(settings, run)` a stage."""
    return lambda work: Stage(name, work, each, overall)


def not_ours(error: OSError) -> str | None:
    """What to do about an error of the file system; None when it is something else."""
    if error.errno in NOT_OURS:
        return NOT_OURS[error.errno]
    return NOT_OURS[errno.ENOSPC] if "no space left" in str(error).lower() else None


def _parser(stage: Stage) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--help", "-h", action="store_true")
    parser.add_argument("--cfg", action="store_true")
    return parser


def _say(name: str, line: str, status: int) -> int:
    print(f"{name}: {' '.join(line.split())}", file=sys.stderr, flush=True)
    return status


def _fault(name: str, error: BaseException, begun: Sequence[Path]) -> int:
    if not begun:
        raise error
    return _say(name, f"fault: {type(error).__name__}: {error}; the traceback is in {begun[0] / 'log.txt'}", 1)


@contextlib.contextmanager
def opened(name: str, settings: "Settings", config: str) -> Iterator[Run]:
    """The folder of a new or an unfinished run, locked, logged to, and marked complete if the block ends well."""
    from pipeline.config import path

    outputs = path(settings.outputs_dir)
    folder, lock, resumed = find_or_make(outputs / name, config if settings.resume else None)
    run = Run(name, folder, settings, outputs, resumed)
    with lock, logged(folder), terminate_as_interrupt():
        try:
            (folder / "config.yaml").write_text(config)
            write_json(folder / "versions.json", {**versions(_compiler(settings)), "seed": settings.seed})
            write_json(folder / "state.json", {"state": "running", "pid": os.getpid()})
            run.log.info("%s %s", "continues in" if resumed else "runs in", folder)
            random.seed(settings.seed)
            np.random.seed(settings.seed % 2**32)
            yield run
            if not (folder / "summary.json").exists():
                run.write_summary({})
            write_json(folder / "state.json", {"state": "complete"})
            for op in {settings.op.name, *run.covered}:
                point(outputs / name / f"latest-{op}", folder)
            point(outputs / name / "latest", folder)
        except BaseException as error:
            _note_end(run, error)
            raise


def _note_end(run: Run, error: BaseException) -> None:
    """Log how a run failed; a folder in which nothing was done yet goes away."""
    if isinstance(error, InputError) and not run.resumed and {f.name for f in run.folder.iterdir()} <= OWN_FILES:
        shutil.rmtree(run.folder, ignore_errors=True)
        return
    with contextlib.suppress(OSError):  # on a full disk not even this can be written, and the line on stderr has to do
        if isinstance(error, Exception):
            logging.getLogger(TRACEBACK).error("%s", run.stage, exc_info=error)
        write_json(run.folder / "state.json", {"state": "unfinished", "error": f"{type(error).__name__}: {error}"})


def _compiler(settings: "Settings") -> str | None:
    """The compiler's version; None where there is none, which only those who build need to mind."""
    try:
        compiler = find_compiler(settings.farm.build)
    except InputError:
        return None
    compiler.close()
    return compiler.version
