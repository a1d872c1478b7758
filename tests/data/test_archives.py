"""Archives and downloads: what is read, and what is refused and why."""

from __future__ import annotations

import hashlib
import http.server
import os
import stat
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.omniglot_archives import packed
from warpgrad.data import Limits, find_archives, open_tree
from warpgrad.data.download import download
from warpgrad.errors import WarpgradError


def refused(path: Path, limits: Limits | None = None) -> str:
    with pytest.raises(WarpgradError) as caught, open_tree(path, limits):
        pass
    return str(caught.value)


def test_a_zip_and_a_folder_give_the_same_sorted_files(tmp_path):
    files = {"top/b/2.txt": b"two", "top/a/1.txt": b"one", "top/b/10.txt": b"ten"}
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    archive = packed(tmp_path / "top.zip", {"top/": b"", **files})
    for place in (archive, tmp_path / "top"):
        with open_tree(place) as tree:
            assert tree.names == ("top/a/1.txt", "top/b/10.txt", "top/b/2.txt")
            assert {name: tree.read(name) for name in tree.names} == files


def test_a_link_to_a_folder_is_followed_unless_it_leads_in_a_circle(tmp_path):
    for name in ("top/a/1.txt", "elsewhere/2.txt"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "top" / "b").symlink_to("../elsewhere")
    with open_tree(tmp_path / "top") as tree:
        assert tree.names == ("top/a/1.txt", "top/b/2.txt")
    (tmp_path / "top" / "c").symlink_to(".")
    assert "is a link to a folder that is read anyway: remove it" in refused(tmp_path / "top")


def test_a_folder_that_cannot_be_listed_is_refused(tmp_path, monkeypatch):
    (tmp_path / "top" / "a").mkdir(parents=True)
    scan = os.scandir

    def forbidden(path):
        if Path(path).name == "a":
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", forbidden)  # permissions do not stop root
    assert f"the folder {tmp_path / 'top' / 'a'} cannot be read: Permission denied" in refused(tmp_path / "top")


@pytest.mark.parametrize(
    "name", ["../up.png", "a/../../up.png", "/etc/absolute.png", "a\\..\\b.png", "C:/drive.png", ".."]
)
def test_names_that_lead_elsewhere_are_refused(tmp_path, name):
    message = refused(packed(tmp_path / "evil.zip", {"fine.png": b"", name: b"x"}))
    assert "is refused" in message
    assert "points out of the archive" in message or "not a plain relative path" in message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["evil.zip"]


def test_links_encryption_and_doubles_are_refused(tmp_path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        link = zipfile.ZipInfo("link.png")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
    assert "is a link or a device" in refused(path)
    raw = bytearray(packed(path, {"secret.png": b"x"}).read_bytes())
    raw[raw.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(raw)
    assert "is encrypted" in refused(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("one.png", b"1")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("one.png", b"2")
    assert "appears twice" in refused(path)


def test_bombs_are_refused_before_anything_is_unpacked(tmp_path):
    path = packed(tmp_path / "bomb.zip", {f"{index}.png": bytes(1000) for index in range(5)})
    assert "holds 5 files, more than the limit of 4" in refused(path, Limits(files=4))
    assert "unpacks to 1000 bytes, more than the limit of 999" in refused(path, Limits(file_bytes=999))
    assert "more than the limit of 4999 bytes" in refused(path, Limits(total_bytes=4999))
    with open_tree(path, Limits(files=5, file_bytes=1000, total_bytes=5000)) as tree:
        assert len(tree.names) == 5


def test_a_member_never_yields_more_than_it_declares(tmp_path):
    """The declared size is what the limits are held against; a lie about it is a damage, not a way around."""
    path = packed(tmp_path / "lie.zip", {"a.png": bytes(100_000)})
    raw = bytearray(path.read_bytes())
    place = raw.index(b"PK\x01\x02")
    raw[place + 24 : place + 28] = (10).to_bytes(4, "little")
    path.write_bytes(raw)
    with open_tree(path) as tree, pytest.raises(WarpgradError, match=r"is damaged at 'a\.png'"):
        tree.read("a.png")


def test_damaged_zips_are_named(tmp_path):
    path = packed(tmp_path / "a.zip", {"a.png": os.urandom(5000), "b.png": b"fine"})
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert "is not a complete zip archive" in refused(path)
    path.write_bytes(b"<html>not found</html>")
    assert "is not a complete zip archive" in refused(path)
    flipped = bytearray(whole)
    flipped[2000] ^= 0xFF
    path.write_bytes(flipped)
    with open_tree(path) as tree:
        assert tree.read("b.png") == b"fine"
        with pytest.raises(WarpgradError, match=r"is damaged at 'a\.png' .*: download it again"):
            tree.read("a.png")


def test_finding_archives_or_saying_where_to_get_them(tmp_path, monkeypatch):
    wanted = {"names": ["one", "two"], "subfolder": "both", "origin": "their maker's page"}
    monkeypatch.delenv("WARPGRAD_DATA", raising=False)
    with pytest.raises(WarpgradError, match=r"WARPGRAD_DATA is not set: get one\.zip and two\.zip from their maker"):
        find_archives(**wanted)
    with pytest.raises(WarpgradError, match="nowhere does not exist"):
        find_archives(**wanted, folder=tmp_path / "nowhere")
    (tmp_path / "both").mkdir()
    (tmp_path / "both" / "one.zip").touch()
    with pytest.raises(WarpgradError, match=r"two\.zip not found in"):
        find_archives(**wanted, folder=tmp_path)
    (tmp_path / "two").mkdir()
    expected = [tmp_path / "both" / "one.zip", tmp_path / "two"]
    assert find_archives(**wanted, folder=tmp_path) == expected
    monkeypatch.setenv("WARPGRAD_DATA", str(tmp_path))
    assert find_archives(**wanted) == expected
    (tmp_path / "two.zip").touch()
    assert find_archives(**wanted)[1] == tmp_path / "two.zip", "the archive before the folder"


# The download.

CONTENT = bytes(range(256)) * 4000


SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def server() -> Iterator[tuple[str, list[str]]]:
    """A web server on this machine with one file, and the paths it was asked for."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            if self.path == "/missing.zip":
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(CONTENT)))
            self.end_headers()
            self.wfile.write(CONTENT[: 1000 if self.path == "/cut.zip" else None])

        def log_message(self, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}", asked
        running.shutdown()
        thread.join()


def test_a_download_is_verified_and_made_once(server, tmp_path):
    address, asked = server
    seen: list[tuple[int, int | None]] = []
    target = tmp_path / "new" / "file.zip"
    assert download(f"{address}/file.zip", SHA256, target, lambda *numbers: seen.append(numbers)) == target
    assert target.read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert len(seen) > 1
    download(f"{address}/file.zip", SHA256, target)
    assert asked == ["/file.zip"]
    assert [path.name for path in target.parent.iterdir()] == ["file.zip"]


def test_what_is_not_what_was_asked_for_is_thrown_away(server, tmp_path):
    address, _ = server
    target = tmp_path / "file.zip"
    target.write_bytes(b"what was here before")
    for name in ("other", "cut"):
        with pytest.raises(WarpgradError, match=r"could not be downloaded|has the checksum"):
            download(f"{address}/{name}.zip", SHA256 if name == "cut" else "0" * 64, target)
    with pytest.raises(WarpgradError, match="404"):
        download(f"{address}/missing.zip", SHA256, target)
    with pytest.raises(WarpgradError, match="only http and https"):
        download(target.as_uri(), SHA256, target)
    assert target.read_bytes() == b"what was here before"
    assert [path.name for path in tmp_path.iterdir()] == ["file.zip"]
