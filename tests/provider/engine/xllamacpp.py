"""What the child of a LocalModel needs of xllamacpp, without a model: it says what the file and the prompt tell it to.

A file that goes on with ``broken``, ``huge`` or ``killed`` fails to load as llama.cpp does. The last line of a request's last message
is what is said, in pieces of one character; ``hold`` says one piece and then nothing until the client has left, which it tells by
creating the file beside the model; ``die`` kills the process in the middle.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def CommonParams() -> Any:
    return SimpleNamespace(
        model=SimpleNamespace(path=""), cpuparams=SimpleNamespace(n_threads=-1), cpuparams_batch=SimpleNamespace(n_threads=-1)
    )


def json_schema_to_grammar(schema: str) -> str:
    return "%llguidance {}\nstart: %json " + schema


class Server:
    def __init__(self, params: Any) -> None:
        self.path = Path(params.model.path)
        match self.path.read_bytes()[4:]:
            case b"broken":
                self._fail("llama_model_load: error loading model: data is not within the file bounds", "srv: failed to load model")
            case b"huge":
                self._fail(
                    "ggml_aligned_malloc: insufficient memory (attempted to allocate 9 MB)", "common_init_: failed to create context"
                )
            case b"killed":
                os.kill(os.getpid(), signal.SIGKILL)
            case b"slow":
                threading.Event().wait()
        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self.path, params))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.listening_address = f"http://127.0.0.1:{server.server_address[1]}"

    def _fail(self, *errors: str) -> None:
        for error in errors:
            sys.stderr.write(f"0.00.004.274 E {error}\n")
        sys.stderr.flush()
        raise RuntimeError("Failed to init server, please check the input params.")


def _handler(path: Path, params: Any) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.0"  # the end of the connection is the end of the reply

        def log_message(self, *_: Any) -> None:
            pass

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.headers["Authorization"] != f"Bearer {params.api_keys[0]}":
                return self.send_error(401)
            said = body["messages"][-1]["content"].splitlines()[-1]
            if said == "too long":
                fault = {
                    "code": 400,
                    "message": "request (9 tokens) exceeds the available context size",
                    "type": "exceed_context_size_error",
                }
                return self._whole(400, {"error": fault})
            if said == "params":
                shown = {name: value for name, value in vars(params).items() if isinstance(value, (int, str, list))}
                said = json.dumps(
                    {
                        **shown,
                        "threads": params.cpuparams.n_threads,
                        "grammar": body.get("grammar", ""),
                        "connection": self.headers["Connection"],
                    }
                )
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            for piece in said:
                self._say({"content": piece})
                if said == "die":
                    os.kill(os.getpid(), signal.SIGKILL)
                if said == "hold":
                    self.connection.recv(1)  # b"" or an error: the client has left
                    path.with_name("left").touch()
                    return None
            self._say({}, finish="stop")
            self.wfile.write(b"data: [DONE]\n\n")
            return None

        def _say(self, delta: dict[str, Any], finish: str | None = None) -> None:
            chunk = {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
            self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")

        def _whole(self, status: int, value: Any) -> None:
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler
