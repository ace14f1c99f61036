"""push and pull against a stand-in of the Hugging Face hub on the loopback."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import numpy as np
import pytest

from robustcf.errors import DownloadError, InputError
from robustcf.recommender import Recommender
from tests.auditing.helpers import small_target

COMMIT = "a" * 40


class Hub(BaseHTTPRequestHandler):
    """One repository in memory: create, preupload, commit, list, resolve."""

    files: ClassVar[dict[str, bytes]] = {}
    private: ClassVar[list[bool]] = []

    def log_message(self, *_):
        pass

    def answer(self, data, code=200, headers=()):
        body = data if isinstance(data, bytes) else json.dumps(data).encode()
        self.send_response(code)
        for name, value in (("Content-Length", str(len(body))), *headers):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        url = f"http://{self.headers['Host']}/me/mine"
        if self.path == "/api/repos/create":
            asked = json.loads(body)
            self.private.append(asked.get("private") or asked.get("visibility") == "private")
            return self.answer({"url": url, "name": "me/mine", "id": "1"})
        if "/preupload/" in self.path:
            wanted = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False}
                for f in json.loads(body)["files"]
            ]
            return self.answer({"files": wanted})
        if "/commit/" in self.path:
            for line in body.splitlines():
                entry = json.loads(line)
                if entry["key"] == "file":
                    value = entry["value"]
                    self.files[value["path"]] = base64.b64decode(value["content"])
            facts = {
                "success": True,
                "commitOid": COMMIT,
                "commitUrl": f"{url}/commit/{COMMIT}",
            }
            return self.answer(facts)
        return self.answer({"valid": True})  # checks of the card

    def do_GET(self):
        if re.match(r"/api/models/me/mine(/revision/.*)?$", self.path.split("?")[0]):
            siblings = [{"rfilename": name} for name in self.files]
            facts = {"id": "me/mine", "sha": COMMIT, "siblings": siblings, "private": True}
            return self.answer({**facts, "tags": [], "downloads": 0, "likes": 0})
        if "/tree/" in self.path:
            told = [
                {"type": "file", "path": n, "size": len(c), "oid": hashlib.sha1(c).hexdigest()}
                for n, c in self.files.items()
            ]
            return self.answer(told)
        found = re.match(r"/me/mine/resolve/[^/]+/(.*)$", self.path.split("?")[0])
        if found and found[1] in self.files:
            content = self.files[found[1]]
            tag = f'"{hashlib.sha1(content).hexdigest()}"'
            return self.answer(content, headers=(("ETag", tag), ("X-Repo-Commit", COMMIT)))
        return self.answer({"error": "not found"}, 404, (("X-Error-Code", "RepoNotFound"),))

    do_HEAD = do_GET


@pytest.fixture
def hub(monkeypatch, tmp_path):
    pytest.importorskip("huggingface_hub")
    Hub.files, Hub.private = {}, []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_recommender_is_pushed_and_pulled(hub, tmp_path):
    model = small_target(0, labels=True)
    model.push("me/mine", card="# Mine\n", endpoint=hub, token="t", include_test=False)
    assert set(Hub.files) >= {"README.md", "recommender.json", "factors.safetensors"}
    assert Hub.files["README.md"] == b"# Mine\n"
    assert Hub.private == [True]
    back = Recommender.pull("me/mine", endpoint=hub, token="t", cache_dir=tmp_path / "cache")
    assert np.array_equal(back.factors.items.numpy(), model.factors.items.numpy())
    assert back.recommend("u3").equals(model.recommend("u3"))
    assert len(back.split.test) == 0


def test_a_repository_that_is_missing_or_holds_something_else(hub, tmp_path):
    how = {"endpoint": hub, "token": "t", "cache_dir": tmp_path / "cache"}
    with pytest.raises(DownloadError, match="other/one"):
        Recommender.pull("other/one", **how)
    with pytest.raises(DownloadError, match="download failed"):
        Recommender.pull("not a name", **how)
    Hub.files["config.json"] = b"{}"
    with pytest.raises(InputError):
        Recommender.pull("me/mine", **how)


def test_without_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InputError, match=r"robustcf\[hub\]"):
        Recommender.pull("me/mine")
