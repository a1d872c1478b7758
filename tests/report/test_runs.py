"""Run directories, read with care."""

import pytest

from tests.support.report_pages import Parsed, png, write_run
from warpgrad.errors import WarpgradError
from warpgrad.report import read_run, run_page

__all__ = ["png"]


def test_a_run_is_read_as_it_was_written(tmp_path, png):
    run = read_run(write_run(tmp_path / "run", figure=png))
    assert run.config == {"seed": 0, "rule": {"lr": 0.1}, "method": "Warp-Leap"}
    assert [row["meta_loss"] for row in run.metrics] == [3.0, 2.0, 1.0]
    assert (run.experiment, run.method, run.preset, run.seed, run.notes) == ("omniglot", "Warp-Leap", "small", 0, ())
    assert [file.name for file in run.figures] == ["surface.png"]


@pytest.mark.parametrize("tail", [b'{"step": 3, "meta', b'{"step": 3, "name": "\xc3', b"{", b"17"])
def test_a_cut_off_last_line_is_left_out_and_said(tmp_path, tail):
    folder = write_run(tmp_path / "run")
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(tail)
    run = read_run(folder)
    assert [row["step"] for row in run.metrics] == [0, 1, 2]
    assert len(run.notes) == 1
    assert "cut off" in run.notes[0]
    assert "cut off" in Parsed(run_page([run]).html()).text


def test_a_whole_last_line_without_its_newline_counts(tmp_path):
    folder = write_run(tmp_path / "run")
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 3}')
    run = read_run(folder)
    assert run.metrics[-1] == {"step": 3}
    assert run.notes == ("The run has continued to 4 meta-steps since it was evaluated after 3.",)


@pytest.mark.parametrize(
    ("file", "content", "match"),
    [
        ("config.json", None, r"config\.json is missing: .*--fresh"),
        ("summary.json", None, r"summary\.json is missing: the run is not finished; repeat its command"),
        ("metrics.jsonl", None, r"metrics\.jsonl is missing: .*--fresh"),
        ("config.json", b"{", r"config\.json is not valid JSON .*restore it"),
        ("config.json", b"\xff\xfe\xfa", r"config\.json is not valid JSON"),
        ("config.json", b"[1]", r"config\.json holds a list"),
        ("summary.json", b'{"method": "a", "seed": 1}', r"summary\.json has no experiment, preset"),
        (
            "summary.json",
            b'{"experiment": "e", "method": "a", "preset": "p", "seed": 1, "metrics": 3}',
            r"summary\.json has metrics that are not named numbers",
        ),
        (
            "metrics.jsonl",
            b'{"step": 0}\n{"ste\n{"step": 2}\n',
            r"metrics\.jsonl, line 2 is damaged .*remove that line",
        ),
        (
            "metrics.jsonl",
            b'{"step": 0}\n{"step": "x"}\n',
            r'line 2 is damaged \(no object with a number as its "step"',
        ),
    ],
)
def test_missing_and_damaged_files_are_named_with_a_remedy(tmp_path, file, content, match):
    folder = write_run(tmp_path / "run")
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_bytes(content)
    with pytest.raises(WarpgradError, match=match):
        read_run(folder)


def test_what_is_no_run_directory_is_refused(tmp_path):
    with pytest.raises(WarpgradError, match="nowhere is not a run directory; give the folder"):
        read_run(tmp_path / "nowhere")
