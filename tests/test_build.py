"""Building: nvcc's faults become values, the cache survives damage, duplicates are compiled once."""

import errno
import json
import logging
import os
import shutil
import stat
import time
from pathlib import Path

import pytest

from datasets.measurement import Resources
from pipeline.measure import cache as cache_module
from pipeline.measure.build import Aside, BuildPool, Cubin
from pipeline.measure.cache import Cache, Entry, cache_key
from pipeline.measure.nvcc import BuildFailure, Compiled, find_nvcc, parse_ptxas
from pipeline.measure.settings import BuildSettings
from templates.errors import InputError

KERNEL = """extern "C" __global__ void twice(float *x) { x[threadIdx.x] *= 2.0f; }\n"""
PTXAS = """ptxas info    : Used 12 registers, used 1 barriers, 2048 bytes smem, 376 bytes cmem[0]"""


def fake_nvcc(folder: Path, body: str, name: str = "nvcc") -> str:
    """A shell script that answers --version and does `body` otherwise; $OUT is where the cubin belongs."""
    script = folder / name
    script.write_text(
        "#!/bin/bash\n"
        'if [ "$1" = --version ]; then echo "Cuda compilation tools, release 13.0, V13.0.88"; exit 0; fi\n'
        f"echo call >> {folder}/calls\n"
        'while [ $# -gt 1 ]; do if [ "$1" = -o ]; then OUT=$2; fi; shift; done\n' + body + "\n"
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return str(script)


def ended_within(pid: int, seconds: float) -> bool:
    """Whether a process is gone, or a zombie nobody collected, before the time is up."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.02)
    return False


GOOD = (
    "sleep 0.02\nprintf '\\x7fELFcubin' > $OUT\n"
    "echo \"ptxas info    : Compiling entry function 'twice' for 'sm_90'\"\n"
    "echo '    8 bytes stack frame, 16 bytes spill stores, 24 bytes spill loads'\n"
    f"echo '{PTXAS}'\n"
)


def pool(folder: Path, body: str, **settings: object) -> BuildPool:
    values = {"nvcc": fake_nvcc(folder, body), "cache_dir": str(folder / "cache"), **settings}
    return BuildPool(BuildSettings(**values), "sm_90")  # type: ignore[arg-type]


def calls(folder: Path) -> int:
    log = folder / "calls"
    return len(log.read_text().splitlines()) if log.exists() else 0


def test_a_build_keeps_resources_and_hits_the_cache_the_second_time(tmp_path: Path) -> None:
    first, second = pool(tmp_path, GOOD), pool(tmp_path, GOOD)
    made = first.submit(KERNEL).result()
    again = second.submit(KERNEL).result()
    assert isinstance(made, Cubin) and isinstance(again, Cubin)
    assert made.resources("twice") == Resources(registers=12, spill_bytes=16, static_smem_bytes=2048)
    assert (made.cache_hit, again.cache_hit) == (False, True)
    assert again.code == made.code and again.compile_s == made.compile_s > 0.02
    assert calls(tmp_path) == 1
    assert second.stats()["hit_rate"] == 1.0


def test_the_key_holds_source_flags_and_architecture(tmp_path: Path) -> None:
    pool(tmp_path, GOOD).submit(KERNEL).result()
    pool(tmp_path, GOOD, flags=["-O1"]).submit(KERNEL).result()
    pool(tmp_path, GOOD).submit(KERNEL + "// other").result()
    BuildPool(BuildSettings(nvcc=str(tmp_path / "nvcc"), cache_dir=str(tmp_path / "cache")), "sm_80").submit(KERNEL).result()
    assert calls(tmp_path) == 4


def test_duplicates_in_flight_share_one_compile(tmp_path: Path) -> None:
    builds = pool(tmp_path, GOOD)
    futures = [builds.submit(KERNEL) for _ in range(5)]
    assert builds.stats()["queue_depth"] == 1
    assert len({id(future.result()) for future in futures}) == 1
    assert calls(tmp_path) == 1


def test_a_compile_error_is_one_line_and_is_not_compiled_again(tmp_path: Path) -> None:
    builds = pool(tmp_path, "echo 'warning: x'; echo 'kernel.cu(3): error: expected a \";\"' >&2; exit 2")
    result = builds.submit(KERNEL).result()
    assert result == builds.submit(KERNEL).result()
    assert isinstance(result, BuildFailure) and result.status == "compile_error"
    assert result.message == 'kernel.cu(3): error: expected a ";"'
    assert calls(tmp_path) == 1


@pytest.mark.parametrize("body", ["kill -SEGV $$", "kill -KILL $$", "echo 'cicc died due to signal 11' >&2; exit 139", "exit 0"])
def test_a_dying_nvcc_is_a_crash_row_and_is_tried_again(tmp_path: Path, body: str) -> None:
    builds = pool(tmp_path, body)
    result = builds.submit(KERNEL).result()
    assert isinstance(result, BuildFailure) and result.status == "crash" and "\n" not in result.message
    builds.submit(KERNEL).result()
    assert calls(tmp_path) == 2


def test_garbage_for_a_cubin_is_not_accepted(tmp_path: Path) -> None:
    result = pool(tmp_path, "echo garbage > $OUT").submit(KERNEL).result()
    assert isinstance(result, BuildFailure) and "no cubin" in result.message


def test_a_hanging_compile_is_killed_with_its_children_and_set_aside(tmp_path: Path) -> None:
    now = [0.0]
    settings = BuildSettings(
        nvcc=fake_nvcc(tmp_path, f"sleep 60 & echo $! > {tmp_path}/child; wait"), cache_dir=str(tmp_path / "cache"),
        limit_s=0.5, slow_compile_s=0.4, set_aside_s=100.0,
    )  # fmt: skip
    builds = BuildPool(settings, "sm_90", clock=lambda: now[0])
    started = time.monotonic()
    result = builds.submit(KERNEL).result()
    assert isinstance(result, BuildFailure) and result.status == "compile_timeout"
    assert time.monotonic() - started < 5
    child = int((tmp_path / "child").read_text())
    assert ended_within(child, 5.0)
    assert builds.set_aside_s(KERNEL) == 100.0
    builds.submit(KERNEL).result()
    assert calls(tmp_path) == 1, "set aside: not compiled again"
    now[0] = 101.0
    assert builds.set_aside_s(KERNEL) == 0.0
    builds.submit(KERNEL).result()
    assert calls(tmp_path) == 2, "expired: tried again"


class Paced:
    """A compiler that says of each source that it took as many seconds as the source names."""

    path, version = "paced", "13.0.88"

    def compile(self, source: str, arch: str, flags: list[str], limit_s: float) -> Compiled:
        return Compiled(b"\x7fELF", {}, float(source))

    def close(self) -> None:
        """Nothing to end."""


def test_what_is_set_aside_is_listed_slowest_first_until_it_expires(tmp_path: Path) -> None:
    now = [0.0]

    def paced() -> BuildPool:
        nvcc, cache = fake_nvcc(tmp_path, GOOD), str(tmp_path / "cache")
        settings = BuildSettings(nvcc=nvcc, cache_dir=cache, slow_compile_s=3.0, set_aside_s=100.0)
        builds = BuildPool(settings, "sm_90", clock=lambda: now[0])
        builds.compiler = Paced()
        return builds

    builds = paced()
    for source, label in (("3.5", "slow"), ("2.5", "quick")):
        builds.submit(source, label).result()
    now[0] = 60.0
    builds.submit("4.5", "slower").result()
    assert builds.aside() == [Aside("slower", 4.5, 100.0), Aside("slow", 3.5, 40.0)]
    assert builds.set_aside_s("3.5") == 40.0
    now[0] = 100.0
    assert builds.aside() == [Aside("slower", 4.5, 60.0)]
    again = paced()
    again.submit("4.5").result()
    assert again.aside() == [], "from the cache it costs nothing"


def test_a_cache_filled_on_one_machine_serves_another(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    made = pool(here, GOOD).submit(KERNEL).result()
    shutil.copytree(here / "cache", there / "cache")
    found = pool(there, "exit 1", host_compiler="/bin/true", jobs=1).submit(KERNEL).result()
    assert isinstance(made, Cubin) and isinstance(found, Cubin)
    assert found.cache_hit and (found.code, found.entries) == (made.code, made.entries)
    assert calls(there) == 0


MB = 1_000_000
RESOURCES = {"twice": Resources(12, 0, 0)}


def filled(folder: Path, limit_mb: int, n: int) -> tuple[Cache, list[str]]:
    """A cache and the keys of n entries of 1 MB, each used a minute after the one before."""
    keys = [cache_key(str(i), "sm_90", [], "13.0.88") for i in range(n)]
    unbounded = Cache(folder)
    for i, key in enumerate(keys):
        unbounded.store(key, Entry(bytes(MB), RESOURCES, 0.1))
        for file in folder.glob(f"*/{key}.*"):
            os.utime(file, (1e9 + 60 * i, 1e9 + 60 * i))
    return Cache(folder, limit_mb), keys


def test_the_entries_used_longest_ago_go_when_the_cache_is_full(tmp_path: Path) -> None:
    cache, keys = filled(tmp_path, 10, 12)
    assert cache.load(keys[0]) is not None, "used just now"
    assert cache.trim() == 4, "down to 90 % of the cap, in which there is room for 8 with their facts"
    kept = [cache.load(key) is not None for key in keys]
    assert kept == [True] + 4 * [False] + 7 * [True]
    assert sum(file.stat().st_size for file in tmp_path.glob("*/*")) <= 9 * MB
    assert cache.trim() == 0


def test_a_full_cache_is_trimmed_while_it_is_written_to(tmp_path: Path) -> None:
    cache, keys = filled(tmp_path, 10, 0)
    for i in range(30):
        cache.store(cache_key(str(i), "sm_90", [], ""), Entry(bytes(MB), RESOURCES, 0.1))
        assert len(list(tmp_path.glob("*/*.cubin"))) <= 10
    assert len(list(tmp_path.glob("*/*.cubin"))) >= 8


def test_a_pool_trims_its_cache_at_the_start(tmp_path: Path) -> None:
    filled(tmp_path / "cache", 0, 4)
    pool(tmp_path, GOOD, cache_mb=2, jobs=1).submit(KERNEL).result()
    assert len(list((tmp_path / "cache").glob("*/*.cubin"))) == 2, "one old, one new"


def test_a_cache_without_a_bound_keeps_everything(tmp_path: Path) -> None:
    cache, keys = filled(tmp_path, 0, 3)
    assert cache.trim() == 0
    assert all(cache.load(key) is not None for key in keys)


def test_trimming_spares_foreign_files_and_removes_what_a_dead_process_left(tmp_path: Path) -> None:
    cache, keys = filled(tmp_path, 1, 3)
    folder = tmp_path / keys[0][:2]
    foreign = [tmp_path / "notes.txt", folder / "notes.txt", folder / f"{folder.name}.cubin"]
    left, fresh = folder / ".part-dead", folder / ".part-alive"
    for file in [*foreign, left, fresh]:
        file.write_bytes(bytes(MB))
        os.utime(file, (1e9, 1e9))
    os.utime(fresh)
    cache.trim()
    assert all(file.exists() for file in foreign) and fresh.exists() and not left.exists()


def test_trimming_bears_others_that_trim_and_a_folder_it_may_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cache, keys = filled(tmp_path, 2, 4)
    sizes = cache_module._sizes

    def slowly(root: Path) -> dict[str, tuple[float, int]]:
        found = sizes(root)
        for file in tmp_path.glob(f"*/{keys[0]}.*"):
            file.unlink()
        return found

    monkeypatch.setattr(cache_module, "_sizes", slowly)
    assert cache.trim() == 3

    def forbidden(root: Path) -> dict[str, tuple[float, int]]:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(cache_module, "_sizes", forbidden)
    assert [cache.trim(), cache.trim()] == [0, 0]
    assert len([record for record in caplog.records if "Permission denied" in record.message]) == 1


@pytest.mark.parametrize("damage", ["truncated", "flipped", "no json", "bad json", "json of another kind"])
def test_a_damaged_entry_is_built_anew(tmp_path: Path, damage: str) -> None:
    pool(tmp_path, GOOD).submit(KERNEL).result()
    (cubin,) = (tmp_path / "cache").glob("*/*.cubin")
    facts = cubin.with_suffix(".json")
    code = cubin.read_bytes()
    if damage == "no json":
        facts.unlink()
    elif "json" in damage:
        facts.write_text({"bad json": "{", "json of another kind": "[1]"}[damage])
    else:
        cubin.write_bytes({"truncated": code[:5], "flipped": code[:-1] + b"!"}[damage])
    result = pool(tmp_path, GOOD).submit(KERNEL).result()
    assert isinstance(result, Cubin) and not result.cache_hit and result.code == code
    assert cubin.read_bytes() == code, "repaired"


def test_entries_of_another_layout_are_ignored_with_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sources = [KERNEL, KERNEL + "//"]
    for source in sources:
        pool(tmp_path, GOOD).submit(source).result()
    for facts in (tmp_path / "cache").glob("*/*.json"):
        facts.write_text(json.dumps({**json.loads(facts.read_text()), "layout": 99}))
    with caplog.at_level(logging.WARNING):
        builds = pool(tmp_path, GOOD)
        results = [builds.submit(source).result() for source in sources]
    assert all(isinstance(result, Cubin) and not result.cache_hit for result in results)
    assert len([record for record in caplog.records if "layout 99" in record.message]) == 1


def test_a_full_disk_costs_the_cache_not_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(cache_module, "_replace", full)
    builds = pool(tmp_path, GOOD)
    results = [builds.submit(source).result() for source in (KERNEL, KERNEL + "//")]
    assert all(isinstance(result, Cubin) for result in results)
    assert len([record for record in caplog.records if "No space left" in record.message]) == 1


def test_no_compiler_and_no_gcc_are_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pipeline.measure import nvcc

    monkeypatch.setattr(nvcc, "_places", lambda: [])
    with pytest.raises(InputError, match="no nvcc found"):
        find_nvcc(BuildSettings())
    with pytest.raises(InputError, match="does not run"):
        find_nvcc(BuildSettings(nvcc=str(tmp_path / "absent")))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="no gcc found"):
        find_nvcc(BuildSettings())


def test_ptxas_lines_belong_to_their_entry() -> None:
    text = (
        "ptxas info    : Compiling entry function 'a' for 'sm_90'\n"
        "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
        "ptxas info    : Used 8 registers, 352 bytes cmem[0]\n"
        "ptxas info    : Compiling entry function 'b' for 'sm_90'\n"
        "    4 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads\n"
        f"{PTXAS}\n"
    )
    assert parse_ptxas(text) == {"a": Resources(8, 0, 0), "b": Resources(12, 4, 2048)}


def test_the_real_compiler_builds_and_its_resources_are_read(tmp_path: Path) -> None:
    try:
        find_nvcc(BuildSettings())
    except InputError as error:
        pytest.skip(str(error))
    result = BuildPool(BuildSettings(cache_dir=str(tmp_path)), "sm_90").submit(KERNEL).result()
    assert isinstance(result, Cubin) and result.code[:4] == b"\x7fELF"
    resources = result.resources("twice")
    assert resources is not None and resources.registers > 0
