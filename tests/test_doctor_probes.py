"""The doctor's probes: they read pretended machines right, and outlive whatever they ask."""

import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipeline.checks.facts import Asked, Facts, GpuState, Process, Toolkit, Trial
from pipeline.measure.settings import BuildSettings
from pipeline.probes import compilers, everything, folders, host, nvml, packages, pytorch, recordings, trial
from pipeline.probes.child import Deadline, ask, later, run
from pipeline.probes.everything import Place, look

ROOT = Path(__file__).resolve().parents[1]
RECORDED = ROOT / "datasets/recorded"


def script(path: Path, body: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def module(folder: Path, name: str, body: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that child processes find before the installed one."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.py").write_text(body)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return name


# Asking another process


def test_a_hanging_process_and_its_children_are_killed_at_the_limit(tmp_path: Path) -> None:
    started = time.monotonic()
    answer = run(["bash", "-c", f"sleep 60 & echo $! > {tmp_path}/child; echo half; wait"], 1.0)
    assert answer.failure == "did not answer within 1 s"
    assert time.monotonic() - started < 10
    child = int((tmp_path / "child").read_text())
    deadline = time.monotonic() + 5
    while Path(f"/proc/{child}").exists() and _state(child) != "Z" and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not Path(f"/proc/{child}").exists() or _state(child) == "Z"


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "Z"


@pytest.mark.parametrize(
    ("command", "failure"),
    [
        (["bash", "-c", "kill -SEGV $$"], "died of SIGSEGV"),
        (["bash", "-c", "echo one >&2; echo two >&2; exit 3"], "two"),
        (["bash", "-c", "exit 3"], "exit status 3"),
        (["/no/such/program"], "/no/such/program cannot be run: No such file or directory"),
        (["true"], ""),
    ],
)
def test_however_a_process_ends_it_is_one_line(command: list[str], failure: str) -> None:
    assert run(command, 20.0).failure == failure


def test_what_was_said_before_the_death_is_kept_and_noise_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "import os\nprint('noise')\nprint('{\"a\": 1}')\nprint('[2]')\nprint('{\"b\": 2}', flush=True)\nos.abort()\n"
    said, failure = ask(module(tmp_path, "speaker", body, monkeypatch), limit_s=20.0)
    assert (said, failure) == ({"a": 1, "b": 2}, "died of SIGABRT")


def test_a_probe_that_hangs_does_not_hold_up_the_end_of_the_program() -> None:
    code = "import time\nfrom pipeline.probes.child import later\nlater(lambda: time.sleep(60))\n"
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=40, check=True)
    assert time.monotonic() - started < 30


def test_an_error_of_a_probe_reaches_whoever_asks() -> None:
    with pytest.raises(ZeroDivisionError):
        later(lambda: 1 / 0).result(5.0)


# Folders and file systems

MOUNTS = """\
overlay / overlay rw,lowerdir=/a 0 0
/dev/sdb1 /data ext4 rw 0 0
nas:/export /data/shared nfs4 rw 0 0
C:\\134 /mnt/c 9p rw,dirsync,aname=drvfs 0 0
me@far: /mnt/my\\040disk fuse.sshfs rw 0 0
tmpfs /data/ram tmpfs rw 0 0
/dev/sdc1 /data/ram xfs rw 0 0
broken
"""


@pytest.mark.parametrize(
    ("path", "kind", "mount"),
    [
        ("/home/me/.cache", "overlay", "/"),
        ("/data", "ext4", "/data"),
        ("/database", "overlay", "/"),
        ("/data/shared/x", "nfs4", "/data/shared"),
        ("/mnt/c/Users/me", "9p", "/mnt/c"),
        ("/mnt/my disk/x", "fuse.sshfs", "/mnt/my disk"),
        ("/data/ram/x", "xfs", "/data/ram"),
    ],
)
def test_the_file_system_is_the_one_mounted_closest(path: str, kind: str, mount: str) -> None:
    assert folders.mount_of(Path(path), MOUNTS) == (kind, mount)


def test_no_mounts_no_file_system() -> None:
    assert folders.mount_of(Path("/x"), "") == ("", "")


def test_a_folder_yet_to_be_made_is_judged_by_the_one_above_and_nothing_is_left_behind(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"nas:/ {tmp_path} nfs rw 0 0\n")
    found = folders.probe(tmp_path / "a/b/c", mounts)
    assert (found.kind, found.mount, found.error) == ("nfs", str(tmp_path), "")
    assert found.free_bytes and found.write_ms is not None
    assert [p.name for p in tmp_path.iterdir()] == ["mounts"]


def test_a_link_is_judged_by_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "near").symlink_to(tmp_path / "far")
    mounts = tmp_path / "mounts"
    mounts.write_text(f"x {tmp_path}/far cifs rw 0 0\n")
    assert folders.probe(tmp_path / "near/x", mounts).kind == "cifs"


def test_a_file_in_the_place_of_a_folder_and_a_dangling_link_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert folders.probe(tmp_path / "file/cache").error == "Not a directory"
    assert folders.probe(tmp_path / "link/cache").error == "No such file or directory"


# The machine


def tree(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "environment", "kind"),
    [
        ({}, {}, None),
        ({".dockerenv": ""}, {}, "Docker"),
        ({"run/.containerenv": ""}, {}, "Podman"),
        ({"proc/1/cgroup": "0::/kubepods/pod1\n"}, {}, "Kubernetes"),
        ({"proc/1/cgroup": "0::/init.scope\n"}, {}, None),
        ({"proc/1/cgroup": "4:cpu:/lxc/a\n"}, {}, "LXC"),
        ({".dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "Kubernetes"),
        ({}, {"APPTAINER_CONTAINER": "/x.sif"}, "Apptainer"),
        ({}, {"container": "systemd-nspawn"}, "systemd-nspawn"),
    ],
)
def test_containers_are_known_by_their_marks(
    tmp_path: Path, files: dict[str, str], environment: dict[str, str], kind: str | None
) -> None:
    assert host.container(tree(tmp_path, **files), environment) == kind


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2.0),
        ({"sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        ({"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "150000\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}, 1.5),
        ({"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({}, None),
    ],
)
def test_the_control_groups_quota_is_read_in_both_versions(tmp_path: Path, files: dict[str, str], cores: float | None) -> None:
    assert host.quota(tree(tmp_path, **files)) == cores


@pytest.mark.parametrize(
    ("status", "uid_map", "may"),
    [
        ("CapEff:\t000001ffffffffff\n", "0 0 4294967295\n", True),
        ("CapEff:\t00000000a80425fb\n", "0 0 4294967295\n", False),
        ("CapEff:\t000001ffffffffff\n", "0 1000 1\n", False),
        ("", "", False),
    ],
    ids=["root", "root of a container", "root of a user namespace", "nothing to read"],
)
def test_the_right_to_lock_clocks_is_the_real_administrators(tmp_path: Path, status: str, uid_map: str, may: bool) -> None:
    assert host.may_administer(tree(tmp_path, **{"proc/self/status": status, "proc/self/uid_map": uid_map})) is may


@pytest.mark.parametrize(
    ("vendor", "kind", "seen"), [("0x10de", "0x030200", True), ("0x10de", "0x040300", False), ("0x8086", "0x030000", False)]
)
def test_only_nvidias_display_controllers_count_as_gpus(tmp_path: Path, vendor: str, kind: str, seen: bool) -> None:
    device = "sys/bus/pci/devices/0000:65:00.0"
    assert host.gpu_on_bus(tree(tmp_path, **{f"{device}/vendor": f"{vendor}\n", f"{device}/class": f"{kind}\n"})) is seen


def test_an_empty_machine_is_read_without_complaint(tmp_path: Path) -> None:
    found = host.probe(tmp_path, {"TMPDIR": "/x", "HOME": "/y"})
    assert (found.kernel, found.container, found.shm_bytes, found.variables) == ("", None, None, {"TMPDIR": "/x"})


def test_packages_are_compared_by_normalised_names() -> None:
    found = packages.probe()
    assert {"hydra-core", "numpy", "pebble"} <= set(found.wanted) <= set(found.pinned)
    assert found.installed["numpy"]
    assert packages.normal("Typing_Extensions") == "typing-extensions"


# NVML

CARD = {
    "name": b"NVIDIA H200", "uuid": "GPU-1", "capability": [9, 0], "memory": SimpleNamespace(total=100, free=90),
    "processes": [SimpleNamespace(pid=os.getpid(), usedGpuMemory=7)], "mode": 3, "mig": [1, 1], "persistence": 0,
}  # fmt: skip


class Refused(Exception):
    """Its NVMLError."""


def pretended_nvml(**card: Any) -> Any:
    """An NVML with one GPU that answers and one that is lost. Whoever calls a setter gets an AttributeError."""
    values = {**CARD, **card}

    def tell(name: str) -> Any:
        def reading(*_: Any) -> Any:
            if values[name] is None:
                raise Refused("Not Supported")
            return values[name]

        return reading

    def handle(index: int) -> int:
        if index == 1:
            raise Refused("GPU is lost")
        return index

    return SimpleNamespace(
        NVMLError=Refused, NVML_CLOCK_SM=1, NVML_TEMPERATURE_GPU=0, nvmlInit=lambda: None,
        nvmlSystemGetDriverVersion=lambda: b"580.1", nvmlSystemGetCudaDriverVersion_v2=lambda: 13010,
        nvmlDeviceGetCount=lambda: 2, nvmlDeviceGetHandleByIndex=handle, nvmlDeviceGetName=tell("name"),
        nvmlDeviceGetUUID=tell("uuid"), nvmlDeviceGetCudaComputeCapability=tell("capability"),
        nvmlDeviceGetMemoryInfo=tell("memory"), nvmlDeviceGetComputeRunningProcesses=tell("processes"),
        nvmlDeviceGetComputeMode=tell("mode"), nvmlDeviceGetMigMode=tell("mig"),
        nvmlDeviceGetPersistenceMode=tell("persistence"), nvmlDeviceGetCurrentClocksEventReasons=lambda _: 0x40 | 0x1,
        nvmlDeviceGetClockInfo=lambda *_: 345, nvmlDeviceGetMaxClockInfo=lambda *_: 1980, nvmlDeviceGetTemperature=lambda *_: 31,
    )  # fmt: skip


def test_what_nvml_tells_is_read_and_travels_through_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pretended_nvml", pretended_nvml())
    found = nvml.survey("pretended_nvml")
    assert (found.error, found.driver, found.cuda) == ("", "580.1", (13, 1))
    here = Path(f"/proc/{os.getpid()}/comm").read_text().strip()
    assert found.gpus[0] == GpuState(
        0, "", "NVIDIA H200", "GPU-1", (9, 0), 100, 90, (Process(os.getpid(), here, 7),), 3, True, False, 345, 1980,
        ("idle", "hw_thermal"), 31,
    )  # fmt: skip
    assert found.gpus[1] == GpuState(1, lost="GPU is lost")
    assert nvml._nvml(json.loads(json.dumps(nvml.asdict(found)))) == found


def test_what_nvml_refuses_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pretended_nvml", pretended_nvml(**dict.fromkeys(CARD)))
    gpu = nvml.survey("pretended_nvml").gpus[0]
    assert (gpu.processes, gpu.mig, gpu.compute_mode, gpu.free_bytes, gpu.capability) == (None, None, None, None, None)


def test_looking_through_nvml_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NVML", str(tmp_path / "nvml.json"))
    found = nvml.probe(30.0, "tests.fake_nvml")
    assert (found.error, found.driver) == ("", "580.1")
    assert (found.gpus[0].sm_clock_mhz, found.gpus[0].mig) == (1980, None)
    state = json.loads((tmp_path / "nvml.json").read_text())
    assert (state["setters"], state["locked"]) == ([], None)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("raise ImportError('libnvidia-ml.so.1: cannot open')", "libnvidia-ml.so.1: cannot open"),
        ("def nvmlInit():\n    raise RuntimeError('Driver/library version mismatch')", "Driver/library version mismatch"),
        ("import os\nos.kill(os.getpid(), 11)", "died of SIGSEGV"),
        ("import time\ntime.sleep(60)", "did not answer within 4 s"),
    ],
)
def test_an_nvml_that_fails_crashes_or_hangs_is_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, error: str
) -> None:
    assert nvml.probe(4.0, module(tmp_path, "bad_nvml", body, monkeypatch)).error == error


# PyTorch

TORCH = """
from types import SimpleNamespace
__version__ = "2.13.0+cu130"
version = SimpleNamespace(cuda="13.0")
def available():
    {available}
cuda = SimpleNamespace(get_arch_list=lambda: ["sm_80", "sm_90"], is_available=available)
"""


@pytest.mark.parametrize(
    ("available", "answer"), [("return True", True), ("import os; os.abort()", False), ("raise OSError('no driver')", False)]
)
def test_pytorch_says_what_it_was_built_with_even_if_its_cuda_crashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, available: str, answer: bool
) -> None:
    module(tmp_path, "torch", TORCH.format(available=available), monkeypatch)
    found = pytorch.probe(30.0)
    assert (found.error, found.version, found.cuda) == ("", "2.13.0+cu130", (13, 0))
    assert (found.archs, found.available) == (("sm_80", "sm_90"), answer)


def test_a_pytorch_that_does_not_import_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module(tmp_path, "torch", "raise OSError('libc10.so: cannot open')", monkeypatch)
    assert pytorch.probe(30.0).error == "OSError: libc10.so: cannot open"


# Compilers

NVCC = """
case "$1" in
    --version) echo "Cuda compilation tools, release {release}, V{release}.1"; exit 0;;
    --list-gpu-code) echo sm_80; echo sm_90; exit 0;;
esac
while [ $# -gt 1 ]; do if [ "$1" = -o ]; then OUT=$2; fi; shift; done
{body}
"""
MAKES_IT = "printf '\\x7fELFcubin' > $OUT"


def nvcc(folder: Path, release: str = "13.0", body: str = MAKES_IT) -> str:
    return script(folder / "bin/nvcc", NVCC.format(release=release, body=body))


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Where compilers are looked for; empty until a test fills it."""
    found: list[Path] = []
    monkeypatch.setattr("pipeline.measure.nvcc._places", lambda: found)
    monkeypatch.delenv("CUDA_HOME", raising=False)
    return found


def test_several_toolkits_are_all_listed_and_the_first_is_used(tmp_path: Path, places: list[Path]) -> None:
    paths = [nvcc(tmp_path / "cuda-13", "13.0"), nvcc(tmp_path / "cuda-12", "12.4")]
    (tmp_path / "cuda").symlink_to(tmp_path / "cuda-13")
    places += [*map(Path, paths), tmp_path / "cuda/bin/nvcc", tmp_path / "absent"]
    found = compilers.probe(BuildSettings(), "sm_90", Deadline(30.0))
    assert found.installed == (Toolkit(paths[0], "13.0.1"), Toolkit(paths[1], "12.4.1"))
    assert found.used == Toolkit(paths[0], "13.0.1")
    assert found.codes == ("sm_80", "sm_90")
    assert [build.failure for build in found.builds] == ["", "", ""]
    assert found.builds[0].cubin == b"\x7fELFcubin"


def test_the_setting_wins_and_is_listed_first(tmp_path: Path, places: list[Path]) -> None:
    places.append(Path(nvcc(tmp_path / "cuda-13", "13.0")))
    chosen = nvcc(tmp_path / "cuda-12", "12.4")
    found = compilers.probe(BuildSettings(nvcc=chosen), "sm_90", Deadline(30.0))
    assert found.used == found.installed[0] == Toolkit(chosen, "12.4.1")
    assert len(found.installed) == 2


def test_a_toolkit_without_headers_says_which(tmp_path: Path, places: list[Path]) -> None:
    body = f"if grep -q cuda_fp16 $1; then echo 'fatal error: nv/target: No such file' >&2; exit 1; fi\n{MAKES_IT}"
    places.append(Path(nvcc(tmp_path, body=body)))
    builds = {build.needs: build.failure for build in compilers.probe(BuildSettings(), "sm_90", Deadline(30.0)).builds}
    assert builds.pop("half and bfloat16") == "fatal error: nv/target: No such file"
    assert set(builds.values()) == {""}


@pytest.mark.parametrize(("body", "why"), [("sleep 60", "does not answer"), ("echo hello", "does not answer")])
def test_an_nvcc_that_hangs_or_is_something_else_is_said_to_be_mute(
    tmp_path: Path, places: list[Path], body: str, why: str
) -> None:
    places.append(Path(script(tmp_path / "nvcc", body)))
    started = time.monotonic()
    found = compilers.probe(BuildSettings(), "sm_90", Deadline(3.0))
    assert time.monotonic() - started < 15
    assert found.used is None and why in found.why_none
    assert found.installed == (Toolkit(str(tmp_path / "nvcc"), None),)


def test_a_compile_that_hangs_ends_with_the_deadline(tmp_path: Path, places: list[Path]) -> None:
    places.append(Path(nvcc(tmp_path, body="sleep 60")))
    found = compilers.probe(BuildSettings(), "sm_90", Deadline(4.0))
    assert all("nvcc took over" in build.failure for build in found.builds)


def test_no_compiler_at_all_and_no_gcc_are_values(tmp_path: Path, places: list[Path]) -> None:
    none = compilers.probe(BuildSettings(), "sm_90", Deadline(10.0))
    assert none.used is None and none.why_none.startswith("no nvcc found")
    places.append(Path(nvcc(tmp_path)))
    without = compilers.probe(BuildSettings(host_compiler=str(tmp_path / "gcc-99")), "sm_90", Deadline(10.0))
    assert without.gcc is None and without.used is None and "gcc-99" in without.why_none


# The first kernel


class PretendedGpu:
    """Doubles what it was given, as the tiny kernel does; `fault` names the step at which it raises."""

    fault = ""

    def __init__(self, index: int) -> None:
        self._may("open")

    def _may(self, step: str) -> None:
        if step == self.fault:
            raise RuntimeError("CUDA_ERROR_UNKNOWN: it broke\nmore")

    def driver_version(self) -> str:
        return "13.0"

    def free_bytes(self) -> int:
        return 123

    def allocate(self, size: int) -> int:
        self._may("allocate")
        return 4096

    def write(self, address: int, array: np.ndarray) -> None:
        self.values = array

    def resident(self, code: bytes, entry: str, grid: int, block: int, *args: Any) -> None:
        self._may("launch")
        assert (code, entry, grid * block >= trial.COUNT) == (b"cubin", "doubled", True)

    def read(self, address: int, array: np.ndarray) -> np.ndarray:
        return self.values * (1 if self.fault == "wrong" else 2)

    def free(self, address: int) -> None:
        pass


def steps(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    said: dict[str, Any] = {}
    for line in capsys.readouterr().out.splitlines():
        said |= json.loads(line)
    return said


@pytest.mark.parametrize(
    ("fault", "failure"),
    [
        ("", ""),
        ("open", "RuntimeError: CUDA_ERROR_UNKNOWN: it broke"),
        ("launch", "RuntimeError: CUDA_ERROR_UNKNOWN: it broke"),
        ("wrong", "the kernel ran and its answer is wrong"),
    ],
)
def test_the_trial_tells_right_from_wrong_and_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fault: str, failure: str
) -> None:
    gpu = type("FaultyGpu", (PretendedGpu,), {"fault": fault})
    monkeypatch.setitem(sys.modules, "pipeline.measure.gpu", SimpleNamespace(Gpu=gpu))
    (tmp_path / "cubin").write_bytes(b"cubin")
    trial.main(str(tmp_path / "cubin"))
    found = trial.trial_of("0", steps(capsys), "")
    assert (found.failure, found.launched) == (failure, not failure)
    assert found.cuda == (None if fault == "open" else (13, 0))


def test_without_a_cubin_the_trial_allocates_only(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "pipeline.measure.gpu", SimpleNamespace(Gpu=PretendedGpu))
    trial.main()
    assert trial.trial_of("0", steps(capsys), "") == Trial("0", "", False, (13, 0), 123)


@pytest.mark.parametrize("failure", ["died of SIGSEGV", "did not answer within 15 s"])
def test_a_trial_that_dies_or_hangs_names_the_step(failure: str) -> None:
    assert trial.trial_of("3", {"step": "launch"}, failure) == Trial("3", f"{failure} (launch)")
    assert trial.trial_of("3", {"step": "launch", "launched": True}, failure).launched is False
    assert trial.trial_of("3", {}, "").failure == "ended without a word (start)"


def test_every_gpu_is_tried_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def answer(module: str, path: str, limit_s: float, env: dict[str, str]) -> tuple[dict[str, Any], str]:
        seen.append((env["CUDA_VISIBLE_DEVICES"], Path(path).read_bytes()))
        return {"step": "done", "launched": True}, ""

    monkeypatch.setattr(trial, "ask", answer)
    found = trial.probe(["0", "GPU-b"], b"cubin", Deadline(5.0))
    assert [t.visible for t in found if t.launched] == ["0", "GPU-b"]
    assert sorted(seen) == [("0", b"cubin"), ("GPU-b", b"cubin")]


# Recordings


def test_the_shipped_recording_can_be_replayed() -> None:
    found = {(r.gpu, r.op): r for r in recordings.probe(RECORDED)}
    matmul = found["nvidia-h200", "matmul"]
    assert (matmul.error, matmul.workloads) == ("", 27) and matmul.rows > 20_000


def test_damaged_files_and_folders_are_reasons(tmp_path: Path) -> None:
    folder = tmp_path / "nvidia-h200"
    tree(folder, **{"matmul/000.parquet": "rubbish", "frobnicate/000.parquet": "rubbish"})
    assert ["no description of a GPU" in r.error for r in recordings.probe(tmp_path)] == [True, True]
    (folder / "device.json").write_bytes((RECORDED / "nvidia-h200/device.json").read_bytes())
    assert [bool(r.error) for r in recordings.probe(tmp_path)] == [True, True]
    assert recordings.probe(tmp_path / "none") == ()


# All of it


def place(folder: Path, **folder_of: Path) -> Place:
    return Place(RECORDED, folder_of or {"outputs": folder / "outputs"}, BuildSettings(nvcc=nvcc(folder)), "no_such_nvml")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the slow ones, which have tests of their own."""
    monkeypatch.setattr(pytorch, "probe", lambda limit_s: everything.PyTorch("", "2.13.0"))
    monkeypatch.setattr(recordings, "probe", lambda root: ())
    monkeypatch.setattr("pipeline.worlds.gpu_present", lambda: False)


def test_everything_is_gathered_and_nobody_is_silent(tmp_path: Path, quick: None) -> None:
    facts, silent = look(Asked(), place(tmp_path))
    assert silent == []
    assert facts.compilers.used is not None and facts.compilers.arch == "sm_90"
    assert facts.folders["outputs"].error == "" and facts.packages.installed
    assert facts.nvml.error == "No module named 'no_such_nvml'"
    assert facts.trials == (), "no GPU: nothing to try"
    assert not (tmp_path / "outputs").exists()


def test_a_hanging_probe_costs_its_facts_and_no_more_than_the_deadline(
    tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "probe", lambda path: time.sleep(60))
    monkeypatch.setattr(packages, "probe", lambda: 1 / 0)
    started = time.monotonic()
    facts, silent = look(Asked(), place(tmp_path), limit_s=8.0)
    assert time.monotonic() - started < 20
    assert [(f.check, f.verdict) for f in silent] == [("packages", "warning"), ("outputs", "warning")]
    assert "ZeroDivisionError" in silent[0].reason and "no answer within 8 s" in silent[1].reason
    assert facts.folders == {} and facts.compilers.used is not None


def test_the_architecture_is_the_gpus_else_the_recorded_ones(tmp_path: Path) -> None:
    ada = everything.Nvml("", gpus=(GpuState(0, capability=(8, 9)),))
    assert everything.arch(Facts(host=everything.Host(gpu_present=True), nvml=ada), RECORDED) == "sm_89"
    assert everything.arch(Facts(host=everything.Host(gpu_present=False), nvml=ada), RECORDED) == "sm_90"
    assert everything.arch(Facts(), tmp_path) == "sm_90"
