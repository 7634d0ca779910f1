"""A double of the Hugging Face Hub: a loopback HTTP server that takes what the real huggingface_hub sends to make a dataset and to commit a folder.

Parquet files go the way of LFS, others stand in the commit. Xet, which the real Hub prefers for large files, is not spoken here: the client is told
so by HF_HUB_DISABLE_XET.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN, REPO = "hf_double", "me/kernels"


class Hub(ThreadingHTTPServer):
    """Serves while it is entered. `created`: what was asked for; `files`: of the commit, by path; `objects`: of LFS, None where it refuses them."""

    def __init__(self, *, refuses_objects: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.address = f"http://127.0.0.1:{self.server_address[1]}"
        self.settings = {"HF_ENDPOINT": self.address, "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1"}  # of a process whose Hub this is
        self.created: list[dict[str, Any]] = []
        self.files: dict[str, bytes] = {}
        self.objects: dict[str, bytes] | None = None if refuses_objects else {}

    def __enter__(self) -> Hub:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self.server_close()


class _Answers(BaseHTTPRequestHandler):
    server: Hub

    def do_POST(self) -> None:
        body, hub, made = self._body(), self.server, {"url": f"{self.server.address}/datasets/{REPO}", "errors": []}
        lines = [json.loads(line) for line in body.splitlines()]
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            return self._answer(401, {"error": "Invalid username or password."})
        if self.path == "/api/repos/create":
            hub.created += lines
        elif self.path == f"/api/datasets/{REPO}/preupload/main":
            modes = [(file["path"], "lfs" if file["path"].endswith(".parquet") else "regular") for file in lines[0]["files"]]
            return self._answer(200, {"files": [{"path": path, "uploadMode": mode, "shouldIgnore": False} for path, mode in modes]})
        elif self.path == f"/datasets/{REPO}.git/info/lfs/objects/batch":
            objects = [o | {"actions": {"upload": {"href": f"{hub.address}/{o['oid']}"}}} for o in lines[0]["objects"]]
            return self._answer(200, {"transfer": "basic", "objects": objects})
        elif self.path == f"/api/datasets/{REPO}/commit/main":
            for kind, value in ((line["key"], line["value"]) for line in lines[1:]):
                hub.files[value["path"]] = base64.b64decode(value["content"]) if kind == "file" else (hub.objects or {})[value["oid"]]
            return self._answer(200, {"commitUrl": f"{made['url']}/commit/{'0' * 40}", "commitOid": "0" * 40})
        elif self.path != "/api/validate-yaml":
            return self._answer(404, {"error": f"the double knows no {self.path}"})
        return self._answer(200, made)

    def do_PUT(self) -> None:
        data = self._body()
        if self.server.objects is None or hashlib.sha256(data).hexdigest() != self.path[1:]:
            return self._answer(403, {"error": "refused"})
        self.server.objects[self.path[1:]] = data
        return self._answer(200, {})

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers["Content-Length"]))

    def _answer(self, status: int, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
