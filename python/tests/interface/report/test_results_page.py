# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The page of saved results: what it reads, and how it sorts, filters and compares in a browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import tvm_distir as td
from tvm_distir.interface.command import main
from tvm_distir.interface.report.results_page import read_steps, results_page
from tvm_distir.support.errors import SimulationError

MODEL = "zoo:gpt?size=tiny"
MESHES = ({"dp": 4}, {"dp": 2, "tp": 2})
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two analyses, a search, a sweep, and a file that is no result."""
    path = tmp_path_factory.mktemp("results")
    for number, mesh in enumerate(MESHES):
        strategy = "data_parallel" if number == 0 else "data_parallel+megatron"
        analysis = td.analyze(MODEL, strategy=strategy, mesh=mesh, system="h100")
        (path / f"{number}.json").write_text(analysis.to_json())
    result = td.search(td.zoo.gpt(size="tiny"), 4, "h100")
    (path / "s").mkdir()
    (path / "s/search.json").write_text(json.dumps(result.to_dict()))
    rows = [{"micro_batch": 4, "dp": dp, "tp": 1} for dp in (1, 2)]
    td.sweep(MODEL, rows, "h100", output=path / "sweep.csv")
    assert (path / "sweep.csv.sweep.json").exists()
    (path / "plan.json").write_text(json.dumps(result.plans[0].plan.to_dict()))
    (path / "other.json").write_text("[]")
    return path


def _data(page: str) -> dict[str, Any]:
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert match is not None
    data: dict[str, Any] = json.loads(match[1])
    return data


def test_all_kinds_of_results_are_read(folder: Path) -> None:
    steps = read_steps([folder])
    kinds = [row["kind"] for row in steps.rows]
    assert sorted(set(kinds)) == ["analysis", "search", "sweep"] and kinds.count("sweep") == 2
    assert steps.skipped == ["other.json"]
    swept = [row for row in steps.rows if row["kind"] == "sweep"]
    assert {(row["model"], row["system"]) for row in swept} == {(MODEL, "h100")}
    assert [row["name"] for row in swept] == [
        f"dp={dp}, global_batch={4 * dp}, devices={dp}" for dp in (1, 2)
    ]
    first = json.loads((folder / "0.json").read_text())
    [row] = [row for row in steps.rows if row["file"] == "0.json"]
    assert row["time_s"] == first["time_s"] and row["mfu"] == first["throughput"]["mfu"]
    searched = json.loads((folder / "s/search.json").read_text())["rows"]
    times = [row["time_s"] for row in steps.rows if row["kind"] == "search"]
    assert times == [row["time_s"] for row in searched if "time_s" in row]


def test_files_are_read_by_name(folder: Path) -> None:
    assert [row["mesh"] for row in read_steps([folder / "1.json"]).rows] == ["dp=2,tp=2"]


def test_served_requests_are_read(tmp_path: Path) -> None:
    latency = {"mean_s": 0.1, "p50_s": 0.1, "p90_s": 0.2, "p99_s": 0.3}
    summary = {"output_tokens_per_s": 640.0, "ttft": latency, "tpot": latency}
    data = {"model": "m", "system": "h100", "plan": "tp=2", "workload": "closed:8",
            "scheduler": "static", "summary": summary, "usd_per_million_tokens": 0.5}  # fmt: skip
    (tmp_path / "served.json").write_text(json.dumps(data))
    (row,) = read_steps([tmp_path]).rows
    assert row["kind"] == "serving" and row["ttft_p99_s"] == 0.3 and row["cost"] == 0.5
    titles = [
        column["title"] for column in _data(results_page(read_steps([tmp_path]), ""))["columns"]
    ]
    assert {"TTFT p99", "TPOT p99", "$ per million tokens"} <= {*titles}


def test_choices_of_a_search_for_serving_are_read(tmp_path: Path) -> None:
    """The cost of each is that of its devices over its tokens; choices without a rate are not."""
    latency = {"mean_s": 0.1, "p50_s": 0.1, "p90_s": 0.2, "p99_s": 0.3}

    def choice(plan: str, devices: int, rate: float, **more: object) -> dict[str, Any]:
        summary = {"output_tokens_per_s": 10 * rate, "ttft": latency, "tpot": latency}
        return {"plan": plan, "scheduler": "static", "devices": devices, "requests_per_s": rate,
                "summary": summary if rate else None, **more}  # fmt: skip

    about = {"model": "m", "workload": "closed:8"}
    best = {**about, "system": "h100", **choice("tp=4", 4, 60.0), "usd_per_million_tokens": 2.0}
    choices = [choice("tp=4", 4, 60.0), choice("tp=2", 2, 20.0), choice("tp=1", 1, 0.0)]
    searched = {"best": best, "choices": choices, "front": [], "cuts": []}
    (tmp_path / "searched.json").write_text(json.dumps(searched))
    [first, second] = read_steps([tmp_path]).rows
    assert first["cost"] == 2.0 and second["cost"] == pytest.approx(2.0 * (60 / 4) / (20 / 2))
    assert "60 requests/s" in first["name"] and second["system"] == "h100"
    fleet = {**about, "choices": [choice("tp=2", 2, 50.0, system="a100", usd_per_hour=3.6)]}
    (tmp_path / "searched.json").write_text(json.dumps({**fleet, "cuts": []}))
    (row,) = read_steps([tmp_path]).rows
    assert row["system"] == "a100" and row["cost"] == pytest.approx(1e6 * 0.001 / 500)
    searched["best"] = None
    (tmp_path / "searched.json").write_text(json.dumps(searched))
    with pytest.raises(SimulationError, match="DIST0740"):
        read_steps([tmp_path])


def test_steps_link_to_their_reports_and_name_once_what_they_share(
    folder: Path, tmp_path: Path
) -> None:
    for number in (0, 1):
        (tmp_path / f"a {number}").mkdir()
        shutil.copy(folder / f"{number}.json", tmp_path / f"a {number}/analysis.json")
    (tmp_path / "a 0/report.html").write_text("")
    page = results_page(read_steps([tmp_path]), "", tmp_path)
    cells = [row[0] for row in _data(page)["rows"]]
    assert [cell[2:] for cell in cells] == [["a%200/report.html"], []]
    assert "system: h100" in page
    assert "system" not in [column["title"] for column in _data(page)["columns"]]


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[]")
    with pytest.raises(SimulationError, match="DIST0740"):
        read_steps([tmp_path])
    (tmp_path / "y.json").write_text("{")
    with pytest.raises(SimulationError, match=r"y\.json"):
        read_steps([tmp_path])


def test_the_page_is_escaped_and_deterministic(folder: Path) -> None:
    steps = read_steps([folder])
    steps.rows[0]["name"] = "</script><b>"
    page = results_page(steps, "<title>")
    assert page == results_page(steps, "<title>")
    assert "</script><b>" not in page and "<h1>&lt;title&gt;</h1>" in page
    assert _data(page)["rows"][0][0][0] == "</script><b>"


def test_the_command_writes_the_page(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    assert main(["ui", str(folder), "-o", str(out)]) == 0
    assert out.read_text() == results_page(read_steps([folder]), str(folder), tmp_path)
    assert main(["ui", str(tmp_path / "none"), "-o", str(out)]) == 1


def _in_browser(page: str, script: str, tmp_path: Path) -> dict[str, Any]:
    """Run a script in the page, in a browser, and return what it puts into ``result``."""
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        pytest.skip(f"no browser is installed: {', '.join(BROWSERS)}")
    path = tmp_path / "page.html"
    driver = (
        "<script>const result = {errors: []}; onerror = (text) => result.errors.push(text);"
        "const table = () => [...document.querySelectorAll('#table tbody tr')].map("
        "(row) => [...row.cells].slice(1).map((cell) => cell.textContent));"
        "const head = (name) => [...document.querySelectorAll('#table th button')].find("
        "(button) => button.textContent === name);"
        f"{script};document.body.innerHTML = '';"
        "document.body.append(Object.assign(document.createElement('pre'),"
        "{id: 'result', textContent: JSON.stringify(result)}));</script></body>"
    )
    path.write_text(page.replace("</body>", driver))
    run = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", path.as_uri()],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    match = re.search(r'<pre id="result">(.*?)</pre>', run.stdout, re.DOTALL)
    assert match is not None, run.stderr[-2000:] + run.stdout[-500:]
    result: dict[str, Any] = json.loads(match[1].replace("&amp;", "&").replace("&gt;", ">"))
    assert result["errors"] == []
    return result


def test_a_browser_sorts_filters_and_compares(folder: Path, tmp_path: Path) -> None:
    page = results_page(read_steps([folder]), "results")
    data = _data(page)
    titles = [column["title"] for column in data["columns"]]
    result = _in_browser(
        page,
        """
        result.first = table();
        head('peak memory').click(); result.memory = table();
        head('peak memory').click(); result.reverse = table();
        const boxes = document.querySelectorAll('#table input');
        boxes[0].click(); boxes[1].click();
        result.sides = [...document.querySelectorAll('#sides tr')].map(
          (row) => [...row.cells].map((cell) => cell.textContent));
        const filter = document.getElementById('filter');
        filter.value = 'sweep dp=2'; filter.dispatchEvent(new Event('input'));
        result.filtered = table();
        result.shown = document.getElementById('shown').textContent;
        filter.value = ''; filter.dispatchEvent(new Event('input'));
        result.points = [...document.querySelectorAll('#charts svg')].map((svg) =>
          [svg.getAttribute('aria-label'), svg.querySelectorAll('circle').length,
           svg.querySelectorAll('circle.front').length]);
        result.width = document.documentElement.scrollWidth <= innerWidth;
        """,
        tmp_path,
    )
    time, memory = titles.index("time"), titles.index("peak memory")
    by_time = sorted(data["rows"], key=lambda row: row[time][0])
    assert [row[time] for row in result["first"]] == [row[time][1] for row in by_time]
    by_memory = sorted(data["rows"], key=lambda row: row[memory][0])
    texts = [row[memory][1] for row in by_memory]
    assert [row[memory] for row in result["memory"]] == texts
    assert [row[memory] for row in result["reverse"]] == texts[::-1]
    sides = {row[0]: row[1:] for row in result["sides"]}
    [_, second] = sides["peak memory"]
    ratio = by_memory[-2][memory][0] / by_memory[-1][memory][0]
    assert second == f"{by_memory[-2][memory][1]} ({ratio:.2f}x)"
    assert len(result["filtered"]) == 1 and result["shown"].startswith("1 of ")
    (label, points, front) = result["points"][0]
    pairs = sorted((row[memory][0], row[time][0]) for row in data["rows"])
    best = [y for k, (_, y) in enumerate(pairs) if all(y < other for _, other in pairs[:k])]
    assert (label, points) == ("time against peak memory", len(data["rows"]))
    assert front == len(best)
    assert result["width"]


def test_a_browser_shows_served_requests_by_their_rate(tmp_path: Path) -> None:
    """There is no time of a step to sort by, nor a memory in which steps fit."""
    for rate in (100.0, 300.0, 200.0):
        latency = {"p99_s": rate}
        summary = {"output_tokens_per_s": rate, "ttft": latency, "tpot": latency}
        data = {"model": "m", "system": "h100", "plan": f"tp={rate:g}", "workload": "w",
                "scheduler": "s", "summary": summary, "usd_per_million_tokens": None}  # fmt: skip
        (tmp_path / f"{rate:g}.json").write_text(json.dumps(data))
    script = "result.rows = table(); result.hidden = fitting.parentElement.hidden;"
    result = _in_browser(results_page(read_steps([tmp_path]), "served"), script, tmp_path)
    assert [row[0] for row in result["rows"]] == [f"tp={rate}, s, w" for rate in (300, 200, 100)]
    assert result["hidden"]
