"""report.html: complete, self-contained, and safe against hostile names."""

import html
import re

import numpy as np
import pytest
from conftest import make_config, run_build
from pictures import encoded, picture

from pipelines.finish.report import render_report
from shards.manifest import ShuffleEntry


def test_the_report_tells_the_accounting_and_shows_pictures(built):
    page = (built.root / "report.html").read_text()
    assert "41 listed = 40 written + 1 rejected + 0 duplicates" in page
    assert "<title>animals</title>" in page
    assert page.count("<figure>") == min(24, built.manifest.split("train").shards[0].records)
    assert page.count("data:image/png;base64,") == page.count("<figure>")
    assert "cat/broken.jpg" in page
    assert "truncated" in page
    for split in built.manifest.splits:
        assert f"<td>{split.name}</td><td class=number>{split.records}</td>" in page


def test_the_report_needs_no_network(built):
    page = (built.root / "report.html").read_text()
    assert set(re.findall(r"""(?:src|href)=["']?(\w+)""", page)) == {"data"}
    assert "<script" not in page


def test_equal_datasets_have_equal_reports(built):
    manifest = built.manifest.model_copy(update={"files": ()})
    assert render_report(manifest, built.root) == (built.root / "report.html").read_text()


@pytest.mark.parametrize(
    ("labels", "header", "cells"),
    [
        ({"kind": "none"}, "<th>key</th><th class=number>features</th>", ""),
        ({"kind": "regression"}, "<th class=number>target</th>", "<td class=number>0.5</td>"),
    ],
)
def test_a_dataset_of_rows_shows_rows(tmp_path, labels, header, cells):
    np.savez(tmp_path / "rows.npz", data=np.arange(20, dtype=np.float32).reshape(2, 10) / 4, labels=np.array([0.5, 1]))
    run_build(make_config(tmp_path / "rows.npz", tmp_path / "out", labels=labels))
    page = (tmp_path / "out" / "report.html").read_text()
    assert "<h2>First rows</h2>" in page
    assert header in page
    assert f"{cells}<td class=number>0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, ... (10 values)</td>" in page
    assert "<h2>Classes</h2>" not in page
    assert "<figure>" not in page


def test_names_are_escaped(tmp_path):
    label = "<script>alert(1)<&script>"
    folder = tmp_path / "raw" / label
    folder.mkdir(parents=True)
    (folder / 'a"b.png').write_bytes(encoded(picture(1), "png"))
    (folder / "<b>.jpg").write_bytes(b"no image")
    run_build(make_config(tmp_path / "raw", tmp_path / "out", max_reject_fraction=0.5))
    page = (tmp_path / "out" / "report.html").read_text()
    assert "<script" not in page
    assert "<b>" not in page
    assert html.escape(label) in page


def test_the_report_says_how_well_the_dataset_is_shuffled(built):
    entries = (
        ShuffleEntry(split="train", examples=27, shards=3, source_z=0.4, class_z=-1.25, mix_p=0.61),
        ShuffleEntry(split="validation", examples=13, shards=1),
    )
    manifest = built.manifest.model_copy(update={"shuffle": entries})
    page = render_report(manifest, built.root)
    cells = ("27", "3", "+0.40", "-1.25", "0.61", "random")
    assert f"<td>train</td>{''.join(f'<td class=number>{cell}</td>' for cell in cells)}" in page
    cells = ("13", "1", "", "", "", "too few to tell")
    assert f"<td>validation</td>{''.join(f'<td class=number>{cell}</td>' for cell in cells)}" in page
    assert "compact" not in page
    ordered = (entries[0].model_copy(update={"source_z": -12.5}),)
    page = render_report(built.manifest.model_copy(update={"shuffle": ordered}), built.root)
    assert "<td class=number>-12.50</td>" in page
    assert "<td class=number>not random</td>" in page
    assert "What is appended lies in shards of its own, behind the others, until <code>compact</code>." in page


def test_the_report_says_that_nothing_leaks(built):
    page = (built.root / "report.html").read_text()
    assert "<h2>Leaks</h2><p>Leaks: none between 2 splits (exact copies and groups; near copies were not" in page
    assert "copies of each other" not in page
