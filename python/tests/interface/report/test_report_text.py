# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Text and JSON of an analysis, and how numbers are written."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import pytest

from tests.interface.report.report_samples import GIB, sample
from tvm_distir.interface.report.document import to_dict, to_json
from tvm_distir.interface.report.text import to_text
from tvm_distir.interface.report.text_table import ranges
from tvm_distir.performance.simulation.device_results import DeviceResult
from tvm_distir.support import align
from tvm_distir.support.display import units
from tvm_distir.support.errors.tree import InternalError


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1536 * 2**20, "1.50 GiB"),
        (2**50, "1.00 PiB"),
    ],
)
def test_size(value: int, text: str) -> None:
    assert units.size(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0 s"),
        (1.0, "1.00 s"),
        (0.0123, "12.3 ms"),
        (9.996e-4, "1.00 ms"),
        (2.5e-9, "2.50 ns"),
        (312.0, "312 s"),
    ],
)
def test_duration(value: float, text: str) -> None:
    assert units.duration(value) == text


def test_count() -> None:
    assert units.count(312e12, "FLOP/s") == "312 TFLOP/s"
    assert units.count(0, "FLOP") == "0 FLOP"
    assert units.count(1500) == "1.50k"
    assert units.count(25.72) == "25.7"


def test_ranges() -> None:
    assert ranges([3, 1, 2, 0, 8, 10, 9]) == "0-3, 8-10"
    assert ranges([5]) == "5"


def test_columns_line_up_and_control_characters_do_not_reach_the_terminal() -> None:
    lines = align(["name", "n"], [["a\x1b[31mred", "1"], ["b", "1000"]], "lr")
    assert len({len(line) for line in lines}) == 1
    assert "\x1b" not in "".join(lines)


def test_text_says_what_the_numbers_say() -> None:
    text = to_text(sample())
    assert "20.0 ms per step, bound by compute (60%); fits: 8.00 GiB of 16.0 GiB per device" in text
    assert "16.0 ms (80%)" in text and "4.00 ms (20%)" in text
    row = next(line for line in text.splitlines() if line.startswith("  all_reduce"))
    assert row.split() == ["all_reduce", "tp", "2", "4", "4.00", "GiB", "4.00", "GiB", "4.00", "ms"]
    assert "\x1b" not in text


def test_colours_add_nothing_but_colours() -> None:
    analysis = sample(peak_bytes=17 * GIB, unmodelled=("relax.strange",))
    plain, painted = to_text(analysis), to_text(analysis, colour=True)
    assert painted != plain and re.sub(r"\x1b\[\d+m", "", painted) == plain
    assert (
        "DOES NOT FIT" in plain
        and "NOT MODELLED (only operand traffic is counted): relax.strange" in plain
    )


def test_memory_bar_is_as_long_as_the_share() -> None:
    line = next(s for s in to_text(sample()).splitlines() if "[" in s)
    assert line.count("#") == 20 and line.count(".", line.index("["), line.index("]")) == 20
    over = next(s for s in to_text(sample(peak_bytes=17 * GIB)).splitlines() if "[" in s)
    assert "#" * 40 + "!" in over


def test_equal_devices_share_a_row_and_others_do_not() -> None:
    base = sample()
    last = replace(base.devices[3], compute_s=1e-3)
    text = to_text(replace(base, devices=(*base.devices[:3], last)))
    rows = [line.split()[0] for line in text.splitlines() if line.startswith("  0-2")]
    assert rows and any(line.startswith("  3 ") for line in text.splitlines())


def test_json_is_the_contract() -> None:
    data = json.loads(to_json(to_dict(sample())))
    assert data["schema_version"] == 1 and data["time_s"] == 20e-3
    assert list(data["devices"][0]) == [field for field in DeviceResult.__dataclass_fields__]
    assert set(data["collectives"][0]) >= {
        "kind",
        "mesh_axis",
        "group_size",
        "count",
        "bytes_per_device",
        "wire_bytes_per_device",
    }
    assert data["unmodelled_ops"] == [] and data["timings_s"] == {"load": 1.0, "simulate": 0.5}
    assert len(data["devices"]) == 4


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_json_refuses_what_json_cannot_say(bad: float) -> None:
    base = sample()
    broken = replace(base, devices=(replace(base.devices[0], comm_s=bad),))
    with pytest.raises(InternalError, match=r"DIST0902 devices\[0\]\.comm_s"):
        to_json(to_dict(broken))
