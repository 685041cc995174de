"""A world that wants to be broken out of: a root full of links, a thread that swaps them, and paths of every kind.

``run`` makes so many calls of the file tools, and returns what got out: a secret in a result, a change outside, an exception that is no
refusal. Everything comes from the seed but the moment at which the thread swaps.
"""

from __future__ import annotations

import os
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from interlock import ToolFailure

SECRET = "the-secret-that-must-not-get-out"
HIDDEN = "a-name-that-only-the-outside-has"
NAMES = ("a", "b", "c", "src", "x.py", "y.txt", "link", "out", "swap", "file")
INSIDE = "inside\n"
SWAPS = 3

Tools = dict[str, Callable[..., Any]]


class World:
    """A folder with a ``root``, and beside it what the root's links lead to."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.root = folder / "root"
        self.random = random.Random(seed)
        for name in ("outside", "root-secret", "root2"):
            (folder / name / "deep").mkdir(parents=True)
            (folder / name / HIDDEN).write_text(SECRET)
            for place in ("", "deep"):
                for file in ("x.py", "y.txt", "file", "a"):
                    (folder / name / place / file).write_text(f"{SECRET} in {file}\n")
        (folder / "secret.txt").write_text(SECRET)
        self.root.mkdir()
        self.known = ["link0", "link1/y.txt", "link2"]
        self._grow(self.root, depth=3)
        for number in range(SWAPS):
            self.place(number)
        self.before = self.outside()

    def _grow(self, directory: Path, depth: int) -> None:
        for name in self.random.sample(NAMES, self.random.randint(3, 7)):
            path = directory / name
            self.known.append(str(path.relative_to(self.root)))
            match self.random.randrange(6 if depth else 4):
                case 0 | 1:
                    path.write_text(INSIDE)
                case 2:
                    path.symlink_to(self.target(directory))
                case 3:
                    os.mkfifo(path)
                case _:
                    path.mkdir()
                    self._grow(path, depth - 1)

    def target(self, directory: Path) -> str:
        """Where a link leads: out, in, to itself, or nowhere, as an absolute or a relative path."""
        beside = ("outside", "root-secret", "secret.txt", "outside/y.txt", "", "new.txt", "outside/new.txt")
        aims = [*(self.folder / place for place in beside), *(self.root / name for name in NAMES[:4]), directory / "link", Path("/etc")]
        aim = self.random.choice(aims)
        return str(aim) if self.random.random() < 0.5 else os.path.relpath(aim, directory)

    def place(self, number: int) -> tuple[Path, Path]:
        """A directory or file, and a link to the outside, which take turns under one name; made anew if calls have got in between."""
        name, link = self.root / f"swap{number}", self.root / f"link{number}"
        for path in (name, link, _aside(name)):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        if number == 2:
            name.write_text(INSIDE)
            link.symlink_to(self.folder / "outside" / "y.txt")
        else:
            name.mkdir()
            for file in ("x.py", "y.txt", "file", "a"):
                (name / file).write_text(INSIDE)
            link.symlink_to(self.folder / "outside" if number else "../outside")
        return name, link

    def path(self) -> str:
        """A path as a model, or somebody who speaks through it, might give it."""
        pick = self.random.random()
        parts = [self._part() for _ in range(self.random.randint(1, 5))]
        if pick < 0.35:
            swap = self.random.choice(("swap0", "swap1", "swap2", "link0"))
            return self.random.choice((swap, *(f"{swap}/{name}" for name in ("x.py", "y.txt", "file", "a", "deep/a", "new.txt"))))
        if pick < 0.55:
            return self.random.choice(self.known)
        if pick < 0.65:
            return str(self.folder / self.random.choice(("root-secret", "root2/a", "secret.txt", "outside/y.txt", "root/../secret.txt")))
        if pick < 0.75:
            return f"{self.root}/{'/'.join(parts)}"
        return self.random.choice(("", "", "", "/", "./", "//")) + "/".join(parts)

    def _part(self) -> str:
        if self.random.random() < 0.7:
            return self.random.choice((*NAMES, "swap0", "swap1", "link1"))
        odd = ("..", "..", ".", "", "\0", "x\0.txt", "...", ".. ", "~", "%2e%2e", "..\\..", "\ud800", "\u2025", "x" * 260, "*", "root2")
        return self.random.choice(odd)

    def outside(self) -> dict[str, tuple[object, ...]]:
        """Everything beside the root."""
        seen: dict[str, tuple[object, ...]] = {}
        for directory, folders, files in os.walk(self.folder):
            if directory == str(self.folder):
                folders.remove("root")
            for name in (*folders, *files):
                path = Path(directory, name)
                status = path.lstat()
                seen[str(path)] = (status.st_mode, status.st_ino, status.st_nlink, path.read_bytes() if path.is_file() else b"")
        return seen


def _aside(name: Path) -> Path:
    return name.with_name(f"{name.name}.aside")


@contextmanager
def swapping(world: World) -> Iterator[list[int]]:
    """Meanwhile, a thread swaps what is behind a name for a link to the outside, and back; it counts how often."""
    stop, count = threading.Event(), [0]

    def swap() -> None:
        while not stop.is_set():
            for number in range(SWAPS):
                name, link = world.root / f"swap{number}", world.root / f"link{number}"
                try:
                    for old, new in ((name, _aside(name)), (link, name), (name, link), (_aside(name), name)):
                        os.rename(old, new)
                    count[0] += 1
                except OSError:  # a call has made something of that name meanwhile
                    try:
                        world.place(number)
                    except OSError:
                        continue

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield count
    finally:
        stop.set()
        thread.join()


def run(world: World, tools: Tools, calls: int) -> list[str]:
    """What got out in so many calls; empty if nothing did."""
    escapes: list[str] = []
    with swapping(world) as count:
        for number in range(calls):
            name, arguments = _call(world)
            try:
                said = str(tools[name](**arguments))
            except ToolFailure as failure:
                said = str(failure).replace(ascii(arguments.get("path", "")), "")
                if failure.effect != "none":
                    escapes.append(f"{number}: {name} {arguments!r}: effect {failure.effect}")
            except Exception as error:
                escapes.append(f"{number}: {name} {arguments!r}: {error!r}")
                continue
            if SECRET in said or HIDDEN in said:
                escapes.append(f"{number}: {name} {arguments!r}: {said[:200]!r}")
    if not count[0]:
        escapes.append("nothing was swapped")
    before, after = world.before, world.outside()
    escapes += [f"outside: {path} is another" for path in sorted(before.keys() | after.keys()) if before.get(path) != after.get(path)]
    return escapes


def _call(world: World) -> tuple[str, dict[str, Any]]:
    path = world.path()
    match world.random.randrange(10):
        case 0:
            return "list_files", {"path": path, "recursive": world.random.random() < 0.3}
        case 1:
            return "find_files", {"pattern": world.random.choice(("*", "**/*.py", "*e*")), "path": world.random.choice((path, "."))}
        case 2:
            return "search_text", {"text": world.random.choice(("secret", "inside")), "path": world.random.choice((path, "."))}
        case 3 | 4 | 5:
            return "read_file", {"path": path}
        case 6 | 7:
            return "write_file", {"path": path, "content": world.random.choice((INSIDE, "written\n")), "context": None}
        case _:
            old, new = world.random.choice((("inside", "written"), ("written", "inside"), (SECRET, "stolen")))
            return "edit_file", {"path": path, "old": old, "new": new, "context": None}
