"""Labelled sentences: CLINC150 as published, and a user's own CSV or JSONL.

A prepared set is one JSON file: labels, their domains where the source has them, sentences, and sentences of no label
(out of scope). Which labels are for meta-training, validation and the test is drawn by the seed of a run, not here.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warpgrad.data.archives import VARIABLE
from warpgrad.data.prepared import CLINC, STORES
from warpgrad.data.splits import SPLITS, draw_splits
from warpgrad.errors import WarpgradError, require
from warpgrad.io import SEAL, DamagedError, read_bytes, reason, sealed, unsealed, write_bytes

FILE = "text.json"
FORMAT = 1
LONGEST = 10_000
"""The maximum number of characters of a sentence; a longer one is a sign of a broken file."""
LARGEST = 1 << 30
"""The maximum number of bytes of a file of sentences."""
SHARES = {"train": 0.6, "validation": 0.1, "test": 0.3}
"""Of the domains, or of the labels where there are no domains."""


@dataclass(frozen=True)
class Fields:
    """The names of the columns of a file."""

    text: str = "text"
    label: str = "label"
    domain: str | None = None
    """None reads the column `domain` if there is one."""


@dataclass(frozen=True)
class LabelledText:
    """A set of labelled sentences."""

    name: str
    labels: tuple[str, ...]
    domains: tuple[str, ...]
    """Of every label; empty strings where the source names none."""
    texts: tuple[str, ...]
    label_of: tuple[int, ...]
    """Of every sentence."""
    out_of_scope: tuple[str, ...]
    sha256: str
    path: Path | None = None
    """The folder it was opened from."""

    def members(self) -> list[list[int]]:
        """Return the indices of every label's sentences."""
        found: list[list[int]] = [[] for _ in self.labels]
        for place, label in enumerate(self.label_of):
            found[label].append(place)
        return found

    def has_domains(self) -> bool:
        """Return whether there are enough domains to split by: one for each split, and every label in one."""
        return "" not in self.domains and len(set(self.domains)) >= len(SPLITS)

    def split(self, seed: int) -> dict[str, list[int]]:
        """Split the labels 60 / 10 / 30 % by seed, at least one each, in whole domains where there are any."""
        if self.has_domains():
            dealt = draw_splits(set(self.domains), _sizes(len(set(self.domains))), "text domains", seed)
            home = {domain: split for split, members in dealt.items() for domain in members}
            of_label = [home[domain] for domain in self.domains]
        else:
            if len(self.labels) < 2 * len(SPLITS):
                raise WarpgradError(
                    f"{self.name} has {len(self.labels)} labels; {2 * len(SPLITS)} or more are needed to split them "
                    "for meta-training, validation and test."
                )
            dealt = draw_splits(self.labels, _sizes(len(self.labels), least=2), "text labels", seed)
            home = {label: split for split, members in dealt.items() for label in members}
            of_label = [home[label] for label in self.labels]
        return {split: [place for place, own in enumerate(of_label) if own == split] for split in SPLITS}


def _sizes(count: int, least: int = 1) -> dict[str, int]:
    validation = max(least, round(SHARES["validation"] * count))
    test = max(least, round(SHARES["test"] * count))
    return {"train": count - validation - test, "validation": validation, "test": test}


def prepare_text(
    source: str | Path, out: str | Path, *, name: str | None = None, fields: Fields | None = None
) -> LabelledText:
    """Check a CSV or JSONL of labelled sentences and write it as a prepared set to the folder `out`."""
    rows = read_rows(source, fields or Fields())
    return _written(_made(name or Path(source).stem, rows), Path(out))


def prepare_clinc(source: str | Path | None, out: str | Path) -> LabelledText:
    """Prepare CLINC150 from its published `data_full.json` and the `domains.json` beside it."""
    folder = _clinc_folder(source)
    data, domains = _json(folder / "data_full.json"), _json(folder / "domains.json")
    try:
        domain_of = {intent: domain for domain, intents in domains.items() for intent in intents}
        rows, outside = [], []
        for part, pairs in data.items():
            for text, label in pairs:
                if part.startswith("oos"):
                    outside.append(str(text))
                else:
                    rows.append((str(text), str(label), domain_of[label]))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise WarpgradError(f"{folder} is not CLINC150 as published ({error!r}); download it again.") from error
    require(rows, f"{folder} is not CLINC150 as published (it has no sentences); download it again.")
    return _written(_made(CLINC, rows, outside), Path(out))


def read_rows(source: str | Path, fields: Fields) -> list[tuple[str, str, str]]:
    """Return (sentence, label, domain) of every row of a CSV or JSONL file; an error says what is wrong with it."""
    path = Path(source).expanduser()
    raw = _read(path)
    try:
        content = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        where = raw.count(b"\n", 0, error.start) + 1
        raise WarpgradError(f"{path} is not UTF-8 text (line {where}): save it as UTF-8 and try again.") from error
    for number, line in enumerate(content.split("\n"), start=1):
        if len(line) > 2 * LONGEST:
            raise WarpgradError(
                f"line {number} of {path} has {len(line)} characters: a sentence has at most {LONGEST}; fix the file."
            )
    read = _jsonl if path.suffix.lower() in (".jsonl", ".ndjson", ".json") else _csv
    rows = [_checked(path, number, values) for number, values in read(path, content, fields)]
    if not rows:
        raise WarpgradError(f"{path} has no rows.")
    return list(dict.fromkeys(rows))  # a repeated sentence must not be learned from and tested on


def open_text(data: str) -> LabelledText:
    """Open the prepared set that `data` names, or the one in the folder `data`."""
    folders = [Path(named).expanduser() / "prepared"] if (named := os.environ.get(VARIABLE)) else []
    for folder in (*(parent / data for parent in (*folders, STORES)), Path(data).expanduser()):
        if (folder / FILE).is_file():
            return _opened(folder)
    command = CLINC if data == CLINC else "text --source FILE"
    raise WarpgradError(
        f"'{data}' is not a prepared set of sentences: make it with 'warpgrad data prepare {command}', or give the "
        f"folder that contains its {FILE} with --data."
    )


def check_text(folder: Path) -> Iterator[str]:
    """Check every byte of a prepared set of sentences, and of encoder states beside it, and yield what was checked."""
    from warpgrad.training import checkpoint

    found = _opened(folder)
    raw = _read(folder / FILE)
    content = _parsed(raw, folder / FILE)
    if SEAL not in content:
        yield f"{FILE} has no checksum"
    elif raw != _set(content):
        raise DamagedError(f"{folder / FILE} is damaged: its bytes are not as they were written; prepare it again.")
    else:
        yield f"{len(found.texts)} sentences, sha256 {found.sha256}"
    for path in sorted(folder.glob("states-*.safetensors")):
        checkpoint.read_checkpoint(path)
        yield path.name


def _csv(path: Path, content: str, fields: Fields) -> Iterator[tuple[int, tuple[Any, Any, Any]]]:
    try:
        reader = csv.DictReader(io.StringIO(content, newline=""), strict=True)
        columns = _columns(path, reader.fieldnames or (), fields)
        for row in reader:
            if None in row:  # a field without a column: a comma that is not in quotes
                raise WarpgradError(
                    f"line {reader.line_num} of {path} has more fields than the header: put sentences that have a "
                    "comma in quotes."
                )
            yield reader.line_num, tuple(row.get(column, "") if column else "" for column in columns)  # type: ignore[misc]
    except csv.Error as error:
        raise WarpgradError(f"{path} cannot be read as CSV ({error}); fix it, or use JSONL.") from error


def _jsonl(path: Path, content: str, fields: Fields) -> Iterator[tuple[int, tuple[Any, Any, Any]]]:
    for number, line in enumerate(content.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise WarpgradError(f"line {number} of {path} is not JSON ({error}); give one object per line.") from error
        if not isinstance(row, dict):
            raise WarpgradError(f"line {number} of {path} is not a JSON object: give one object per line.")
        columns = _columns(path, row, fields)
        yield number, tuple(row[column] if column else "" for column in columns)  # type: ignore[misc]


def _columns(path: Path, present: Iterable[str], fields: Fields) -> tuple[str, str, str | None]:
    names = list(present)
    for option, field in (("text", fields.text), ("label", fields.label), ("domain", fields.domain)):
        if field is not None and field not in names:
            raise WarpgradError(
                f"{path} has no field '{field}' (it has {', '.join(map(str, names)) or 'none'}): name it with "
                f"--{option}-field."
            )
        if names.count(str(field)) > 1:
            raise WarpgradError(f"{path} has the field '{field}' {names.count(str(field))} times: rename all but one.")
    domain = fields.domain or ("domain" if "domain" in names else None)
    return fields.text, fields.label, domain


def _checked(path: Path, number: int, values: tuple[Any, Any, Any]) -> tuple[str, str, str]:
    text, label, domain = (str(value).strip() if isinstance(value, str | int) else "" for value in values)
    if not label:
        raise WarpgradError(f"line {number} of {path} has an empty label: give it one, or leave the line out.")
    if not text:
        raise WarpgradError(f"line {number} of {path} has no sentence: give it one, or leave the line out.")
    if len(text) > LONGEST:
        raise WarpgradError(
            f"line {number} of {path} has a sentence of {len(text)} characters: at most {LONGEST} are read; fix it."
        )
    try:
        f"{text}{label}{domain}".encode()
    except UnicodeEncodeError as error:  # JSON can contain unpaired surrogates
        raise _unpaired(f"line {number} of {path}", error) from error
    return text, label, domain


def _made(name: str, rows: Sequence[tuple[str, str, str]], outside: Sequence[str] = ()) -> dict[str, Any]:
    """Build the content of a prepared set."""
    domain_of: dict[str, str] = {}
    for _, label, domain in rows:
        if domain_of.setdefault(label, domain) != domain:
            raise WarpgradError(
                f"{name}: the label '{label}' is in the domains '{domain_of[label]}' and '{domain}': give it one."
            )
    labels = sorted(domain_of)
    if len(labels) < 2:
        raise WarpgradError(f"{name} has only one label, '{labels[0]}': classification needs at least two.")
    place = {label: index for index, label in enumerate(labels)}
    return {
        "format": FORMAT,
        "name": name,
        "labels": labels,
        "domains": [domain_of[label] for label in labels],
        "texts": [text for text, _, _ in rows],
        "label_of": [place[label] for _, label, _ in rows],
        "out_of_scope": list(outside),
    }


def _written(content: Mapping[str, Any], out: Path) -> LabelledText:
    try:
        data = _set(sealed(content))
    except UnicodeEncodeError as error:  # JSON and file names can contain unpaired surrogates
        raise _unpaired("a sentence, label or name", error) from error
    write_bytes(out / FILE, data)
    return _opened(out)


def _unpaired(what: str, error: UnicodeEncodeError) -> WarpgradError:
    return WarpgradError(
        f"{what} has {error.object[error.start : error.start + 1]!a}, which is an unpaired surrogate; fix the source."
    )


def _set(content: Mapping[str, Any]) -> bytes:
    """Serialize a prepared set as it is stored in its file."""
    return json.dumps(content, ensure_ascii=False).encode()


def _opened(folder: Path) -> LabelledText:
    raw = _read(folder / FILE)
    content = unsealed(_parsed(raw, folder / FILE), folder / FILE, "prepare it again")
    try:
        found = _checked_set(content, raw, folder)
    except (KeyError, TypeError, ValueError) as error:
        raise WarpgradError(
            f"{folder / FILE} is not a prepared set of sentences ({error}); prepare it again."
        ) from error
    return found


def _checked_set(content: Mapping[str, Any], raw: bytes, folder: Path) -> LabelledText:
    """Check every entry of a prepared set, because a checksum does not tell who wrote it."""
    if content["format"] != FORMAT:
        raise ValueError(f"format {content['format']}")
    wanted = {"name": str, "labels": list, "domains": list, "texts": list, "label_of": list, "out_of_scope": list}
    for name, kind in wanted.items():
        if not isinstance(content[name], kind):
            raise TypeError(f"'{name}' is not a {kind.__name__}")
        member = int if name == "label_of" else str
        if any(type(part) is not member for part in content[name]):
            raise TypeError(f"'{name}' holds something else than {member.__name__}")
        if member is str:
            "".join(content[name]).encode()  # fails on an unpaired surrogate, which no tokenizer takes
    found = LabelledText(
        content["name"],
        tuple(content["labels"]),
        tuple(content["domains"]),
        tuple(content["texts"]),
        tuple(content["label_of"]),
        tuple(content["out_of_scope"]),
        hashlib.sha256(raw).hexdigest(),
        folder,
    )
    if len(set(found.labels)) != len(found.labels) or len(found.domains) != len(found.labels):
        raise ValueError("labels and domains do not fit each other")
    if len(found.texts) != len(found.label_of) or not set(found.label_of) <= set(range(len(found.labels))):
        raise ValueError("labels and sentences do not fit each other")
    return found


def _read(path: Path) -> bytes:
    try:
        return read_bytes(path, LARGEST, follow=True)
    except OSError as error:
        raise WarpgradError(f"{path} cannot be read: {reason(error)}; give a file of sentences.") from error


def _json(path: Path) -> Any:
    return _parsed(_read(path), path)


def _parsed(raw: bytes, path: Path) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise WarpgradError(f"{path} cannot be read as JSON ({error}); download it again.") from error


def _clinc_folder(source: str | Path | None) -> Path:
    if source is not None:
        folder = Path(source).expanduser()
    elif named := os.environ.get(VARIABLE):
        folder = Path(named).expanduser() / CLINC
    else:
        raise WarpgradError(f"give the folder of CLINC150 with --source, or its parent with {VARIABLE}.")
    if not (folder / "data_full.json").is_file():
        raise WarpgradError(f"{folder} has no data_full.json: give the folder of CLINC150 with --source.")
    return folder
