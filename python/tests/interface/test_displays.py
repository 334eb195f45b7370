# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Results as text, as HTML of notebooks, as data frames and as figures."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest

import tvm_distir as td
from tvm_distir.support import Column, DataTable
from tvm_distir.support.display import units
from tvm_distir.support.errors import DependencyError

MODEL = "zoo:gpt?size=tiny,layers=2"
ROWS = [{"micro_batch": 4, "dp": dp, "tp": 1} for dp in (1, 2, 4)]


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    """One result of every kind that is displayed, by its class."""
    mod = td.load_model(MODEL).mod
    analysis = td.analyze(
        MODEL, strategy="data_parallel+megatron", mesh={"dp": 2, "tp": 2}, system="dgx-a100"
    )
    explanation = td.explain(mod, "layer/matmul3", plan=analysis.plan)
    values = [
        analysis, analysis.plan, analysis.simulation, explanation, td.System.load("dgx-a100"),
        td.search(mod, 4, "dgx-a100"), td.sweep(MODEL, ROWS, "dgx-a100"),
    ]  # fmt: skip
    return {type(value).__name__: value for value in values}


KINDS = ["AnalysisResult", "Plan", "Result", "Explanation", "System", "SearchResult", "SweepResult"]


class _Page(HTMLParser):
    """Collects the texts of cells, and checks that every element is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[str] = []

    def handle_starttag(self, tag: str, _: Any) -> None:
        if tag not in ("br", "meta"):
            self.open.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.cells[-1] += data


@pytest.mark.parametrize("kind", KINDS)
def test_text_is_a_readable_table(results: dict[str, Any], kind: str) -> None:
    text = str(results[kind])
    assert text == results[kind].to_text().rstrip("\n")
    assert f"{kind}(" not in text and len(text.splitlines()) > 2


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "AnalysisResult"])
def test_html_has_the_words_of_the_text(results: dict[str, Any], kind: str) -> None:
    page = _Page()
    page.feed(results[kind]._repr_html_())
    assert not page.open
    shown = [
        cell for table in results[kind]._tables() if table.rows
        for row in table._cells() for cell in row
    ]  # fmt: skip
    assert [cell for cell in page.cells if cell in shown] and set(shown) <= set(page.cells)


def test_the_report_is_a_frame(results: dict[str, Any]) -> None:
    frame = results["AnalysisResult"]._repr_html_()
    page = _Page()
    attributes: dict[str, str | None] = {}
    page.handle_starttag = lambda tag, attrs: attributes.update(attrs)  # type: ignore[method-assign]
    page.handle_endtag = lambda tag: None  # type: ignore[method-assign]
    page.feed(frame)
    assert attributes["srcdoc"] == results["AnalysisResult"].to_html()


def test_html_is_escaped() -> None:
    table = DataTable("<b>", (Column("x", "<i>"),), [["<script>&"]])
    assert "<b>" not in table.to_html() and "<script>" not in table.to_html()
    page = _Page()
    page.feed(table.to_html())
    assert page.cells == ["<i>", "<script>&"]


def test_a_step_is_shown_by_device(results: dict[str, Any]) -> None:
    result = results["Result"]
    lines = str(result).splitlines()
    assert (
        lines[0].startswith(units.duration(result.time_s)) and "4 devices of dgx-a100" in lines[0]
    )
    assert units.duration(result.devices[3].compute_s) in lines[6]


def test_plans_have_a_column_per_mesh_axis(results: dict[str, Any]) -> None:
    plan = results["Plan"]
    [head] = [line for line in str(plan).splitlines() if line.split()[:1] == ["rule"]]
    assert head.split() == ["rule", "function", "dp", "tp", "stationary"]
    [row] = [line for line in str(plan).splitlines() if '"h.0.attn.o_proj.weight"' in line]
    assert row.split()[2:] == ["-", "R", "S[1]", "yes"]


def test_sweeps_show_what_varies(results: dict[str, Any]) -> None:
    text = str(results["SweepResult"])
    assert text.startswith("3 rows\nall rows: model=zoo:gpt?size=tiny,layers=2, system=dgx-a100, ")
    assert len(text.splitlines()) == 3 + 2 + len(ROWS)


@pytest.mark.parametrize("kind", KINDS)
def test_data_frames_have_raw_numbers(results: dict[str, Any], kind: str) -> None:
    pandas = pytest.importorskip("pandas")
    frame = results[kind].to_pandas()
    assert isinstance(frame, pandas.DataFrame) and len(frame)
    value = results[kind]
    if kind == "Result":
        assert frame["compute_s"].tolist() == [device.compute_s for device in value.devices]
    if kind == "SearchResult":
        assert frame["time_s"].tolist() == [row.time_s for row in value.rows]
    if kind == "AnalysisResult":
        assert frame["time_s"].tolist() == [op.time_s for op in value.report.ops]
    if kind == "SweepResult":
        assert frame.to_dict("records") == value.to_dicts()


@pytest.mark.parametrize("kind", KINDS)
def test_figures_are_drawn(results: dict[str, Any], kind: str) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    axes = results[kind].plot()
    axes.figure.canvas.draw()
    marks = [*axes.patches, *axes.lines, *axes.collections, *axes.images]
    assert marks and axes.get_title()
    assert results[kind].plot(axes) is axes
    pyplot.close("all")


def test_bars_are_as_long_as_the_step(results: dict[str, Any]) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    axes = results["Result"].plot()
    end = max(bar.get_x() + bar.get_width() for bar in axes.patches)
    assert end == pytest.approx(results["Result"].time_s * 1e3)


@pytest.mark.parametrize(("method", "module"), [("to_pandas", "pandas"), ("plot", "matplotlib")])
def test_a_missing_package_is_named_with_its_extra(
    results: dict[str, Any], method: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str, *_: Any) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name.split(".")[0])

    monkeypatch.setattr("tvm_distir.support.plugins.extras.import_module", missing)
    with pytest.raises(DependencyError, match=rf"DIST0111.*{module}") as info:
        getattr(results["Result"], method)()
    assert "tvm_distir[notebook]" in str(info.value)


def test_other_import_errors_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> Any:
        raise ModuleNotFoundError("No module named 'numpy.inner'", name="numpy.inner")

    monkeypatch.setattr("tvm_distir.support.plugins.extras.import_module", broken)
    with pytest.raises(ModuleNotFoundError) as info:
        DataTable("t", (Column("x", "x"),), [[1]]).to_pandas()
    assert info.value.name == "numpy.inner"
