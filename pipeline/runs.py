"""A stage's run: its folder, log and records, and one clear line for every way it can end.

    @stage("pretrain")
    def main(settings: Settings, run: Run) -> None: ...

    if __name__ == "__main__":
        main()

Folder: `<outputs_dir>/<stage>/<time>/` with config.yaml, versions.json, log.txt, state.json, summary.json and whatever the stage
leaves there. A run that did not end (killed, Ctrl-C, full disk) is continued in its folder by the same command; `latest` points
at the last run that ended well, and never at half a run; `latest-<op>` at the last one on an operator: the next stage's input.
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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from omegaconf import OmegaConf

from pipeline.measure.build import find_compiler
from pipeline.progress import progress
from pipeline.run_folder import OWN_FILES, TRACEBACK, find_or_make, logged, point, read_json, terminate_as_interrupt, write_json
from pipeline.versions import ROOT, versions
from templates.errors import InputError

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
    """One run of a stage. `resumed`: the folder holds what an earlier, unfinished run with the same settings left."""

    stage: str
    folder: Path
    settings: "Settings"
    outputs: Path
    resumed: bool = False

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

    def latest(self, stage: str) -> Path | None:
        """Folder of the last complete run of another stage on the same operator."""
        return latest(stage, self.outputs, self.settings.op.name)

    def need(self, stage: str) -> Path:
        """The same; InputError when there is none."""
        found = self.latest(stage)
        if found is None:
            op = self.settings.op.name
            raise InputError(
                f"{self.stage} needs a complete {stage} run on {op} under {self.outputs}: run `make {stage} ARGS=op={op}` first"
            )
        self.log.info("uses the %s run %s", stage, found)
        self.stands_on(**{stage: found.name})
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


@dataclass(frozen=True)
class Stage:
    """A stage's function with the front door round it. Calling it reads sys.argv and exits; `run` is for tests."""

    name: str
    work: Callable[["Settings", Run], Any]

    def __call__(self) -> NoReturn:
        sys.exit(self.run(sys.argv[1:]))

    def run(self, argv: Sequence[str]) -> int:
        """Exit status: 0 done, 1 a fault of this program, 2 bad input or a full disk, 130 interrupted."""
        folder: Path | None = None
        try:
            from pipeline import config  # here, so that rooms may import this module before all their settings exist

            options, overrides = _parser(self).parse_known_args(list(argv))
            cfg = config.compose_config(overrides)
            if options.help or options.cfg:
                print(config.describe(cfg) if options.help else OmegaConf.to_yaml(cfg))
                return 0
            with opened(self.name, config.load(cfg), OmegaConf.to_yaml(cfg, resolve=True)) as run:
                folder = run.folder
                self.work(run.settings, run)
            return 0
        except InputError as error:
            return _say(self.name, str(error), 2)
        except KeyboardInterrupt:
            return _say(self.name, f"interrupted; the same command continues in {folder}" if folder else "interrupted", 130)
        except OSError as error:
            reason = not_ours(error)
            if reason is None:
                return _fault(self.name, error, folder)
            return _say(self.name, f"{reason} ({error.filename or folder or 'outputs'}); the same command continues", 2)
        except Exception as error:
            return _fault(self.name, error, folder)


def stage(name: str) -> Callable[[Callable[["Settings", Run], Any]], Stage]:
    """Make `main(settings, run)` a stage."""
    return lambda work: Stage(name, work)


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


def _fault(name: str, error: BaseException, folder: Path | None) -> int:
    if folder is None:
        raise error
    return _say(name, f"fault: {type(error).__name__}: {error}; the traceback is in {folder / 'log.txt'}", 1)


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
            point(outputs / name / f"latest-{settings.op.name}", folder)
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
