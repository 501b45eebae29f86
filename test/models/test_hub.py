"""Hub ids: real caches and a real server on this machine, no network."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from photon_ros.core.errors import ModelError
from photon_ros.models.moondream.checkpoint import load_checkpoint
from photon_ros.models.moondream.hub import NEW_TOKENIZER_ID, PINNED_REVISIONS, locate

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub, which itself cannot be reached."""
    folder = tmp_path / "hub"
    folder.mkdir()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return folder


def put(cache: Path, repo_id: str, revision: str, files: dict[str, bytes]) -> Path:
    """Put files into a cache as a download of them would have; return their folder."""
    repo = cache / ("models--" + repo_id.replace("/", "--"))
    snapshot = repo / "snapshots" / COMMIT
    snapshot.mkdir(parents=True, exist_ok=True)
    (repo / "refs").mkdir(exist_ok=True)
    (repo / "refs" / revision).write_text(COMMIT)
    for name, content in files.items():
        (snapshot / name).write_bytes(content)
    return snapshot


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_a_folder_and_a_file_are_where_they_are(tiny_folder: Path) -> None:
    assert locate(tiny_folder).folder == tiny_folder
    assert locate(str(tiny_folder / "model.safetensors")).folder.name == "model.safetensors"
    assert locate(tiny_folder).tokenizer is None


def test_what_is_no_hub_id_is_left_to_the_loader_to_refuse() -> None:
    for name in ("./not/there", "/not/there", "a/b/c", "nowhere"):
        assert locate(name).folder == Path(name)
    with pytest.raises(ModelError, match="no model at nowhere"):
        load_checkpoint(locate("nowhere").folder)


def test_a_folder_has_no_revision(tiny_folder: Path) -> None:
    with pytest.raises(ModelError, match="not on a hub, so it has no revision 'main'"):
        locate(tiny_folder, "main")


def test_a_cached_model_is_used_without_a_network(cache: Path, tiny_folder: Path) -> None:
    snapshot = put(cache, "somebody/tiny", "main", contents(tiny_folder))
    found = locate("somebody/tiny")
    assert found.folder == snapshot
    assert found.tokenizer is None
    assert load_checkpoint(found.folder).config.text.dim == 32


def test_a_cached_revision_is_found_by_its_name_and_by_its_commit(
    cache: Path, tiny_folder: Path
) -> None:
    snapshot = put(cache, "somebody/tiny", "2025-01-09", contents(tiny_folder))
    assert locate("somebody/tiny", "2025-01-09").folder == snapshot
    assert locate("somebody/tiny", COMMIT).folder == snapshot


def test_a_known_model_is_taken_at_the_revision_made_for(cache: Path, tiny_folder: Path) -> None:
    (name,) = PINNED_REVISIONS
    snapshot = put(cache, name, PINNED_REVISIONS[name], contents(tiny_folder))
    assert locate(name).folder == snapshot
    with pytest.raises(ModelError, match=f"{name} at main is not a folder, not in the cache"):
        locate(name, "main")


def test_without_a_network_and_a_cache_the_message_says_what_to_do(cache: Path) -> None:
    with pytest.raises(ModelError) as refused:
        locate("somebody/tiny", "v1")
    message = str(refused.value)
    assert "somebody/tiny at v1 is not a folder, not in the cache" in message
    assert "`hf download somebody/tiny --revision v1`" in message
    assert "or give the folder of a copy" in message


def test_sources_that_name_the_newer_tokenizer_bring_it_along(
    cache: Path, tiny_folder: Path, tokenizer_json: str
) -> None:
    files = contents(tiny_folder)
    files["moondream.py"] = f'tokenizer = from_pretrained("{NEW_TOKENIZER_ID}")'.encode()
    put(cache, "somebody/tiny", "main", files)
    with pytest.raises(ModelError, match=f"{NEW_TOKENIZER_ID} is not a folder, not in the cache"):
        locate("somebody/tiny")
    put(cache, NEW_TOKENIZER_ID, "main", {"tokenizer.json": tokenizer_json.encode()})
    found = locate("somebody/tiny")
    assert found.tokenizer is not None
    assert found.tokenizer.encode("red cup")
    loaded = load_checkpoint(found.folder, tokenizer=found.tokenizer)
    assert loaded.prompting.tokenizer is found.tokenizer


class Hub(http.server.BaseHTTPRequestHandler):
    """The few answers of the hub that a download needs."""

    files: dict[str, bytes]
    status = 200

    def log_message(self, *arguments: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(send_body=False)

    def do_GET(self) -> None:
        self._answer(send_body=True)

    def _answer(self, *, send_body: bool) -> None:
        path = self.path.partition("?")[0]
        if self.status != 200:
            self._send(self.status, {"X-Error-Code": "RepoNotFound"}, b"")
        elif path.startswith("/api/models/somebody/tiny"):
            body: object = {
                "id": "somebody/tiny",
                "sha": COMMIT,
                "siblings": [{"rfilename": name} for name in self.files],
            }
            if "/tree/" in path:
                body = [
                    {"type": "file", "path": name, "size": len(content), "oid": f"{number:040x}"}
                    for number, (name, content) in enumerate(self.files.items())
                ]
            self._send(200, {"Content-Type": "application/json"}, json.dumps(body).encode())
        else:
            content = self.files[path.rsplit("/", 1)[-1]]
            headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{hash(content) & 0xFFFFFFFF:x}"'}
            self._send(200, headers, content, send_body=send_body)

    def _send(
        self, status: int, headers: dict[str, str], body: bytes, *, send_body: bool = True
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if send_body:
            self.wfile.write(body)


@pytest.fixture
def server(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    served = type("ServedHub", (Hub,), {"files": {}})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), served) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{running.server_port}")
        monkeypatch.setattr(
            constants,
            "HUGGINGFACE_CO_URL_TEMPLATE",
            constants.ENDPOINT + "/{repo_id}/resolve/{revision}/{filename}",
        )
        yield served
        running.shutdown()
        thread.join()


def test_what_is_not_cached_is_downloaded_once_and_only_what_is_needed(
    server: type[Hub], tiny_folder: Path
) -> None:
    server.files = contents(tiny_folder) | {"pytorch_model.bin": b"pickle", "README.md": b"..."}
    found = locate("somebody/tiny")
    assert set(contents(found.folder)) == set(contents(tiny_folder))
    assert load_checkpoint(found.folder).config.text.dim == 32
    server.status = 500
    assert locate("somebody/tiny").folder == found.folder


def test_a_model_that_the_hub_does_not_have_is_said_to_be_nowhere(server: type[Hub]) -> None:
    server.status = 404
    with pytest.raises(ModelError, match="there is no somebody/nothing: neither a folder"):
        locate("somebody/nothing")
