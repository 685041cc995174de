"""The levels: what is demanded is there or refused, and what a level holds back is really held back."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers import looped
from interlock import SandboxUnavailable, UsageError
from interlock.sandbox import Finished, Level, Rlimits, Sandbox, landlock, levels, run, unavailable
from leftovers import linux, needs, none_left

ISOLATING = [pytest.param(level, marks=needs(level)) for level in ("landlock", "bubblewrap")]
LIMITING = [pytest.param(level, marks=needs(level)) for level in ("rlimits", "landlock", "bubblewrap")]


@pytest.fixture
def mark() -> Iterator[str]:
    with none_left() as mark:
        yield mark


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("the secret")
    root = tmp_path / "root"
    root.mkdir()
    return root


async def shell(command: str, sandbox: Sandbox, root: Path, mark: str) -> Finished:
    name, _, value = mark.partition("=")
    env = {"PATH": os.environ["PATH"], "HOME": str(root.parent), name: value}
    return await run(["/bin/sh", "-c", command], cwd=root, env=env, sandbox=sandbox, writable=[root], timeout_s=30.0)


@pytest.mark.parametrize("level", ISOLATING)
@looped
async def test_nothing_outside_can_be_read_or_written(level: Level, root: Path, mark: str) -> None:
    secret = root.parent / "secret"
    (root / "link").symlink_to(secret)
    command = f"""cat {secret}; cat ../secret; cat link; cp {secret} copied; ln {secret} hard; mv {secret} moved
echo no > {secret}; echo no > ../new; rm -f {secret}; ls .."""
    done = await shell(command, Sandbox(level), root, mark)
    assert b"the secret" not in done.head
    assert secret.read_text() == "the secret"
    assert sorted(os.listdir(root.parent)) == ["root", "secret"]
    inside = [Path(root, name) for name in os.listdir(root) if name != "link"]
    assert all(b"the secret" not in path.read_bytes() for path in inside)  # bubblewrap has another file at that place


@pytest.mark.parametrize("level", ISOLATING)
@looped
async def test_inside_everything_can_be_done(level: Level, root: Path, mark: str) -> None:
    command = """set -e
mkdir -p a/b; echo one > a/x; mv a/x a/b/y; ln a/b/y z; rm a/b/y; cat z; : > z
test -d "$HOME"; echo mine > "$HOME/.rc"; cat "$HOME/.rc"; mktemp > /dev/null; echo out > /dev/null; head -c 3 /dev/urandom > r"""
    done = await shell(command, Sandbox(level), root, mark)
    assert (done.code, done.head) == (0, b"one\nmine\n")


@pytest.mark.parametrize("level", ISOLATING)
@looped
async def test_what_is_declared_can_be_read_or_written_besides(level: Level, root: Path, mark: str) -> None:
    given = root.parent / "given"
    given.mkdir()
    sandbox = Sandbox(level, readable=[root.parent / "secret"], writable=[given])
    done = await shell("cat ../secret; echo new > ../given/file; echo no > ../secret", sandbox, root, mark)
    assert done.head.startswith(b"the secret")
    assert (given / "file").read_text() == "new\n"
    assert (root.parent / "secret").read_text() == "the secret"


@needs("bubblewrap")
@looped
async def test_a_link_to_elsewhere_inside_of_what_can_be_read_leads_there_if_that_is_declared_too(root: Path, mark: str) -> None:
    given, elsewhere = root.parent / "given", root.parent / "elsewhere"
    for directory in (given, elsewhere):
        directory.mkdir()
    (elsewhere / "file").write_text("found")
    (given / "link").symlink_to(elsewhere)
    done = await shell(f"cat {given}/link/file", Sandbox("bubblewrap", readable=[given, given / "link"]), root, mark)
    assert (done.code, done.head) == (0, b"found")


@needs("bubblewrap")
@looped
async def test_a_bubblewrap_that_a_command_has_put_on_the_path_is_not_started(
    root: Path, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{root}:{os.environ['PATH']}")
    outside = root.parent / "outside"
    plant = f"printf '#!/bin/sh\\necho > {outside}\\n' > bwrap; chmod +x bwrap"
    assert (await shell(plant, Sandbox("bubblewrap"), root, mark)).code == 0
    assert os.access(root / "bwrap", os.X_OK)
    assert (await shell("echo out", Sandbox("bubblewrap"), root, mark)).head == b"out\n"
    assert not outside.exists()


@needs("bubblewrap")
@pytest.mark.parametrize("option", ["--no-such-option", "--ro-bind-fd"])
@looped
async def test_a_bubblewrap_that_does_not_come_to_start_the_command_ran_nothing(
    option: str, root: Path, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = Sandbox("bubblewrap")
    wrapping = levels._wrapping
    monkeypatch.setattr(levels, "_wrapping", lambda *given: [*wrapping(*given), option])
    with pytest.raises(SandboxUnavailable, match="could not be isolated: bwrap: "):
        await shell("echo > here", sandbox, root, mark)
    assert not (root / "here").exists()


@pytest.mark.parametrize("code", [1, 2, 127, 255])
@needs("bubblewrap")
@looped
async def test_a_command_that_fails_as_bubblewrap_would_has_run_nevertheless(code: int, root: Path, mark: str) -> None:
    done = await shell(f"echo 'bwrap: no'; exit {code}", Sandbox("bubblewrap"), root, mark)
    assert (done.reason, done.code, done.head) == ("exited", code, b"bwrap: no\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can write them at all")
@pytest.mark.parametrize("level", ISOLATING)
@linux
@looped
async def test_the_settings_of_the_machine_cannot_be_written(level: Level, root: Path, mark: str) -> None:
    command = """for file in /proc/sys/kernel/core_pattern /proc/sys/vm/swappiness /proc/sysrq-trigger /proc/irq/default_smp_affinity; do
test -e $file && (: >> $file) 2>/dev/null && echo $file; done; echo looked"""
    assert (await shell(command, Sandbox(level), root, mark)).head == b"looked\n"


@pytest.mark.parametrize("place", ["home", "above", "/"])
@pytest.mark.parametrize("level", ISOLATING)
@looped
async def test_a_path_that_holds_the_home_does_not_open_it(
    place: str, level: Level, root: Path, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = root.parent / "home"
    home.mkdir()
    (home / "secret").write_text("the secret")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:{ {'home': home, 'above': root.parent}.get(place, place) }")
    assert b"the secret" not in (await shell(f"cat {home}/secret", Sandbox(level), root, mark)).head


CONNECT = """
import socket, sys
with socket.socket(socket.AF_UNIX) as sock:
    sock.connect("\\0" + sys.argv[1])
"""


@pytest.mark.parametrize("level", ISOLATING)
@linux
@looped
async def test_a_socket_without_a_file_is_not_reached(level: Level, root: Path, mark: str) -> None:
    if landlock.abi() < 6:
        pytest.skip("needs Linux 6.12")
    (root / "connect.py").write_text(CONNECT)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("\0" + mark)
        listening.listen()
        command = f"{sys.executable} -I -S connect.py '{mark}'"
        assert (await shell(command, Sandbox("none"), root, mark)).code == 0
        done = await shell(command, Sandbox(level), root, mark)
    assert done.code == 1
    assert b"PermissionError" in done.head


@pytest.mark.parametrize("level", ISOLATING)
@looped
async def test_the_home_and_the_temporary_files_are_not_the_users(level: Level, root: Path, mark: str) -> None:
    sandbox = Sandbox(level)
    done = await shell('echo "$HOME"; echo "$TMPDIR"; ls -a "$HOME" | wc -l', sandbox, root, mark)
    home, tmp, count = done.head.decode().split()
    assert (home, tmp, count) == (str(sandbox.scratch / "home"), str(sandbox.scratch / "tmp"), "2")
    scratch = sandbox.scratch
    del sandbox
    assert not scratch.exists()


@pytest.mark.parametrize("level", ISOLATING)
@looped
async def test_programs_of_a_version_manager_in_the_home_run(level: Level, root: Path, mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    home = root.parent / "home"
    shim, real = home / ".pyenv" / "shims" / "harbour", home / ".pyenv" / "versions" / "harbour"
    for path, script in ((shim, 'exec "$PYENV_ROOT/versions/harbour"'), (real, "echo sailed")):
        path.parent.mkdir(parents=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    (home / ".netrc").write_text("the secret")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("PYENV_ROOT", raising=False)
    monkeypatch.setenv("PATH", f"{shim.parent}:{os.environ['PATH']}")
    done = await shell(f"harbour; cat {home}/.netrc", Sandbox(level), root, mark)
    assert done.head.startswith(b"sailed\n")
    assert b"the secret" not in done.head


@pytest.mark.parametrize("level", ISOLATING)
@looped
async def test_a_link_that_a_command_puts_in_the_place_of_a_directory_opens_nothing_to_the_next_one(
    level: Level, root: Path, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = root.parent / "outside"
    for directory in (outside, root / "bin", root / "cache"):
        directory.mkdir()
    (outside / "key").write_text("the secret")
    monkeypatch.setenv("PATH", f"{root / 'bin'}:{os.environ['PATH']}")
    sandbox = Sandbox(level, readable=[root / "bin"], writable=[root / "cache"])
    plant = f"""rmdir bin cache; ln -s {outside} bin; ln -s {outside} cache; ls -l bin cache
for place in "$HOME" "$TMPDIR"; do rm -rf "$place"; ln -s {outside} "$place"; done; :"""
    planted = await shell(plant, sandbox, root, mark)
    assert planted.head.count(str(outside).encode()) >= 2  # those below the root
    for again in (sandbox, Sandbox(level, readable=[root / "bin"])):
        look = f'cat bin/key cache/key {outside}/key "$HOME/key" "$TMPDIR/key" /tmp/key; echo no > bin/new; :'
        done = await shell(look, again, root, mark)
        assert b"the secret" not in done.head
        assert os.listdir(outside) == ["key"]


@pytest.mark.parametrize("level", ISOLATING)
@linux
@looped
async def test_the_runtimes_own_process_cannot_be_looked_at_or_signalled(level: Level, root: Path, mark: str) -> None:
    me = os.getpid()
    assert Path(f"/proc/{me}/environ").read_bytes()  # noqa: ASYNC240
    sandbox = Sandbox(level)
    for command in (f"cat /proc/{me}/environ", f"head -c 1 /proc/{me}/mem", f"readlink /proc/{me}/cwd", f"kill -0 {me}"):
        done = await shell(f"{command} 2>/dev/null", sandbox, root, mark)
        assert done.code != 0, command
        assert done.head == b"", command


@pytest.mark.parametrize("level", LIMITING)
@looped
async def test_one_file_and_the_memory_have_a_bound(level: Level, root: Path, mark: str) -> None:
    sandbox = Sandbox(level, limits=Rlimits(file_bytes=1_000_000, memory_bytes=200_000_000, open_files=64))
    done = await shell("ulimit -n; ulimit -c; head -c 5000000 /dev/zero > big; wc -c < big", sandbox, root, mark)
    assert done.head.split()[:2] == [b"64", b"0"]
    assert (root / "big").stat().st_size <= 1_000_000
    python = f"{sys.executable} -I -S -c 'x = bytearray(400_000_000)'"
    if sys.platform == "linux":
        done = await shell(python, sandbox, root, mark)
        assert b"MemoryError" in done.head


@pytest.mark.parametrize("level", LIMITING)
@linux
@looped
async def test_no_program_gains_rights_and_root_has_few(level: Level, root: Path, mark: str) -> None:
    done = await shell("grep -E 'NoNewPrivs|CapEff' /proc/self/status", Sandbox(level), root, mark)
    status = dict(line.split(":\t") for line in done.head.decode().splitlines())
    assert status["NoNewPrivs"] == "1"
    assert int(status["CapEff"], 16) & ~0b100_1111_1011 == 0


@needs("bubblewrap")
@looped
async def test_without_the_network_nothing_is_reached(root: Path, mark: str) -> None:
    if unavailable("bubblewrap", network=False):
        pytest.skip(unavailable("bubblewrap", network=False))
    done = await shell("cat /proc/net/dev | grep -c :", Sandbox("bubblewrap", network=False), root, mark)
    assert done.head == b"1\n"  # the loopback of its own


@pytest.mark.parametrize("level", ["none", "rlimits", "landlock"])
def test_a_network_that_a_level_cannot_cut_off_is_refused(level: Level) -> None:
    with pytest.raises(SandboxUnavailable, match="cannot cut the network off"):
        Sandbox(level, network=False)


def test_a_demanded_level_that_is_not_there_is_refused_and_never_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "abi", lambda: 2)
    monkeypatch.setattr(levels, "BUBBLEWRAP_PLACES", ("/nowhere",))
    with pytest.raises(SandboxUnavailable, match="this kernel offers version 2"):
        Sandbox("landlock")
    with pytest.raises(SandboxUnavailable, match="needs the program bwrap in one of /nowhere"):
        Sandbox("bubblewrap")
    assert Sandbox().level == "rlimits"
    assert Sandbox("none").level == "none"


def test_a_bubblewrap_that_does_not_work_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'No permissions to create a new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(levels, "BUBBLEWRAP_PLACES", (str(tmp_path),))
    with pytest.raises(SandboxUnavailable, match="No permissions to create a new namespace"):
        Sandbox("bubblewrap")


def test_the_best_level_is_the_strongest_that_is_there() -> None:
    best = Sandbox()
    assert not unavailable(best.level)
    assert all(unavailable(level) for level in levels.LEVELS[levels.LEVELS.index(best.level) + 1 :])
    assert best.describe() == f"sandbox: {best.level}, network on"


def test_a_level_that_does_not_exist_is_a_wrong_call() -> None:
    with pytest.raises(UsageError, match="'jail'"):
        Sandbox("jail")  # pyright: ignore[reportArgumentType]
