"""The program of the process in which a GGUF file runs: it reads its settings from standard input, serves, and ends with it.

``local_server`` starts this file by its path, with the starter's own ``sys.path``. It imports nothing of Interlock.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from typing import Any

__all__ = ["READY", "main"]

READY = "interlock-ready "
"""How the line begins that says where the server listens."""


def main() -> None:
    """Serve until standard input ends, which is when the process that started this one is gone, however it ended."""
    settings: dict[str, Any] = json.loads(sys.stdin.readline())
    sys.path[:] = settings["path"]
    engine: Any = import_module("xllamacpp")
    params: Any = engine.CommonParams()
    params.model.path = settings["model"]
    params.n_parallel = settings["parallel"]
    params.n_ctx = settings["context"] * settings["parallel"]
    if settings["threads"] is not None:
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings["threads"]
    if settings["gpu_layers"] is not None:
        params.n_gpu_layers = settings["gpu_layers"]
    params.fit_params = False  # it would make the context smaller than was asked for, and say nothing
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [settings["key"]]  # any page in a browser can reach a port of this machine
    params.cors_origins = ""
    params.ui = False
    params.warmup = False
    params.prefill_assistant = False  # the last message is answered, whoever's it is
    params.verbosity = 2  # warnings and errors
    try:
        server = engine.Server(params)
    except RuntimeError as error:
        sys.exit(str(error))  # why is in its log
    llguidance = str(engine.json_schema_to_grammar("{}")).startswith("%llguidance")
    sys.stdout.write(READY + json.dumps({"url": server.listening_address, "llguidance": llguidance}) + "\n")
    sys.stdout.flush()
    sys.stdin.read()
    os._exit(0)  # at once: nothing here is worth saving


if __name__ == "__main__":
    main()
