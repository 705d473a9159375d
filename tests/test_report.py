"""report.html: complete, self-contained, and safe against hostile names."""

import html
import re

import numpy as np
import pytest
from conftest import make_config, run_build
from pictures import encoded, picture

from pipelines.report import render_report


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
