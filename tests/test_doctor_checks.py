"""The doctor's checks: each environment it knows, as pretended facts, gets its verdict, reason and cure."""

from dataclasses import replace
from typing import Any

import pytest

from pipeline.checks.catalogue import CHECKS, conclusion, examine
from pipeline.checks.facts import (
    Asked,
    Build,
    Compilers,
    Facts,
    Folder,
    GpuState,
    Host,
    Nvml,
    Packages,
    Process,
    PyTorch,
    Recording,
    Toolkit,
    Trial,
)
from pipeline.checks.finding import Finding
from pipeline.checks.reading import version_of

GIB = 2**30
H200 = GpuState(
    0, name="NVIDIA H200", uuid="GPU-aa", capability=(9, 0), total_bytes=140 * GIB, free_bytes=139 * GIB, processes=(),
    compute_mode=0, mig=False, persistence=True, sm_clock_mhz=345, max_sm_clock_mhz=1980, reasons=("idle",), temperature_c=31,
)  # fmt: skip
LOCAL = Folder("/home/me/x", "ext4", "/", free_bytes=500 * GIB, write_ms=1.0)
NVCC = Toolkit("/usr/local/cuda/bin/nvcc", "13.0.88")
CODES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
HEALTHY = Facts(
    packages=Packages((3, 11, 7), {"torch": "2.13.0", "numpy": "2.4.6"}, {"torch": "2.13.0", "numpy": "2.4.6"}, ("numpy",)),
    host=Host("6.8.0-generic", gpu_present=True, gpu_on_bus=True, kernel_driver="580.1", cores=16, shm_bytes=64 * GIB),
    compilers=Compilers(
        NVCC, installed=(NVCC,), gcc="/usr/bin/gcc", gcc_version="13.2.0", codes=CODES, arch="sm_90",
        builds=(Build("plain kernels", cubin=b"\x7fELF"), Build("half and bfloat16", cubin=b"\x7fELF")),
    ),
    nvml=Nvml("", "580.1", (13, 0), (H200,)),
    trials=(Trial("0", launched=True, cuda=(13, 0)),),
    pytorch=PyTorch("", "2.13.0+cu130", (13, 0), ("sm_75", "sm_80", "sm_90", "sm_100", "compute_120"), True),
    folders={"cache": LOCAL, "scratch": replace(LOCAL, path="/tmp"), "outputs": LOCAL, "data": LOCAL},
    recordings=(Recording("nvidia-h200", "matmul", 25047, 27),),
)  # fmt: skip
BARE = replace(HEALTHY, host=replace(HEALTHY.host, gpu_present=False, gpu_on_bus=False, kernel_driver=None),
               nvml=Nvml("NVML Shared Library Not Found"), trials=())  # fmt: skip


def part(facts: Facts, name: str, **changes: Any) -> Facts:
    return replace(facts, **{name: replace(getattr(facts, name), **changes)})


def with_gpu(**changes: Any) -> Facts:
    return part(HEALTHY, "nvml", gpus=(replace(H200, **changes),))


def on(facts: Facts, role: str, **changes: Any) -> Facts:
    return replace(facts, folders={**facts.folders, role: replace(facts.folders[role], **changes)})


def variables(facts: Facts, **values: str) -> Facts:
    return part(facts, "host", variables=values)


def driver_550(*installed: Toolkit, runs: bool = False) -> Facts:
    facts = part(part(HEALTHY, "nvml", driver="550.54", cuda=(12, 4)), "compilers", installed=installed)
    return replace(facts, trials=(Trial("0", "" if runs else "CUDA_ERROR_INVALID_IMAGE (launch)", launched=runs),))


def finding(facts: Facts, name: str) -> Finding:
    found = {finding.check: finding for finding in examine(facts)}
    return found[name]


WSL = part(HEALTHY, "host", kernel="5.15.153.1-microsoft-standard-WSL2")
DOCKER = part(BARE, "host", container="Docker", kernel_driver="580.1")
DEDICATED = part(HEALTHY, "asked", gpu="dedicated")
TWO = part(HEALTHY, "nvml", gpus=(H200, replace(H200, index=1, uuid="GPU-bb", name="NVIDIA L4", capability=(8, 9))))
CUDA_12 = Toolkit("/usr/local/cuda-12.4/bin/nvcc", "12.4.131")
OLD_GCC = Build("plain kernels", "#error -- unsupported GNU version! gcc versions later than 15 are not supported!")
NO_CCCL = (Build("plain kernels", cubin=b"x"), Build("half and bfloat16", "fatal error: nv/target: No such file or directory"))

CASES: list[tuple[str, Facts, str, str, str, str]] = [
    # what, facts, check, verdict, part of the reason, part of the cure
    ("python 3.13", part(HEALTHY, "packages", python=(3, 13, 1)), "Python", "warning", "3.13.1", "PYTHON=python3.11"),
    ("a package missing", part(HEALTHY, "packages", wanted=("numpy", "pebble")), "packages", "problem", "pebble", "setup"),
    ("another version", part(HEALTHY, "packages", installed={"torch": "2.11.0+cu130", "numpy": "2.4.6"}), "packages", "warning",
     "torch 2.11.0+cu130 (tested: 2.13.0)", "setup"),
    ("a CPU build of the pinned version", part(HEALTHY, "packages", installed={"torch": "2.13.0+cpu", "numpy": "2.4.6"}),
     "packages", "ok", "as in constraints.txt", ""),
    ("torch does not import", part(HEALTHY, "pytorch", error="OSError: libc10.so"), "PyTorch", "problem", "libc10", "setup"),
    ("torch imports slowly", part(HEALTHY, "pytorch", error="did not answer within 20 s"), "PyTorch", "warning", "20 s", "again"),
    ("torch without CUDA", part(HEALTHY, "pytorch", cuda=None, version="2.13.0+cpu"), "PyTorch's CUDA", "warning", "+cpu",
     "TORCH_INDEX"),
    ("torch newer than the driver", part(part(HEALTHY, "nvml", cuda=(12, 4)), "pytorch", available=False), "PyTorch's CUDA",
     "warning", "built for CUDA 13.0, the driver only knows 12.4", "update the driver"),
    ("torch finds no GPU", part(HEALTHY, "pytorch", available=False), "PyTorch's CUDA", "warning", "finds no usable GPU", "init"),
    ("torch lacks this architecture", part(HEALTHY, "pytorch", archs=("sm_80", "sm_86")), "PyTorch's architectures", "warning",
     "compute capability 9.0, only sm_80 sm_86", "release"),
    ("torch's PTX serves newer GPUs", part(HEALTHY, "pytorch", archs=("sm_80", "compute_80")), "PyTorch's architectures", "ok",
     "9.0", ""),
    ("WSL2", WSL, "WSL", "warning", "cannot be locked", "/mnt"),
    ("WSL1", part(BARE, "host", kernel="4.4.0-19041-Microsoft"), "WSL", "warning", "WSL1", "wsl --set-version"),
    ("WSL2 without its GPU", part(BARE, "host", kernel="5.15-microsoft-standard-WSL2"), "GPU", "warning", "/dev/dxg", "Windows"),
    ("a container with its GPU", part(HEALTHY, "host", container="Docker"), "container", "ok", "Docker, with a GPU", ""),
    ("a container without the host's GPU", DOCKER, "GPU", "warning", "this container does not get it", "--gpus all"),
    ("a container on a GPU host, by PCI", part(BARE, "host", container="Podman", gpu_on_bus=True), "GPU", "warning", "the host",
     "nvidia.com/gpu"),
    ("a container told to see none", variables(DOCKER, NVIDIA_VISIBLE_DEVICES="void"), "container", "ok",
     "without a GPU, NVIDIA_VISIBLE_DEVICES=void", ""),
    ("a GPU without a driver", part(BARE, "host", gpu_on_bus=True), "GPU", "problem", "no NVIDIA driver", "install"),
    ("a driver without a device file", part(BARE, "host", kernel_driver="580.1"), "GPU", "problem", "/dev/nvidia0", "modprobe"),
    ("no GPU at all", BARE, "GPU", "skipped", "replay the recorded timings", ""),
    ("no GPU and one asked for", part(BARE, "asked", gpu="shared"), "GPU", "problem", "gpu=shared asks for one", "gpu=replay"),
    ("replay asked for", part(HEALTHY, "asked", gpu="replay"), "GPU", "skipped", "gpu=replay", ""),
    ("GPUs hidden", variables(BARE, CUDA_VISIBLE_DEVICES=""), "GPU", "skipped", "CUDA_VISIBLE_DEVICES", ""),
    ("a GPU that is not there", part(HEALTHY, "asked", gpus=(3,)), "GPU", "problem", "GPU 3 is not there; 1 visible",
     "farm.gpus"),
    ("too many compilers", part(HEALTHY, "host", cores=2), "CPU cores", "warning", "over 3 s", "farm.build.jobs=2"),
    ("a container's CPU quota", part(HEALTHY, "host", quota_cores=1.5), "CPU cores", "warning", "of 16", "farm.build.jobs=1"),
    ("cores to spare", HEALTHY, "CPU cores", "ok", "16", "farm.build.jobs=16"),
    ("few cores, nothing to compile", part(BARE, "host", cores=2), "CPU cores", "ok", "nothing is compiled", ""),
    ("little shared memory, Ray", part(part(HEALTHY, "host", shm_bytes=64 << 20), "packages", installed={"ray": "2.60.0"}),
     "/dev/shm", "warning", "64 MiB", "--shm-size"),
    ("little shared memory, no Ray", part(HEALTHY, "host", shm_bytes=64 << 20), "/dev/shm", "ok", "only Ray", ""),
    ("no nvcc", part(HEALTHY, "compilers", used=None, why_none="no nvcc found: install"), "nvcc", "problem", "no nvcc found",
     "farm.build.nvcc"),
    ("no nvcc and no GPU", part(BARE, "compilers", used=None, why_none="no nvcc found: install"), "nvcc", "warning",
     "replay needs none", "farm.build.nvcc"),
    ("nvcc without gcc", part(HEALTHY, "compilers", used=None, gcc=None, why_none="no gcc found"), "nvcc", "problem",
     "has no gcc to work with", "see gcc"),
    ("a silent nvcc", part(HEALTHY, "compilers", installed=(Toolkit("/opt/nvcc"), NVCC)), "toolkits", "warning", "/opt/nvcc",
     "repair"),
    ("several toolkits", part(HEALTHY, "compilers", installed=(NVCC, CUDA_12)), "toolkits", "ok",
     "2: 13.0.88 /usr/local/cuda/bin/nvcc (used), 12.4.131 /usr/local/cuda-12.4/bin/nvcc", "farm.build.nvcc="),
    ("CUDA_HOME is empty of nvcc", part(HEALTHY, "compilers", home="/opt/cuda"), "toolkits", "warning", "CUDA_HOME=/opt/cuda",
     "unset"),
    ("no gcc", part(HEALTHY, "compilers", gcc=None), "gcc", "problem", "none found", "apt-get install g++"),
    ("gcc too new", part(HEALTHY, "compilers", builds=(OLD_GCC,)), "compiling", "problem", "unsupported GNU", "host_compiler"),
    ("headers missing", part(HEALTHY, "compilers", builds=NO_CCCL), "compiling", "warning", "half and bfloat16", "cccl"),
    ("compiling hangs", part(HEALTHY, "compilers", builds=(Build("plain kernels", "nvcc took over 12 s"),)), "compiling",
     "problem", "12 s", "local disk"),
    ("a GPU newer than nvcc", with_gpu(capability=(13, 0)), "architecture", "problem", "does not build for sm_130", "newer"),
    ("a GPU older than nvcc", with_gpu(capability=(7, 0)), "architecture", "problem", "does not build for sm_70", "older"),
    ("GPUs that differ", TWO, "architecture", "problem", "differ in compute capability (8.9, 9.0)", "farm.gpus=[0]"),
    ("one of GPUs that differ", part(TWO, "asked", gpus=(1,)), "architecture", "ok", "sm_89", ""),
    ("one of them by uuid", variables(TWO, CUDA_VISIBLE_DEVICES="GPU-bb"), "architecture", "ok", "sm_89", ""),
    ("no GPU: the recorded one's", BARE, "architecture", "ok", "sm_90, the recorded GPU's", ""),
    ("driver older by a major version", driver_550(NVCC), "driver and toolkit", "problem", "550.54 knows CUDA 12.4", "580"),
    ("the same with a fitting toolkit beside", driver_550(NVCC, CUDA_12), "driver and toolkit", "problem", "13.0",
     "farm.build.nvcc=/usr/local/cuda-12.4/bin/nvcc"),
    ("the same, yet it runs", driver_550(NVCC, runs=True), "driver and toolkit", "warning", "tiny kernel", "580"),
    ("toolkit newer by a minor version", part(HEALTHY, "compilers", used=Toolkit("/x/nvcc", "13.5.37")), "driver and toolkit",
     "ok", "cubins of the same major version run", ""),
    ("driver known from CUDA only", part(HEALTHY, "nvml", error="x", cuda=None), "driver and toolkit", "ok",
     "knows CUDA 13.0", ""),
    ("NVML missing in a container", part(part(HEALTHY, "nvml", error="NVML Shared Library Not Found", gpus=()), "host",
     container="Docker"), "NVML", "warning", "Not Found", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"),
    ("driver updated under us", part(HEALTHY, "nvml", error="Driver/library version mismatch", gpus=()), "NVML", "warning",
     "mismatch", "reboot"),
    ("NVML hangs", part(HEALTHY, "nvml", error="did not answer within 8 s", gpus=()), "NVML", "warning", "8 s", "dmesg"),
    ("a GPU fell off the bus", with_gpu(lost="GPU is lost"), "NVML", "problem", "GPU 0 (GPU is lost)", "reboot"),
    ("memory taken", with_gpu(free_bytes=GIB), "GPU memory", "problem", "1.0 GiB free of 140.0 GiB", "farm.gpus"),
    ("memory short", with_gpu(free_bytes=6 * GIB), "GPU memory", "warning", "keep_mb=8192", "farm.timing.keep_mb=4096"),
    ("somebody else computes", with_gpu(processes=(Process(77, "python", 3 * GIB),)), "other processes", "warning",
     "python (77, 3.0 GiB)", "farm.gpus"),
    ("processes not told", with_gpu(processes=None), "other processes", "skipped", "unnoticed", ""),
    ("prohibited", with_gpu(compute_mode=2), "compute mode", "problem", "prohibited", "nvidia-smi -c DEFAULT"),
    ("exclusive", with_gpu(compute_mode=3), "compute mode", "warning", "one process", "nvidia-smi -c DEFAULT"),
    ("exclusive and taken", with_gpu(compute_mode=3, processes=(Process(1),)), "compute mode", "problem", "already", "end that"),
    ("MIG", with_gpu(mig=True), "MIG", "warning", "slice", "MIG-<uuid>"),
    ("throttled", with_gpu(reasons=("hw_thermal",), temperature_c=91), "throttling", "warning", "hw_thermal), 91 C", "cool"),
    ("a power cap is normal", with_gpu(reasons=("sw_power_cap",)), "throttling", "ok", "none", ""),
    ("no persistence", with_gpu(persistence=False), "persistence mode", "warning", "off", "nvidia-smi -pm 1"),
    ("clocks observed", HEALTHY, "clocks", "ok", "345 of 1980 MHz; only observed with gpu=auto", ""),
    ("the environment wins", variables(DEDICATED, CUDA_AGENT_CLOCKS="observe"), "clocks", "ok", "CUDA_AGENT_CLOCKS=observe", ""),
    ("no right to lock", DEDICATED, "clocks", "problem", "administrator's rights", "nvidia-smi -lgc 1500,1500"),
    ("no right, going on allowed", part(DEDICATED, "asked", allow_unlocked=True), "clocks", "warning", "administrator",
     "gpu=auto"),
    ("the right to lock", part(DEDICATED, "host", may_administer=True), "clocks", "ok", "will lock them at 1500 MHz", ""),
    ("WSL2 cannot lock", part(part(DEDICATED, "host", may_administer=True), "host", kernel=WSL.host.kernel), "clocks", "problem",
     "WSL2", "gpu=auto"),
    ("a clock too high", part(part(DEDICATED, "host", may_administer=True), "asked", lock_mhz=2500), "clocks", "problem", "2500",
     "farm.clocks.lock_mhz=1980"),
    ("NVSwitch down", replace(HEALTHY, trials=(Trial("0", "CUDA_ERROR_SYSTEM_NOT_READY (open the GPU)"),)), "first kernel",
     "problem", "NOT_READY", "fabricmanager"),
    ("the GPU hangs", replace(HEALTHY, trials=(Trial("0", "did not answer within 15 s (launch)"),)), "first kernel", "problem",
     "GPU 0: did not answer", "xid"),
    ("an unknown failure", replace(HEALTHY, trials=(Trial("0", "died of SIGSEGV (launch)"),)), "first kernel", "problem",
     "SIGSEGV", "dmesg"),
    ("nothing to launch", replace(HEALTHY, trials=(Trial("0"),)), "first kernel", "warning", "memory can be had", "nvcc"),
    ("no trial in time", replace(HEALTHY, trials=()), "first kernel", "warning", "time", "again"),
    ("cache on WSL2's Windows disk", on(HEALTHY, "cache", kind="9p", mount="/mnt/c"), "compile cache", "warning",
     "9p (/mnt/c), which is slow", "farm.build.cache_dir=/local/disk/cuda-agent, or XDG_CACHE_HOME"),
    ("cache on NFS", on(HEALTHY, "cache", kind="nfs4", mount="/home"), "compile cache", "warning", "nfs4", "XDG_CACHE_HOME"),
    ("cache over SSH", on(HEALTHY, "cache", kind="fuse.sshfs"), "compile cache", "warning", "fuse.sshfs", "farm.build.cache_dir"),
    ("cache on a slow disk of any kind", on(HEALTHY, "cache", write_ms=350.0), "compile cache", "warning", "350 ms", "cache_dir"),
    ("cache in a container's layer", on(part(HEALTHY, "host", container="Docker"), "cache", kind="overlay"), "compile cache",
     "warning", "goes when it goes", "cache_dir"),
    ("cache not writable", on(HEALTHY, "cache", error="Permission denied"), "compile cache", "warning", "Permission",
     "cache_dir"),
    ("cache disk full", on(HEALTHY, "cache", free_bytes=1 << 20), "compile cache", "warning", "full", "cache_dir"),
    ("scratch on CIFS", on(HEALTHY, "scratch", kind="cifs"), "scratch", "warning", "cifs", "TMPDIR"),
    ("scratch in memory", on(HEALTHY, "scratch", kind="tmpfs"), "scratch", "ok", "tmpfs", ""),
    ("scratch not writable", on(HEALTHY, "scratch", error="Read-only file system"), "scratch", "problem", "Read-only", "TMPDIR"),
    ("the same without a GPU", on(BARE, "scratch", error="Read-only file system"), "scratch", "warning", "Read-only", "TMPDIR"),
    ("scratch never looked at", replace(HEALTHY, folders={}), "scratch", "warning", "hangs", "TMPDIR"),
    ("TMPDIR is not there", variables(HEALTHY, TMPDIR="/scratch/none"), "TMPDIR", "warning", "/tmp is instead", "correct"),
    ("outputs not writable", on(BARE, "outputs", error="Permission denied"), "outputs", "problem", "Permission", "OUTPUTS="),
    ("little room", on(HEALTHY, "data", free_bytes=GIB // 2), "measurements", "warning", "512 MiB free", "data_dir"),
    ("recording damaged, no GPU", replace(BARE, recordings=(Recording("nvidia-h200", "matmul", error="x: damaged"),)),
     "recorded timings", "problem", "damaged", "git checkout"),
    ("recording damaged, GPU", replace(HEALTHY, recordings=(Recording("nvidia-h200", "matmul", error="x: damaged"),)),
     "recorded timings", "warning", "damaged", "git checkout"),
    ("another operator's recording damaged", replace(BARE, recordings=(*BARE.recordings, Recording("nvidia-h200", "softmax",
     error="x: damaged"))), "recorded timings", "warning", "nvidia-h200/softmax", "git checkout"),
    ("nothing recorded of that GPU", part(BARE, "asked", recorded="nvidia-l4"), "recorded timings", "problem",
     "nvidia-l4 has none of any operator; there is nvidia-h200/matmul", "make collect"),
]  # fmt: skip


@pytest.mark.parametrize(("facts", "check", "verdict", "reason", "cure"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_each_environment_gets_its_verdict_reason_and_cure(
    facts: Facts, check: str, verdict: str, reason: str, cure: str
) -> None:
    found = finding(facts, check)
    assert found.verdict == verdict, found
    assert reason in found.reason
    assert cure in found.cure


@pytest.mark.parametrize("facts", [case[1] for case in CASES] + [Facts()], ids=[case[0] for case in CASES] + ["nothing known"])
def test_whatever_is_known_every_check_answers_in_one_line_and_a_complaint_has_a_cure(facts: Facts) -> None:
    for found in examine(facts):
        assert "at fault itself" not in found.reason, found
        assert found.reason and "\n" not in found.reason + found.cure
        assert found.cure or found.verdict in ("ok", "skipped"), found


def test_every_check_that_can_complain_is_made_to() -> None:
    complained = {case[2] for case in CASES if case[3] in ("warning", "problem")}
    assert {found.check for found in examine(HEALTHY)} - complained == {"Ray", "container"}


def test_a_healthy_gpu_machine_has_nothing_to_complain_of() -> None:
    findings = examine(HEALTHY)
    assert {found.verdict for found in findings} == {"ok", "skipped"}
    assert [found.check for found in findings if found.verdict == "skipped"] == ["Ray"]
    assert conclusion(HEALTHY, findings) == "ready to measure on 1 GPU"


def test_no_gpu_is_no_problem_and_is_said_to_mean_replay() -> None:
    findings = examine(BARE)
    assert not [found for found in findings if found.verdict in ("warning", "problem")]
    assert "replay recorded timings" in conclusion(BARE, findings)


def test_problems_are_counted_and_no_readiness_is_claimed() -> None:
    facts = with_gpu(compute_mode=2, persistence=False)
    assert conclusion(facts, examine(facts)) == "1 problem to solve first; 1 warning"


def test_of_several_gpus_the_worst_is_told_with_its_number() -> None:
    gpus = tuple(replace(H200, index=i, free_bytes=GIB if i in (1, 2) else 139 * GIB) for i in range(4))
    found = finding(part(HEALTHY, "nvml", gpus=gpus), "GPU memory")
    assert found.verdict == "problem" and found.reason.startswith("GPU 1,2: 1.0 GiB free")
    assert finding(part(HEALTHY, "nvml", gpus=gpus), "MIG").reason == "off"
    chosen = part(part(HEALTHY, "nvml", gpus=gpus), "asked", gpus=(0, 3))
    assert finding(chosen, "GPU memory").verdict == "ok", "GPUs that are not used do not matter"


def test_a_check_that_fails_itself_does_not_hide_the_others() -> None:
    def broken(facts: Facts) -> Finding:
        raise KeyError("x")

    first, second = examine(HEALTHY, [broken, CHECKS[0]])
    assert first.verdict == "warning" and "KeyError" in first.reason
    assert second.check == "Python"


@pytest.mark.parametrize(
    ("archs", "capability", "serves"),
    [
        (("sm_80",), (8, 6), True),
        (("sm_86",), (8, 0), False),
        (("sm_80",), (9, 0), False),
        (("sm_90a",), (9, 0), True),
        (("sm_90a",), (10, 0), False),
        (("compute_90a",), (10, 0), False),
        (("compute_80",), (12, 0), True),
        (("sm_120",), (12, 1), True),
        (("nonsense",), (9, 0), False),
    ],
)
def test_binaries_run_within_a_major_capability_and_ptx_on_newer_ones(
    archs: tuple[str, ...], capability: tuple[int, int], serves: bool
) -> None:
    facts = part(with_gpu(capability=capability), "pytorch", archs=archs)
    assert finding(facts, "PyTorch's architectures").verdict == ("ok" if serves else "warning")


def test_versions_compare_by_their_numbers() -> None:
    assert version_of("2.13.0+cpu") == (2, 13, 0)
    assert version_of("13.0") < version_of("13.5.37")
    assert version_of("rubbish") == ()


def test_the_defaults_ask_what_the_settings_do() -> None:
    from pipeline import config, doctor

    assert doctor.asked(config.settings()) == Asked()
    assert doctor.asked(config.settings("farm.gpus=[1,2]", "farm.build.jobs=9", "gpu=shared")) == Asked(
        gpu="shared", gpus=(1, 2), jobs=9
    )
