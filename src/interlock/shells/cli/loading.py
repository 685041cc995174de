"""``--agent module:factory``: the agent that a program of the user's makes, so that another process can go on with its tools."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Awaitable, Callable
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from ...agent import Agent
from ...errors import InterlockError, UsageError
from ...messages import reason_of

__all__ = ["Factory", "factory_named"]

Made = Agent | dict[str, Any]
Factory = Callable[[], Awaitable[Made]]
"""Makes an Agent, or the keywords that ``Agent.create`` takes."""


def factory_named(name: str) -> Factory:
    """The factory that ``name`` says: ``module:function`` (the working directory is looked in first) or ``path/to/file.py:function``.

    It is imported here; whatever it prints or does then is the user's own. The function, sync or async, takes nothing and returns an
    Agent or the keywords of ``Agent.create``. Raises UsageError, which names it, for everything that is not so.
    """
    where, _, attribute = name.rpartition(":")
    if not where or not attribute:
        raise UsageError(f"--agent takes module:function or file.py:function, not {name!r}")
    found: Any = _module(where, name)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise UsageError(f"--agent {name}: {where} has no {attribute}")
        found = getattr(found, part)
    if not callable(found):
        raise UsageError(f"--agent {name}: {attribute} is no function but {type(found).__name__}")
    return lambda: _made(cast("Callable[[], Any]", found), name)


def _module(where: str, name: str) -> ModuleType:
    try:
        if not where.endswith(".py"):
            if (here := os.getcwd()) not in sys.path:
                sys.path.insert(0, here)
            return import_module(where)
        path = Path(where)
        if not path.is_file():
            raise UsageError(f"--agent {name}: there is no file {where}")
        if str(path.parent.absolute()) not in sys.path:
            sys.path.insert(0, str(path.parent.absolute()))
        spec = spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[path.stem] = module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    except InterlockError:
        raise
    except Exception as error:
        raise UsageError(f"--agent {name}: {where} cannot be imported ({type(error).__name__}: {reason_of(error)})") from error


async def _made(factory: Callable[[], Any], name: str) -> Made:
    try:
        made = factory()
        if inspect.isawaitable(made):
            made = await made
    except InterlockError:
        raise
    except Exception as error:
        raise UsageError(f"--agent {name}: it raised {type(error).__name__}: {reason_of(error)}") from error
    if isinstance(made, Agent):
        return made
    if isinstance(made, dict):
        known = inspect.signature(Agent.create).parameters
        keywords = cast("dict[str, Any]", made)
        unknown = [key for key in keywords if key not in known]
        if unknown:
            raise UsageError(f"--agent {name}: Agent.create takes no {unknown[0]!r}; it takes {', '.join(known)}")
        return keywords
    raise UsageError(f"--agent {name}: an Agent or the keywords of Agent.create are needed, not {type(made).__name__}")
