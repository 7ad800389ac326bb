"""Downloads, from a server of our own on this machine."""

import hashlib
import http.server
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tasks"))
import samples
from reservoir_pipelines import prepare
from reservoir_pipelines.preparation import prepare as module
from reservoir_pipelines.preparation.prepare import FILES, Remote, download

from reservoir.errors import InputError


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves a folder, with ranges; breaks off after ``most`` bytes of each answer."""

    most = 10**9
    ranges = True
    log: list[tuple[str, int]] = []  # noqa: RUF012

    def do_GET(self):
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            self.send_error(404)
            return
        data = path.read_bytes()
        start = int(self.headers["Range"][6:-1]) if self.ranges and self.headers["Range"] else 0
        self.log.append((path.name, start))
        if start >= len(data):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        self.wfile.write(data[start : start + self.most])

    def log_message(self, *_):
        pass


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Return the address of a server, its folder and its handler; MNIST's known sums are those of our small files."""
    folder = tmp_path / "served"
    samples.mnist_files(folder, packed=True)
    handler = type("Fresh", (Handler,), {"log": []})
    served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=folder))
    threading.Thread(target=served.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{served.server_port}"
    files = tuple(
        Remote(remote.name, hashlib.sha256((folder / remote.name).read_bytes()).hexdigest(), (address,))
        for remote in FILES["mnist"]
    )
    monkeypatch.setitem(FILES, "mnist", files)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    yield address, folder, handler
    served.shutdown()
    served.server_close()


def test_a_task_is_downloaded_once_and_prepared(server, cache):
    _, _, handler = server
    prepared = prepare("mnist", fetch=True)
    assert sum(prepared.rows.values()) == 72
    assert len(handler.log) == 4
    assert prepare("mnist", fetch=True).reused and len(handler.log) == 4
    assert not list((cache / "downloads" / "mnist").glob("*.part"))


@pytest.mark.parametrize("ranges", [True, False])
def test_an_interrupted_download_continues(server, cache, ranges, monkeypatch):
    _, folder, handler = server
    name = FILES["mnist"][0].name
    size = (folder / name).stat().st_size
    monkeypatch.setattr(handler, "most", size // 2)
    monkeypatch.setattr(module, "BLOCK", 512)
    with pytest.raises(InputError, match=name):
        download("mnist")
    part = cache / "downloads" / "mnist" / f"{name}.part"
    here = part.stat().st_size
    assert size // 2 - 512 < here <= size // 2 and not part.with_suffix("").exists()
    monkeypatch.setattr(handler, "most", 10**9)
    monkeypatch.setattr(handler, "ranges", ranges)
    handler.log.clear()
    where = download("mnist")
    assert handler.log[0] == (name, here if ranges else 0)
    assert (where / name).read_bytes() == (folder / name).read_bytes()


def test_files_with_a_wrong_checksum_are_never_used(server, cache, tmp_path):
    _, folder, _ = server
    name = FILES["mnist"][1].name
    (folder / name).write_bytes((folder / name).read_bytes()[::-1])
    with pytest.raises(InputError, match=f"{name}.*checksum mismatch"):
        download("mnist")
    assert not (cache / "downloads" / "mnist" / name).exists()
    assert not list((cache / "downloads" / "mnist").glob("*.part"))


def test_mirrors_are_tried_before_the_publisher(server, cache):
    address, folder, handler = server
    (folder / "copy").mkdir()
    for remote in FILES["mnist"][:2]:
        (folder / "copy" / remote.name).write_bytes((folder / remote.name).read_bytes())
    download("mnist", mirrors=[f"{address}/copy/"])
    assert len(handler.log) == 4, "two from the mirror, two missing there"


def test_a_failed_download_says_what_to_do(server, cache):
    with pytest.raises(InputError, match=r"'homology' cannot be downloaded.*--data DIR"):
        download("homology")
    _, folder, _ = server
    (folder / FILES["mnist"][3].name).unlink()
    with pytest.raises(InputError, match=r"404.*--data DIR"):
        download("mnist")
