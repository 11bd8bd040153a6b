"""NVRTC in processes of its own: faults cost a row and a process, nothing outlives its parent, cubins are nvcc's."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from datasets.measurement import Resources
from pipeline.measure import build as build_module
from pipeline.measure import nvrtc as nvrtc_module
from pipeline.measure.build import BuildPool, Cubin, find_compiler
from pipeline.measure.farm import CHECK_SOURCE
from pipeline.measure.nvcc import BuildFailure, Compiled, find_nvcc, toolkits
from pipeline.measure.nvrtc import Nvrtc
from pipeline.measure.settings import BuildSettings
from templates.errors import InputError
from templates.render import render
from templates.template import load_template, operators
from tests.fake_nvrtc import pids

KERNEL = """// a kernel\nextern "C" __global__ void twice(float *x) { x[threadIdx.x] *= 2.0f; }\n"""
FLAGS = ["-std=c++17"]
ROOT = Path(__file__).resolve().parents[1]


def toolkit(folder: Path, cuda_version: int) -> Path:
    """A folder with the one header that tells a toolkit's release."""
    (folder / "include").mkdir(parents=True)
    (folder / "include" / "cuda.h").write_text(f"#define CUDA_VERSION {cuda_version}\n")
    return folder


@pytest.fixture(autouse=True)
def pretended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretended libraries log here."""
    monkeypatch.setenv("FAKE_NVRTC_LOG", str(tmp_path / "pids"))


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nvrtc]:
    """A compiler with a pretended library and a pretended toolkit."""
    root = toolkit(tmp_path / "toolkit", 13000)
    monkeypatch.setattr(nvrtc_module, "toolkits", lambda settings: [root])
    compiler = Nvrtc(BuildSettings(compiler="nvrtc"), server="tests.fake_nvrtc")
    yield compiler
    compiler.close()


@pytest.fixture
def real() -> Iterator[Nvrtc]:
    """The library of this machine, where there is one."""
    try:
        compiler = Nvrtc(BuildSettings(compiler="nvrtc"))
    except InputError as error:
        pytest.skip(str(error))
    yield compiler
    compiler.close()


def compiled(compiler: Nvrtc, source: str, limit_s: float = 20.0) -> Compiled | BuildFailure:
    return compiler.compile(source, "sm_90", FLAGS, limit_s)


def gone(pid: int, seconds: float = 5.0, zombie: bool = False) -> bool:
    """Whether a process vanishes in time; `zombie`: one that its parent has not collected yet counts as gone."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if zombie and state == "Z":
            return True
        time.sleep(0.02)
    return False


def wait_for_compile(n: int = 1) -> int:
    """The process id of the n-th compile, once it has begun."""
    deadline = time.monotonic() + 20.0
    while time.monotonic() < deadline:
        if len(pids()) >= n:
            return pids()[n - 1]
        time.sleep(0.02)
    raise AssertionError("no compile began")


def test_a_compile_keeps_what_ptxas_said_and_its_process_is_used_again(fake: Nvrtc) -> None:
    first, second = compiled(fake, KERNEL), compiled(fake, KERNEL + "//")
    assert isinstance(first, Compiled) and isinstance(second, Compiled)
    assert first.resources == {"twice": Resources(registers=12, spill_bytes=16, static_smem_bytes=2048)}
    assert first.code.startswith(b"\x7fELF-arch=sm_90 --ptxas-options=-v -std=c++17 -I")
    assert len(pids()) == 2 and len(set(pids())) == 1


@pytest.mark.parametrize("fault, told", [
    ("//signal SIGSEGV", "signal 11"), ("//signal SIGKILL", "signal 9"),
    ("//exit 3", "exit status 3"), ("//exit 0", "exit status 0"), ("//garbage", "no cubin"),
    ("//result NVRTC_ERROR_INTERNAL_ERROR", "NVRTC_ERROR_INTERNAL_ERROR"),
    ("//result NVRTC_ERROR_OUT_OF_MEMORY", "NVRTC_ERROR_OUT_OF_MEMORY"),
])  # fmt: skip
def test_a_crash_costs_one_row_and_its_process(fake: Nvrtc, fault: str, told: str) -> None:
    result = compiled(fake, fault)
    assert isinstance(result, BuildFailure) and result.status == "crash"
    assert told in result.message and "\n" not in result.message
    assert gone(pids()[0], 1.0), "neither a process nor a zombie is left"
    assert isinstance(compiled(fake, KERNEL), Compiled)
    assert pids()[0] != pids()[1]


@pytest.mark.parametrize("result", ["NVRTC_ERROR_COMPILATION", "NVRTC_ERROR_INVALID_OPTION"])
def test_a_compile_error_is_one_line_and_keeps_its_process(fake: Nvrtc, result: str) -> None:
    failure = compiled(fake, f"//result {result}")
    assert isinstance(failure, BuildFailure) and failure.status == "compile_error"
    assert failure.message == "kernel.cu(3): error: expected a ;"
    compiled(fake, KERNEL)
    assert len(set(pids())) == 1


def test_a_hanging_compile_is_killed_at_its_limit(fake: Nvrtc) -> None:
    started = time.monotonic()
    result = compiled(fake, "//sleep 60", limit_s=0.5)
    assert isinstance(result, BuildFailure) and result.status == "compile_timeout" and "0.5 s" in result.message
    assert 0.5 <= result.compile_s < 5 and time.monotonic() - started < 5
    assert gone(pids()[0], 1.0)


def test_a_process_that_died_idle_costs_no_row(fake: Nvrtc) -> None:
    compiled(fake, KERNEL)
    os.kill(pids()[0], signal.SIGKILL)
    deadline = time.monotonic() + 5
    while fake._idle[0].alive() and time.monotonic() < deadline:  # a process is gone when its last thread is
        time.sleep(0.01)
    assert isinstance(compiled(fake, KERNEL), Compiled)
    assert gone(pids()[0], 1.0), "collected"


def test_interrupts_are_ignored(fake: Nvrtc) -> None:
    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(compiled, fake, "//sleep 0.5")
        os.kill(wait_for_compile(), signal.SIGINT)
        assert isinstance(future.result(), Compiled)


def test_closing_ends_idle_processes_now_and_busy_ones_with_their_compile(fake: Nvrtc) -> None:
    with ThreadPoolExecutor(2) as threads:
        busy = threads.submit(compiled, fake, "//sleep 1")
        wait_for_compile()
        assert isinstance(compiled(fake, KERNEL), Compiled)
        fake.close()
        assert gone(pids()[1], 1.0)
        assert isinstance(busy.result(), Compiled)
    assert gone(pids()[0], 1.0)


PARENT = """
import sys, threading
from pathlib import Path
from pipeline.measure import nvrtc
from pipeline.measure.settings import BuildSettings
nvrtc.toolkits = lambda settings: [Path(sys.argv[1])]
compiler = nvrtc.Nvrtc(BuildSettings(), server="tests.fake_nvrtc")
compiler.compile(sys.argv[2], "sm_90", [], 60.0)
threading.Event().wait()
"""


@pytest.mark.parametrize("source", ["// returns at once and waits for more", "//sleep 60"])
def test_a_process_does_not_outlive_a_killed_parent(tmp_path: Path, source: str) -> None:
    root = toolkit(tmp_path / "toolkit", 13000)
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(root), source], cwd=ROOT)
    try:
        pid = wait_for_compile()
        time.sleep(0.2)
    finally:
        parent.kill()
        parent.wait()
    assert gone(pid, zombie=True)


def test_the_process_imports_nothing_heavy() -> None:
    script = (
        "import sys, pipeline.measure.nvrtc_server, cuda.bindings.nvrtc;"
        "print([m for m in ('torch', 'numpy', 'pandas', 'xgboost', 'cuda.core') if m in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_the_pool_compiles_with_as_many_processes_as_jobs(
    tmp_path: Path, fake: Nvrtc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_module, "Nvrtc", partial(Nvrtc, server="tests.fake_nvrtc"))
    pool = BuildPool(BuildSettings(compiler="nvrtc", jobs=2, cache_dir=str(tmp_path / "cache")), "sm_90")
    results = [future.result() for future in [pool.submit(f"//sleep 0.1\n{i}") for i in range(8)]]
    pool.close()
    assert all(isinstance(result, Cubin) for result in results)
    assert len(pids()) == 8 and len(set(pids())) == 2
    assert all(gone(pid, 1.0) for pid in set(pids()))


def test_the_release_of_library_and_headers_is_in_the_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, same = toolkit(tmp_path / "old", 12080), toolkit(tmp_path / "same", 13000)
    versions = []
    for roots in ([old, same], [old]):
        monkeypatch.setattr(nvrtc_module, "toolkits", lambda settings, roots=roots: roots)
        compiler = Nvrtc(BuildSettings(), server="tests.fake_nvrtc")
        compiler.close()
        versions.append((compiler.version, compiler.headers))
    assert versions == [
        ("nvrtc 13.0.88", [f"-I{same / 'include'}"]),
        ("nvrtc 13.0.88 (headers 12.8)", [f"-I{old / 'include'}"]),
    ]


def test_no_library_and_no_headers_are_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc_module, "toolkits", lambda settings: [tmp_path])
    with pytest.raises(InputError, match="no CUDA headers found.*pip install"):
        Nvrtc(BuildSettings(), server="tests.fake_nvrtc")
    monkeypatch.setenv("FAKE_NVRTC_MISSING", "1")
    with pytest.raises(InputError, match="libnvrtc.so.13.*pip install nvidia-cuda-nvrtc") as told:
        Nvrtc(BuildSettings(), server="tests.fake_nvrtc")
    assert "\n" not in str(told.value)
    with pytest.raises(InputError, match="does not start .exit status 1.*compiler=nvcc"):
        Nvrtc(BuildSettings(), server="tests.no_such_module")


def test_an_unknown_compiler_is_refused() -> None:
    with pytest.raises(InputError, match="farm.build.compiler=clang: use nvcc or nvrtc"):
        BuildSettings(compiler="clang")


def test_the_real_library_compiles_everything_a_farm_needs(real: Nvrtc) -> None:
    assert real.version.startswith("nvrtc ")
    sources = [CHECK_SOURCE.read_text()]
    for op in operators():
        template = load_template(op)
        sources += [template.reference_path.read_text(), *(render(template, template.naive, dtype) for dtype in template.dtypes)]
    sources += [f"#include <{name}>\n{KERNEL}" for name in ("cuda_fp16.h", "cuda_bf16.h", "cuda_pipeline_primitives.h")]
    for source in sources:
        result = compiled(real, source)
        assert isinstance(result, Compiled) and result.code[:4] == b"\x7fELF", result
        assert result.resources and all(entry.registers > 0 for entry in result.resources.values())


def test_the_real_library_names_the_line_of_an_error_and_the_flag_it_does_not_know(real: Nvrtc) -> None:
    wrong, flag = compiled(real, "__device__ int x = ;"), real.compile(KERNEL, "sm_90", ["-O1"], 20.0)
    large = compiled(real, 'extern "C" __global__ void f(int *x) { __shared__ int s[20000]; s[*x] = 1; *x = s[x[1]]; }')
    results = {"kernel.cu(1): error": wrong, "unrecognized option -O1": flag, "too much shared data": large}
    for told, result in results.items():
        assert isinstance(result, BuildFailure) and result.status == "compile_error" and told in result.message, result


def test_nvcc_and_the_real_library_of_one_release_agree_on_resources(real: Nvrtc) -> None:
    found = [find_nvcc(BuildSettings(nvcc=str(root / "bin/nvcc"))) for root in toolkits(BuildSettings())]
    nvcc = next((compiler for compiler in found if real.version == f"nvrtc {compiler.version}"), None)
    if nvcc is None:
        pytest.skip(f"{real.version} here, and no nvcc of that release")
    template = load_template("matmul")
    source = render(template, template.naive)
    ours, theirs = compiled(real, source), nvcc.compile(source, "sm_90", FLAGS, 20.0)
    assert isinstance(ours, Compiled) and isinstance(theirs, Compiled)
    assert ours.resources == theirs.resources


def test_the_two_compilers_do_not_share_cache_entries(tmp_path: Path, fake: Nvrtc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_module, "Nvrtc", partial(Nvrtc, server="tests.fake_nvrtc"))
    compiler = find_compiler(BuildSettings(compiler="nvrtc"))
    assert build_module.cache_key(KERNEL, "sm_90", FLAGS, compiler.version) != build_module.cache_key(
        KERNEL, "sm_90", FLAGS, "13.0.88"
    )
    compiler.close()
