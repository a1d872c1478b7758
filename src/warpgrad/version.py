"""The version, and the commit of this source, read from git's files without running anything.

Only a checkout of this project counts: the folder that contains `src/warpgrad` and a pyproject.toml of this name. A
package inside another repository, for example in a virtual environment there, does not count. A wheel contains the
commit it was built from in `commit.txt`. Nothing is imported from the package, because the build uses this file.
"""

from __future__ import annotations

import hashlib
import re
import struct
import zlib
from pathlib import Path

__version__ = "0.3.0.dev0"

FILE = "commit.txt"
CHANGED = "+changes"
_REF = re.compile(r"[0-9a-f]{40}")
_LINK, _SUBMODULE = 0o120000, 0o160000


def commit(package: Path = Path(__file__).parent) -> str | None:
    """Return the commit of the source, with a mark if it was changed, or None if it cannot be determined."""
    if (package / FILE).is_file():
        text = (package / FILE).read_text(encoding="ascii", errors="replace").strip()
        return text if _REF.fullmatch(text.removesuffix(CHANGED)) else None
    root = package.parent.parent
    if package.parent.name != "src" or not _is_ours(root / "pyproject.toml"):
        return None
    try:
        folder, common = _repository(root)
        head = _head(folder, common)
        return head + ("" if _is_clean(root, folder, common, head) else CHANGED)
    except (OSError, RuntimeError, ValueError, LookupError, struct.error, zlib.error):
        return None  # not a checkout, one in a format that is not supported here, or a loop of links


def _is_ours(file: Path) -> bool:
    return (
        file.is_file() and re.search(r'^name = "warpgrad"$', file.read_text(encoding="utf-8"), re.MULTILINE) is not None
    )


def _repository(root: Path) -> tuple[Path, Path]:
    """Return the git folder of this checkout, and the one that all worktrees of the repository share."""
    folder = root / ".git"
    if folder.is_file():  # a worktree: the file says where
        folder = (root / folder.read_text().removeprefix("gitdir:").strip()).resolve()
    common = folder / "commondir"
    return folder, (folder / common.read_text().strip()).resolve() if common.is_file() else folder


def _head(folder: Path, common: Path) -> str:
    text = (folder / "HEAD").read_text().strip()
    for _ in range(5):
        if _REF.fullmatch(text):
            return text
        name = text.removeprefix("ref:").strip()
        if not name.startswith("refs/") or ".." in name:
            break
        loose = [place / name for place in (folder, common) if (place / name).is_file()]
        text = loose[0].read_text().strip() if loose else _packed_ref(common, name)
    raise ValueError("HEAD names no commit")


def _packed_ref(common: Path, name: str) -> str:
    for line in (common / "packed-refs").read_text().splitlines():
        if line.endswith(f" {name}"):
            return line.split()[0]
    raise LookupError(name)


def _is_clean(root: Path, folder: Path, common: Path, head: str) -> bool:
    """Return whether the tracked files are those of the commit, comparing files with index and index with commit."""
    entries = _index((folder / "index").read_bytes())
    if _tree([(path.split("/"), mode, blob) for path, mode, blob in entries]).hex() != _tree_of(common, head):
        return False
    return all(_blob(root / path, mode) in (blob, None) for path, mode, blob in entries)


def _blob(path: Path, mode: int) -> bytes | None:
    """Return git's object name of a file's content, or None for a submodule."""
    if mode == _SUBMODULE:
        return None
    if mode == _LINK:
        data = str(path.readlink()).encode() if path.is_symlink() else b""
    else:
        data = path.read_bytes() if path.is_file() else b"\0"  # a missing file must match no content that git knows
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).digest()


def _index(data: bytes) -> list[tuple[str, int, bytes]]:
    """Return path, mode and blob of every tracked file."""
    magic, version, count = struct.unpack(">4sII", data[:12])
    if magic != b"DIRC" or version not in (2, 3, 4):
        raise ValueError("an index of another kind")
    entries, place, previous = [], 12, b""
    for _ in range(count):
        mode = int.from_bytes(data[place + 24 : place + 28], "big")
        blob, flags = data[place + 40 : place + 60], data[place + 60 : place + 62]
        begin = place + 62 + (2 if flags[0] & 0x40 else 0)
        if version == 4:  # names are stored relative to the previous one
            cut, begin = _varint(data, begin)
            end = data.index(b"\0", begin)
            name = previous[: len(previous) - cut] + data[begin:end]
            place = end + 1
        else:
            end = data.index(b"\0", begin)
            name = data[begin:end]
            place += (end - place) // 8 * 8 + 8
        if flags[0] & 0x30:
            raise ValueError("a merge is under way")
        entries.append((name.decode(), mode, blob))
        previous = name
    return entries


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """Decode a variable-length integer of an index or a pack, and return it with the position after it."""
    value = data[place] & 0x7F
    while data[place] & 0x80:
        place += 1
        value = ((value + 1) << 7) | (data[place] & 0x7F)
    return value, place + 1


def _tree(entries: list[tuple[list[str], int, bytes]]) -> bytes:
    """Return git's object name of a folder with these files below it."""
    parts: dict[str, list[tuple[list[str], int, bytes]]] = {}
    rows: list[tuple[bytes, bytes]] = []
    for path, mode, blob in entries:
        if len(path) == 1:
            rows.append((path[0].encode(), b"%o %s\0" % (mode, path[0].encode()) + blob))
        else:
            parts.setdefault(path[0], []).append((path[1:], mode, blob))
    for name, below in parts.items():
        rows.append((name.encode() + b"/", b"40000 %s\0" % name.encode() + _tree(below)))
    data = b"".join(row for _, row in sorted(rows))
    return hashlib.sha1(b"tree %d\0" % len(data) + data, usedforsecurity=False).digest()


def _tree_of(common: Path, head: str) -> str:
    line = _object(common, head).split(b"\n", 1)[0]
    if not line.startswith(b"tree "):
        raise ValueError("a commit without a tree")
    return line[5:].decode()


def _object(common: Path, name: str) -> bytes:
    """Return the content of an object, loose or packed."""
    loose = common / "objects" / name[:2] / name[2:]
    if loose.is_file():
        return zlib.decompress(loose.read_bytes()).split(b"\0", 1)[1]
    for index in sorted((common / "objects" / "pack").glob("*.idx")):
        if (offset := _offset(index.read_bytes(), bytes.fromhex(name))) is not None:
            return _unpacked(common, index.with_suffix(".pack").read_bytes(), offset)
    raise LookupError(name)


def _offset(index: bytes, name: bytes) -> int | None:
    """Return the offset of an object in its pack, or None if it is not there."""
    if index[:8] != b"\xfftOc\0\0\0\2":
        raise ValueError("a pack of another kind")
    count = int.from_bytes(index[8 + 255 * 4 : 8 + 256 * 4], "big")
    names = 8 + 256 * 4
    first = int.from_bytes(index[8 + (name[0] - 1) * 4 : 8 + name[0] * 4], "big") if name[0] else 0
    last = int.from_bytes(index[8 + name[0] * 4 : 12 + name[0] * 4], "big")
    for place in range(first, last):
        if index[names + 20 * place : names + 20 * place + 20] == name:
            at = names + 24 * count + 4 * place
            offset = int.from_bytes(index[at : at + 4], "big")
            if offset & 0x80000000:
                at = names + 28 * count + 8 * (offset & 0x7FFFFFFF)
                offset = int.from_bytes(index[at : at + 8], "big")
            return offset
    return None


def _unpacked(common: Path, pack: bytes, offset: int) -> bytes:
    place = offset
    kind, more = pack[place] >> 4 & 7, pack[place] & 0x80
    while more:
        place += 1
        more = pack[place] & 0x80
    place += 1
    if kind == 6:  # a delta against an earlier object in the pack
        back, place = _varint(pack, place)
        return _patched(_unpacked(common, pack, offset - back), zlib.decompressobj().decompress(pack[place:]))
    if kind == 7:  # a delta against an object given by its name
        base = _object(common, pack[place : place + 20].hex())
        return _patched(base, zlib.decompressobj().decompress(pack[place + 20 :]))
    return zlib.decompressobj().decompress(pack[place:])


def _patched(base: bytes, delta: bytes) -> bytes:
    """Apply a delta: runs of bytes copied from the base, and new ones."""
    place = 0
    for _ in range(2):  # the sizes of base and result
        while delta[place] & 0x80:
            place += 1
        place += 1
    found = bytearray()
    while place < len(delta):
        code = delta[place]
        place += 1
        if code & 0x80:
            values = []
            for bits in (range(4), range(4, 7)):
                value = 0
                for shift, bit in enumerate(bits):
                    if code & (1 << bit):
                        value |= delta[place] << (8 * shift)
                        place += 1
                values.append(value)
            begin, size = values[0], values[1] or 0x10000
            found += base[begin : begin + size]
        else:
            found += delta[place : place + code]
            place += code
    return bytes(found)
