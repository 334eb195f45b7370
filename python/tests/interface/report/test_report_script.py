# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The page's script, in a browser where there is one: it runs through, and draws."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.interface.report.report_samples import GIB, events, sample
from tvm_distir.interface.report.html import to_html
from tvm_distir.interface.report.model import ReportLane, ReportMesh

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--virtual-time-budget=2000",
    "--window-size=1000,800",
]
# Written before the page's script: errors become an attribute that the test can see.
WATCH = (
    "<script>addEventListener('error', (e) => "
    "document.documentElement.setAttribute('data-error', e.message));</script>"
)
EVIL = "<img src=x onerror=\"document.documentElement.setAttribute('data-error', 'evil')\">"

needs_browser = pytest.mark.skipif(BROWSER is None, reason="no browser is installed")


def dom_after(page: str, folder: Path, script: str = "") -> str:
    """The document after the page's script, and then ``script``, have run."""
    text = page.replace("<head>", f"<head>{WATCH}", 1)
    file = folder / "page.html"
    file.write_text(text.replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8")
    done = subprocess.run(
        [str(BROWSER), *FLAGS, f"--user-data-dir={folder / 'profile'}", "--dump-dom", str(file)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


@needs_browser
def test_it_draws_every_part(tmp_path: Path) -> None:
    dom = dom_after(to_html(sample(model=EVIL, parameter=EVIL + "{}")), tmp_path)
    assert "data-error" not in dom.split("<head>")[0]
    legend = re.search(r'id="tl-legend"[^>]*>(.*?)</div>', dom, re.DOTALL)
    assert legend and "matmul" in legend[1] and "all_reduce" in legend[1]
    assert "12 events." in dom
    assert re.search(r"<canvas[^>]* height=\"[1-9]", dom)
    # Placement "R, S[1]" on dp=2, tp=2: two parts, each on the devices of one column.
    assert "Sharded into 2 parts of 4.00 KiB; each stored on 2 devices." in dom
    assert "shard 0 of 2: device 0, 2" in dom and "shard 1 of 2: device 1, 3" in dom
    assert "device 3 (dp=1, tp=1) stores shard 1 of 2" in dom


@needs_browser
def test_several_lanes_zoom_and_filter(tmp_path: Path) -> None:
    base = sample()
    lanes = tuple(
        ReportLane(f"stage{i}", (2 * i, 2 * i + 1), events(4), ((0.0, GIB),)) for i in range(2)
    )
    meshes = tuple(ReportMesh(f"stage{i}", ("tp",), (2,), (2 * i, 2 * i + 1)) for i in range(2))
    parameters = tuple(replace(p, mesh="stage1", placement="S[0]") for p in base.parameters)
    page = to_html(replace(base, timelines=lanes, meshes=meshes, parameters=parameters))
    script = (
        "for (const b of document.querySelectorAll('[data-zoom], [data-lane], [data-scale]'))"
        " { b.click(); b.click(); }"
        "const f = document.getElementById('filter'); f.value = 'no such';"
        "f.dispatchEvent(new Event('input'));"
    )
    dom = dom_after(page, tmp_path, script)
    assert "data-error" not in dom.split("<head>")[0]
    assert re.search(r'<tr data-param="0"[^>]* hidden', dom)
    assert "shard 1 of 2: device 3" in dom
    assert re.search(r'data-lane="1" aria-pressed="true"', dom)
