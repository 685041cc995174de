"""The house rules: who may import whom, what stays pure, how large things get, and what the files promise."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

import interlock

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src" / "interlock"
MODULES = sorted(SRC.rglob("*.py"))

# Who may import whom. `errors` may be imported by all; a room may import itself. "everything" leaves the shells out.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "messages": set(),
    "sandbox": set(),
    "records": {"messages"},
    "events": {"messages", "records"},
    "model": {"messages", "events"},
    "machine": {"messages", "records"},
    "journal": {"messages", "records"},
    "tools": {"messages", "records", "model", "events"},
    "extensions.base": {"messages", "records", "events", "model", "tools"},
    "extensions.onion": {"messages", "records", "events", "model", "tools", "extensions.base"},
    "extensions": {"messages", "records", "events", "model", "tools", "extensions.base", "toolbox", "sandbox"},
    "driver": {"messages", "records", "events", "model", "machine", "journal", "tools", "extensions.base", "extensions.onion"},
    "providers": {"messages", "model"},
    "toolbox": {"messages", "tools", "sandbox"},
    "agent": {
        *("messages", "records", "events", "model", "machine", "journal", "tools", "driver", "providers"),
        *("extensions.base", "extensions.onion", "extensions"),
    },
    "testing": {"everything"},
    "shells": {"everything", "shells"},
    "interlock": {"everything"},
}

LINES_MAX = 400
FUNCTION_LINES_MAX = 80
# path or path:function -> why it may be longer
LONGER: dict[str, str] = {}

# The machine is a function of recorded facts: no clock, no chance, no outside.
IMPURE = {"asyncio", "datetime", "logging", "os", "pathlib", "random", "socket", "subprocess", "sys", "threading", "time", "uuid"}


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def dotted(path: Path) -> str:
    parts = path.relative_to(SRC.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    """The room of a dotted module name: its first part below ``interlock``, with two doors of ``extensions`` on their own."""
    parts = module.split(".")[1:]
    if not parts:
        return "interlock"
    if parts[:2] in (["extensions", "base"], ["extensions", "onion"]):
        return ".".join(parts[:2])
    return parts[0]


@cache
def module_exists(name: str) -> bool:
    base = SRC.parent.joinpath(*name.split("."))
    return base.with_suffix(".py").exists() or (base / "__init__.py").exists()


def imports(path: Path) -> Iterator[tuple[int, str, str]]:
    """(line, module, name) of everything of ours that a file imports: function-local and TYPE_CHECKING imports count."""
    here = dotted(path).split(".")
    package = here if path.name == "__init__.py" else here[:-1]
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "interlock":
                    yield node.lineno, alias.name, ""
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            if source.split(".")[0] != "interlock":
                continue
            for alias in node.names:
                child = f"{source}.{alias.name}"
                yield (node.lineno, child, "") if module_exists(child) else (node.lineno, source, alias.name)


def label(path: Path) -> str:
    return path.relative_to(SRC.parent).as_posix()


def test_every_room_imports_only_what_it_may() -> None:
    wrong: list[str] = []
    for path in MODULES:
        room = room_of(dotted(path))
        assert room in MAY_IMPORT, f"{label(path)}: a room that the table does not know"
        for line, module, name in imports(path):
            target = room_of(module)
            allowed = MAY_IMPORT[room]
            if target in {room, "errors"} or target in allowed or name == "__version__":
                continue
            if "everything" in allowed and target != "shells":
                continue
            wrong.append(f"{label(path)}:{line}: {room} may not import {target} ({module} {name})")
    assert not wrong, "\n".join(wrong)


def test_no_room_imports_a_private_name_of_another() -> None:
    wrong: list[str] = []
    for path in MODULES:
        for line, module, name in imports(path):
            private = [part for part in [*module.split(".")[1:], name] if part.startswith("_") and not part.startswith("__")]
            if private and room_of(module) != room_of(dotted(path)):
                wrong.append(f"{label(path)}:{line}: {private[0]} belongs to {room_of(module)}")
    assert not wrong, "\n".join(wrong)


def test_the_machine_is_pure() -> None:
    wrong: list[str] = []
    for path in sorted((SRC / "machine").rglob("*.py")):
        for node in ast.walk(tree(path)):
            if isinstance(node, (ast.Await, ast.AsyncFor, ast.AsyncWith, ast.AsyncFunctionDef)):
                wrong.append(f"{label(path)}:{node.lineno}: asynchronous code")
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                names = [node.module]
            wrong += [f"{label(path)}: imports {name}" for name in names if name.split(".")[0] in IMPURE]
    assert not wrong, "\n".join(wrong)


def test_modules_and_functions_fit_their_bounds() -> None:
    long: list[str] = []
    for path in MODULES:
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > LINES_MAX and label(path) not in LONGER:
            long.append(f"{label(path)}: {lines} lines")
        for node in ast.walk(tree(path)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                size = (node.end_lineno or node.lineno) - node.lineno + 1
                if size > FUNCTION_LINES_MAX and f"{label(path)}:{node.name}" not in LONGER:
                    long.append(f"{label(path)}:{node.name}: {size} lines")
    assert not long, "\n".join(long)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def private_definitions(path: Path) -> Iterator[tuple[int, str]]:
    """Private functions, classes, methods and constants of a module."""
    for scope in (tree(path), *(node for node in tree(path).body if isinstance(node, ast.ClassDef))):
        for node in scope.body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                names = [node.name]
            elif isinstance(node, ast.Assign) and isinstance(scope, ast.Module):
                names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(scope, ast.Module):
                names = [node.target.id]
            else:
                continue
            yield from ((node.lineno, name) for name in names if is_private(name))


def used_names(path: Path) -> set[str]:
    used: set[str] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            used.add(node.id)
        elif isinstance(node, ast.Attribute):
            used.add(node.attr)
        elif isinstance(node, ast.ImportFrom):
            used.update(alias.name for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            used.add(node.value)  # annotations in quotes, getattr
    return used


def test_no_private_name_is_dead() -> None:
    by_room: dict[str, set[str]] = {}
    for path in MODULES:
        by_room.setdefault(room_of(dotted(path)), set()).update(used_names(path))
    dead = [
        f"{label(path)}:{line}: {name}"
        for path in MODULES
        for line, name in private_definitions(path)
        if name not in by_room[room_of(dotted(path))]
    ]
    assert not dead, "\n".join(dead)


def modules() -> Iterator[ModuleType]:
    yield interlock
    for info in pkgutil.walk_packages(interlock.__path__, "interlock."):
        if not info.name.endswith(".__main__"):
            yield importlib.import_module(info.name)


def defined(path: Path) -> set[str]:
    """Public functions and classes that a module itself defines; of a package's own module the constants and aliases too."""
    names: set[str] = set()
    for node in tree(path).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif path.name != "__init__.py":
            continue
        elif isinstance(node, ast.Assign):
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return {name for name in names if not name.startswith("_") and name != "TYPE_CHECKING"}


def test_all_says_what_there_is() -> None:
    wrong: list[str] = []
    for module in modules():
        path = Path(module.__file__ or "")
        declared: list[str] | None = getattr(module, "__all__", None)
        if declared is None:
            if path.name == "__init__.py" and defined(path):
                wrong.append(f"{module.__name__}: a package that defines names needs __all__")
            continue
        if len(declared) != len(set(declared)):
            wrong.append(f"{module.__name__}: __all__ names something twice")
        wrong += [f"{module.__name__}: __all__ promises {name}" for name in declared if not hasattr(module, name)]
        wrong += [f"{module.__name__}: __all__ forgets {name}" for name in sorted(defined(path) - set(declared))]
    assert not wrong, "\n".join(wrong)


def test_everything_public_has_a_docstring() -> None:
    bare: list[str] = []
    for module in modules():
        for name in getattr(module, "__all__", ()) if hasattr(module, "__path__") else ():
            value = getattr(module, name)
            ours = str(getattr(value, "__module__", "")).split(".")[0] == "interlock"
            if ours and (inspect.isclass(value) or inspect.isfunction(value)) and not vars(value).get("__doc__", value.__doc__):
                bare.append(f"{value.__module__}.{name}")
    assert not bare, "\n".join(sorted(set(bare)))


def python(code: str, *, cwd: Path = ROOT) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_importing_the_package_loads_nothing_heavy() -> None:
    loaded = set(python("import sys, interlock; print(*sys.modules)").split())
    assert {name for name in loaded if name.startswith("interlock")} == {"interlock"}
    assert loaded.isdisjoint({"asyncio", "aiohttp", "msgspec", "pydantic", "sqlite3", "typing_extensions"})


def test_touching_the_agent_loads_no_heavy_library() -> None:
    loaded = set(python("import sys, interlock; interlock.Agent; print(*sys.modules)").split())
    assert loaded.isdisjoint({"aiohttp", "docstring_parser", "pydantic", "rich", "sqlite3", "typer"})
    assert not {name for name in loaded if name.startswith(("interlock.providers.", "interlock.shells", "interlock.testing"))}


def test_importing_every_module_does_nothing_else(tmp_path: Path) -> None:
    code = """
import importlib, pkgutil, threading, interlock
for info in pkgutil.walk_packages(interlock.__path__, "interlock."):
    if not info.name.endswith(".__main__"):
        importlib.import_module(info.name)
assert threading.active_count() == 1, threading.enumerate()
"""
    assert python(code, cwd=tmp_path) == ""
    assert list(tmp_path.iterdir()) == []


def project_files() -> Iterator[Path]:
    """Every file that belongs to the project, caches and the virtual environment left out."""
    for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "mkdocs.yml", "pyproject.toml"):
        yield ROOT / name
    for folder in (".ci", "src", "tests", "docs", "examples", "scripts", "mutants"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc":
                yield path


def test_no_file_of_the_project_is_ignored_by_git() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    paths = "\0".join(str(path.relative_to(ROOT)) for path in project_files())
    done = subprocess.run(
        ["git", "check-ignore", "--no-index", "-z", "--stdin"], input=paths, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, f"ignored: {done.stdout.split(chr(0))} {done.stderr}"


def test_no_file_names_a_place_on_somebodys_machine() -> None:
    place = re.compile(r"(?<![\w.])/(?:home|Users|root|work)/\w")
    found: list[str] = []
    for path in project_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}: {match.group()}" for match in place.finditer(text)]
    assert not found, "\n".join(found)


def test_every_mutant_can_be_applied() -> None:
    """The quick half of `make mutants`: each text to replace is there exactly once, and the tests that should notice exist."""
    entries = [entry for path in sorted((ROOT / "mutants").glob("*.toml")) for entry in tomllib.loads(path.read_text("utf-8"))["mutant"]]
    stale = [entry["id"] for entry in entries if (ROOT / entry["file"]).read_text("utf-8").count(entry["old"]) != 1]
    assert not stale
    tests = {test for entry in entries for test in ([entry["tests"]] if isinstance(entry["tests"], str) else entry["tests"])}
    assert not [test for test in sorted(tests) if not _exists(test)]


def _exists(test: str) -> bool:
    path, _, name = test.partition("::")
    name = name.partition("[")[0].rpartition("::")[2]
    return (ROOT / path).exists() and (not name or f"def {name}(" in (ROOT / path).read_text("utf-8"))


def test_documented_make_commands_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")):
        used = set(re.findall(r"(?:^|`)make ([a-z-]+)", path.read_text(encoding="utf-8"), re.MULTILINE))
        assert used <= targets, f"{path.name}: make {used - targets}"


def test_the_first_screen_of_the_readme_has_the_two_commands() -> None:
    first_screen = "\n".join((ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:30])
    assert "make run" in first_screen
    assert "make test" in first_screen


def test_the_extra_all_is_everything() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    union = {requirement for name, extra in extras.items() if name not in {"all", "dev", "docs", "local"} for requirement in extra}
    assert set(extras["all"]) == union
    assert set(extras["docs"]) <= set(extras["dev"]), "the tests build the site"
