# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The HTML report: well formed, self-contained, safe against names, the same every time."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from tests.interface.report.report_samples import GIB, events, sample
from tvm_distir.interface.report.html import to_html
from tvm_distir.interface.report.model import Analysis, ReportLane
from tvm_distir.interface.report.search_page import search_page
from tvm_distir.planning.search.candidate_row import CandidateRow
from tvm_distir.planning.search.candidates import Candidate
from tvm_distir.planning.search.result import SearchResult

VOID = {"meta", "input", "br", "img", "link", "hr"}
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&"


class Page(HTMLParser):
    """Collects elements and complains about tags that do not match."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))

    def text(self) -> str:
        """All words a reader sees."""
        return " ".join(t for tag, t in self.texts if tag not in ("script", "style"))

    def ids(self) -> list[str]:
        """Ids in order."""
        return [str(attrs["id"]) for _, attrs in self.tags if "id" in attrs]


def data_of(page: str) -> dict[str, object]:
    """The data the script reads."""
    result = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert result
    return dict(json.loads(result.group(1)))


@pytest.mark.parametrize("name", ["model.onnx", EVIL])
def test_tags_match_and_ids_are_unique(name: str) -> None:
    page = Page(to_html(sample(model=name, parameter=name + "{}", unmodelled=(name,))))
    assert page.open == []
    assert len(set(page.ids())) == len(page.ids())
    anchors = [a["href"] for tag, a in page.tags if tag == "a"]
    assert anchors and all(str(href)[1:] in page.ids() for href in anchors)


def test_asks_for_nothing_outside() -> None:
    text = to_html(sample())
    assert "http://" not in text and "https://" not in text and "@import" not in text
    page = Page(text)
    for tag, attrs in page.tags:
        assert tag not in ("link", "iframe", "img", "object", "embed")
        assert "src" not in attrs
    policy = [a["content"] for t, a in page.tags if a.get("http-equiv")]
    assert policy and "default-src 'none'" in str(policy[0])


def test_names_cannot_break_out() -> None:
    analysis = sample(model=EVIL, parameter=EVIL + "{}", unmodelled=(EVIL,))
    single = analysis.timelines[0].events[0]
    lanes = (replace(analysis.timelines[0], events=(replace(single, name=EVIL, scope=EVIL),)),)
    page = Page(to_html(replace(analysis, timelines=lanes, strategy=EVIL, command=EVIL)))
    scripts = [attrs for tag, attrs in page.tags if tag == "script"]
    assert len(scripts) == 2
    assert not [a for _, attrs in page.tags for a in attrs if a.startswith("on")]
    assert EVIL in page.text()


def test_script_data_keeps_names_whole() -> None:
    data = data_of(to_html(sample(parameter=EVIL + "{}")))
    assert data["params"][0]["name"].startswith(EVIL.replace("1", "*").replace("2", "*"))  # type: ignore[index]


def test_verdict() -> None:
    assert "fits in memory" in Page(to_html(sample())).text()
    over = Page(to_html(sample(peak_bytes=17 * GIB))).text()
    assert "does not fit in memory" in over and "exceeds its memory by 1.00 GiB" in over
    assert "memory capacity unknown" in Page(to_html(sample(capacity_bytes=None))).text()


def test_unmodelled_ops_are_named_loudly() -> None:
    page = Page(to_html(sample(unmodelled=("relax.nn.strange",))))
    assert any(attrs.get("role") == "alert" for _, attrs in page.tags)
    assert page.text().count("relax.nn.strange") == 2
    assert not any(a.get("role") == "alert" for _, a in Page(to_html(sample())).tags)


def test_same_analysis_same_bytes_whatever_it_took() -> None:
    first = to_html(sample())
    assert first == to_html(sample())
    assert first == to_html(replace(sample(), timings_s={"load": 77.0}))


def test_events_reach_the_script_exactly() -> None:
    data = data_of(to_html(sample(layers=3)))
    lane = data["lanes"][0]  # type: ignore[index]
    got = sorted((e[0], e[1], lane["words"][e[4]]) for e in lane["events"])
    want = sorted((round(e.start_s * 1e9), round(e.duration_s * 1e9), e.name) for e in events(3))
    assert got == want and lane["joined"] is False


def test_many_events_are_joined_but_no_time_is_lost() -> None:
    analysis = many(20_000)
    page = to_html(analysis)
    lane = data_of(page)["lanes"][0]  # type: ignore[index]
    assert len(lane["events"]) < 12_000 and len(page) < 2_000_000
    assert lane["joined"] is True and lane["total"] == 60_000
    for stream, name in ((0, "compute"), (1, "comm")):
        got = sum(e[1] for e in lane["events"] if e[2] == stream)
        want = sum(e.duration_s for e in analysis.timelines[0].events if e.stream == name) * 1e9
        assert got == pytest.approx(want, rel=1e-6)


def test_memory_peak_survives_thinning() -> None:
    steps = tuple((i * 1e-6, 1000 + (i * 7919) % 5000) for i in range(30_000))
    steps = (*steps[:12_345], (steps[12_345][0], 10**9), *steps[12_346:])
    base = sample()
    lane = data_of(to_html(replace(base, timelines=(replace(base.timelines[0], memory=steps),))))
    memory = lane["lanes"][0]["memory"]  # type: ignore[index]
    assert len(memory) < 3000 and max(b for _, b in memory) == 10**9
    assert memory == sorted(memory)


def many(layers: int) -> Analysis:
    """A step of ``3 * layers`` events."""
    base = sample()
    lane = ReportLane("mesh0", (0, 1, 2, 3), events(layers), ((0.0, GIB),))
    return replace(base, timelines=(lane,), time_s=5e-3 * layers)


def test_repeated_parameters_are_joined() -> None:
    data = data_of(to_html(sample(layers=5)))
    assert [p["name"] for p in data["params"]] == ["layers.*.weight"]  # type: ignore[attr-defined]
    text = Page(to_html(sample(layers=5))).text()
    assert "× 5" in text and "20.0 KiB" in text and "40.0 KiB" in text


@pytest.mark.parametrize("name", ["tp", EVIL])
def test_search_page_escapes_names_and_draws_the_front(name: str) -> None:
    """Of three simulated candidates two are on the front, whose line goes right and down."""
    sizes = ((1e-3, 3 * GIB), (2e-3, GIB), (3e-3, 2 * GIB))
    rows = [
        CandidateRow(Candidate(((name, i),)), "solved", 1e-3, time_s=time_s, peak_bytes=peak_bytes)
        for i, (time_s, peak_bytes) in enumerate(sizes)
    ]
    rows.append(CandidateRow(Candidate(((name, 9),)), "infeasible", 1e-3, why=name))
    text = search_page(SearchResult((), tuple(rows)), name, 4 * GIB)
    page = Page(text)
    assert page.open == [] and name in page.text()
    assert not [tag for tag, _ in page.tags if tag in ("script", "img")]
    circles = [attrs["class"] for tag, attrs in page.tags if tag == "circle"]
    assert circles == ["best", "best", "dot"]
    (line,) = (attrs["points"] for tag, attrs in page.tags if tag == "polyline")
    places = [tuple(map(float, point.split(","))) for point in str(line).split()]
    assert all(x <= right and y <= low for (x, y), (right, low) in itertools.pairwise(places))
    assert len(places) == 5
