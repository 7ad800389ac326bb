"""Models of the hub: download, cache, and one-line errors if the hub does not answer."""

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from reservoir.backbone_names import SHORT
from reservoir.backbones import names
from reservoir.errors import InputError
from reservoir.reservoir import full_name

COMMIT = "0123456789abcdef0123456789abcdef01234567"
# Prints a line for each NAME=INIT: the digest of the weights or the error.
SCRIPT = """
import json, sys
from reservoir.backbones import load_backbone, weights_digest
from reservoir.errors import InputError
for asked in sys.argv[1:]:
    try:
        answer = weights_digest(load_backbone(*asked.split("=")))
    except InputError as error:
        answer = str(error)
    print(json.dumps([asked, answer]))
"""
NOWHERE = "http://127.0.0.1:9"  # nothing listens there


def ask(endpoint, home, *asked):
    """Load backbones in another process; return what came of each, and stderr."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    environment |= {"HF_HOME": str(home), "HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_XET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *asked], capture_output=True, text=True, env=environment, check=True
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return dict(lines), done.stderr


@pytest.fixture
def hub(tiny_gpt2):
    """Serve the files of a model folder as tiny/gpt2, as the hub does; return the address."""

    class Answer(BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.reply(body=False)

        def do_GET(self):
            self.reply(body=True)

        def reply(self, body):
            path = self.path.split("?")[0]
            file = tiny_gpt2 / path.rpartition("/")[2]
            data, code = b"", 404
            if path.startswith("/api/models/tiny/gpt2"):
                names = [{"rfilename": p.name} for p in tiny_gpt2.iterdir()]
                data, code = json.dumps({"id": "tiny/gpt2", "sha": COMMIT, "siblings": names}).encode(), 200
            elif path.startswith("/tiny/gpt2/resolve/") and file.is_file():
                data, code = file.read_bytes(), 200
            self.send_response(code)
            if code == 200:
                self.send_header("ETag", f'"{file.name}"')
                self.send_header("X-Repo-Commit", COMMIT)
            elif path.startswith("/tiny/gpt2/"):
                self.send_header("X-Error-Code", "EntryNotFound")
            else:
                self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if body:
                self.wfile.write(data)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_hub_models_load_from_the_cache_without_a_network(tmp_path, tiny_gpt2, hub):
    name, folder = "tiny/gpt2=pretrained", f"{tiny_gpt2}=pretrained"
    answers, err = ask(hub, tmp_path, name, "tiny/other=pretrained")
    digest = answers[name]
    assert len(digest) == 64, (digest, err)
    assert "not found on the hub" in answers["tiny/other=pretrained"]
    assert err == ""
    absent = ("nosuch/one=random", "gpt2=pretrained")
    answers, err = ask(NOWHERE, tmp_path, name, folder, *absent)
    assert answers[name] == answers[folder] == digest
    assert err == "", "the one line is the error's"
    for asked in absent:
        assert f"backbone {asked.partition('=')[0]!r}" in answers[asked]
        assert "couldn't connect" in answers[asked]


@pytest.mark.parametrize(
    ("name", "message"),
    [("gtp2", "did you mean gpt2"), ("berd", "did you mean bert"), ("nothing-like-it", "no known name, and no such")],
)
def test_unknown_names_are_refused_without_a_network(name, message, monkeypatch):
    monkeypatch.setattr(names, "local_files_only", lambda _source: pytest.fail("the network was asked"))
    with pytest.raises(InputError, match=message):
        names.find(name)


def test_family_names_mean_the_base_size():
    assert {name: full_name(name) for name in SHORT} == SHORT
    assert all(known in names.KNOWN for known in SHORT.values())
