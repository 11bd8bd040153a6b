"""Ray, started here on loopback or joined where it runs: GPUs to hold and CPUs to compile on. The only importer of ray."""

import logging
import os
import secrets
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pipeline.measure.settings import FarmSettings
from templates.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
NOT_SHIPPED = (".git", ".venv", "outputs", "docs", "datasets/recorded")
"""What nodes do not need of the repository, a copy of which they get."""

REACH_S = 5.0
"""How long a cluster's head may take to accept a connection."""

STORE_BYTES = 80 * 2**20
"""Ray's object store: cubins of some 50 KB pass through it."""

FOLDER, LONGEST_PLACE = "ray-cuda-", 14
"""Ray's files are in `ray-cuda-<our pid>-<8 characters>`, in a folder whose own name leaves room for it."""

QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_DISABLE_IMPORT_WARNING": "1"}

log = logging.getLogger(__name__)


class LostError(RuntimeError):
    """What was asked for did not come back: a process or a node died, or no answer came in time. One line."""


class Cluster:
    """A connection to Ray. InputError, one line, where ray is not installed, does not start, or shows no GPU.

    Ray started here listens on loopback only, asks everybody for a fresh token, keeps its files in a folder that `close`
    removes, has no dashboard and reports no usage. A process that is connected already stays with that connection.
    """

    def __init__(self, settings: FarmSettings, visible: str | None = None) -> None:
        self.settings = settings
        self.folder: str | None = None
        self._environment: dict[str, str | None] = {}
        self._exported: dict[Any, Any] = {}  # what Ray has shipped to the cluster already
        self.starts_here = not settings.ray.address
        self._set({**QUIET, **(_private() if self.starts_here else {}), **({"CUDA_VISIBLE_DEVICES": visible} if visible else {})})
        try:
            if not self.starts_here:
                _reach(settings.ray.address)
            self.ray = _import_ray()
            self.joined = bool(self.ray.is_initialized())
            if not self.joined:
                self._connect()
            found = self.ray.cluster_resources()
            self.cpus = max(1, int(found.get("CPU", 1)))
            self.gpus = self._count(int(found.get("GPU", 0)))
        except BaseException:
            self.close()
            raise

    def actor(self, kind: type, *arguments: object) -> Any:
        """An object of a class in a process of its own that holds one GPU, as soon as one is free."""
        return self._shipped(kind, num_gpus=1, num_cpus=0, max_restarts=0).remote(*arguments)

    def task(self, function: Callable[..., Any], *arguments: object, node: str | None = None) -> Any:
        """A reference to what the function returns on some CPU of the cluster, or on that of one node."""
        remote = self._shipped(function, num_cpus=1, max_retries=2)
        if node is not None:
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

            remote = remote.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))
        return remote.remote(*arguments)

    def get(self, reference: Any, limit_s: float | None = None) -> Any:
        """What a reference stands for. The function's own exceptions are raised as they were; LostError as it says."""
        errors = self.ray.exceptions
        try:
            return self.ray.get(reference, timeout=limit_s)
        except errors.RayTaskError as error:
            raise error.cause from None
        except errors.GetTimeoutError:
            raise LostError(f"no answer within {limit_s:g} s") from None
        except errors.RayError as error:
            raise LostError(_line(error)) from None

    def nodes(self) -> dict[str, str]:
        """Names of the nodes that have CPUs to compile on, by id."""
        alive = [node for node in self.ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
        return {node["NodeID"]: node["NodeManagerHostname"] for node in alive}

    def here(self) -> str:
        """The id of the node this process is on."""
        return str(self.ray.get_runtime_context().get_node_id())

    def kill(self, actor: Any) -> None:
        """End an actor's process, at once."""
        self.ray.kill(actor, no_restart=True)

    def cancel(self, reference: Any) -> None:
        """Interrupt a task; what it started is ended with it."""
        self.ray.cancel(reference)

    def close(self) -> None:
        """Leave; end what was started here. Safe to call twice."""
        ray = getattr(self, "ray", None)
        if ray is not None and not getattr(self, "joined", True):
            ray.shutdown()
            self.joined = True
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder = None
        self._set(self._environment)
        self._environment = {}

    def _shipped(self, what: Any, **options: Any) -> Any:
        if what not in self._exported:
            self._exported[what] = self.ray.remote(**options)(what)
        return self._exported[what]

    def _connect(self) -> None:
        address = self.settings.ray.address
        quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
        handler = signal.getsignal(signal.SIGTERM)
        try:
            if self.starts_here:
                self.folder = scratch_folder()
                self.ray.init(
                    address="local", include_dashboard=False, num_cpus=self.settings.build.jobs, _temp_dir=self.folder,
                    num_gpus=self.settings.ray.gpus or None, object_store_memory=STORE_BYTES, **quiet,
                )  # fmt: skip
            else:
                self.ray.init(address=address, runtime_env={"working_dir": str(ROOT), "excludes": list(NOT_SHIPPED)}, **quiet)
        except (RuntimeError, ValueError, OSError, self.ray.exceptions.RayError) as error:
            if self.starts_here:
                raise InputError(f"Ray does not start ({_line(error)})") from error
            needed = "this machine has to be a node of it, with the same Ray, Python, RAY_AUTH_MODE and token"
            raise InputError(f"farm.ray.address={address}: cannot join ({_line(error)}); {needed}") from error
        else:
            self._check_loopback()
        finally:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, handler)  # ray.init puts its own in place of the stage's

    def _check_loopback(self) -> None:
        """InputError unless a Ray of our own keeps to loopback, as it does when nobody imported ray before us."""
        address = self.ray.util.get_node_ip_address()
        if self.starts_here and not address.startswith("127."):
            self.ray.shutdown()
            raise InputError(f"Ray would listen on {address}, not only on this machine: import nothing of ray before the farm")

    def _count(self, there: int) -> int:
        """How many GPUs to use."""
        wanted = self.settings.ray.gpus
        where = "this machine" if self.starts_here else f"the Ray cluster at {self.settings.ray.address}"
        if not there:
            raise InputError(f"farm=ray: {where} has no GPU; use gpu=replay to work from recorded timings")
        if wanted > there:
            raise InputError(f"farm.ray.gpus={wanted}: {where} has {there}")
        return wanted or there

    def _set(self, values: Mapping[str, str | None]) -> None:
        """Change the environment, which Ray's processes inherit, and keep what was there."""
        for name, value in values.items():
            self._environment.setdefault(name, os.environ.get(name))
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        cure = "make setup installs it, as pip install -c constraints.txt ray does"
        raise InputError(f"farm=ray needs Ray ({error}): {cure}") from None
    return ray


def _reach(address: str) -> None:
    """InputError unless somebody listens at `host:port`; Ray itself would wait for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        raise InputError(f"farm.ray.address={address}: write host:port, as `ray start --head` shows it")
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH_S).close()
    except OSError as error:
        raise InputError(f"farm.ray.address={address}: no Ray answers there ({error.strerror or error})") from None


def _private() -> dict[str, str | None]:
    """What keeps a Ray of our own to this machine and to us.

    The name notwithstanding, RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0 makes Ray use the loopback address on Linux too; without it,
    its servers listen on all interfaces. Ray reads it when it is imported.
    """
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    return {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_ADDRESS": None, "PYTHONPATH": path, **token}


def scratch_folder() -> str:
    """A folder for Ray's files, with a name short enough for the sockets in it: a path may have 107 characters, Ray adds 66.

    Those of runs that were killed go away with the next one that starts.
    """
    place = Path(tempfile.gettempdir())
    place = place if len(str(place)) <= LONGEST_PLACE else Path("/tmp")
    for left in place.glob(f"{FOLDER}*-*"):
        owner = left.name.removeprefix(FOLDER).partition("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            shutil.rmtree(left, ignore_errors=True)
    return tempfile.mkdtemp(prefix=f"{FOLDER}{os.getpid()}-", dir=place)


def _line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]
