# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Systems of schema version 2: a device and a network, by name or from a data sheet."""

from __future__ import annotations

import copy
import itertools
import json
from pathlib import Path

import pytest

import tvm_distir as td
from tvm_distir.hardware import sourced_numbers, system_names, to_data
from tvm_distir.support import HardwareError

DATA = Path(td.__file__).parent / "hardware" / "systems" / "data"
FAMILY = [
    name
    for name in system_names()
    if json.loads((DATA / f"{name}.json").read_text())["schema_version"] == 2
]
SHEET = {
    "schema_version": 2,
    "name": "sheet",
    "device": {
        "name": "accelerator",
        "memory_capacity_GiB": 64,
        "memory_bandwidth_GBps": 1600,
        "matmul_TFLOPs": {"bfloat16": 200, "default": 25},
    },
    "network": {
        "intra_node": {"name": "link", "devices_per_node": 4, "bandwidth_GBps": 150},
        "inter_node": {"name": "fabric", "nics_per_node": 4, "bandwidth_per_nic_GBps": 25},
    },
}


def test_the_names_that_people_say_are_systems() -> None:
    people_say = {"a100", "a100-40gb", "h100", "h200", "b200", "gb200-nvl72", "mi300x", "l40s"}
    people_say |= {"l4", "a10", "rtx-3090", "rtx-4090", "rtx-5090", "rtx-pro-6000", "gh200-nvl32"}
    people_say |= {"h20", "b300", "gb300-nvl72", "mi325x", "mi355x", "gaudi3", "m4-max", "m3-ultra"}
    assert people_say | {"tpu-v5p", "tpu-v5e", "tpu-v6e"} <= set(FAMILY)


@pytest.mark.parametrize("name", FAMILY)
def test_no_kernel_beats_its_arithmetic_or_its_bytes(name: str) -> None:
    system = td.System.load(name)
    for kernel_class, dtype, flops, moved in itertools.product(
        ("matmul", "attention", "memory", "vocabulary"), ("bfloat16", "float32"),
        (0, 10**6, 10**9, 10**13), (10**3, 10**6, 10**9),
    ):  # fmt: skip
        least = max(
            flops / system.peak_flops_per_s(dtype, kernel_class),
            moved / system.memory_bandwidth_bytes_per_s,
        )
        assert system.roofline(flops, moved, kernel_class, dtype).time_s >= least


@pytest.mark.parametrize("name", FAMILY)
def test_every_number_that_ships_has_a_source(name: str) -> None:
    numbers = sourced_numbers(td.System.load(name))
    assert [number.name for number in numbers if number.source == "no source is stated"] == []
    assert len({number.name for number in numbers}) == len(numbers)


@pytest.mark.parametrize("name", FAMILY)
def test_a_system_reads_back_as_it_was_written(name: str) -> None:
    system = td.System.load(name)
    again = td.System.from_dict(json.loads(json.dumps(to_data(system))))
    assert again.device == system.device
    assert again.intra_node == system.intra_node
    assert again.constants == system.constants
    ranks = range(2 * system.intra_node.devices_per_node)
    for kind in ("all_reduce", "all_gather", "all_to_all"):
        times = [each.collective_time_s(kind, 10**7, ranks) for each in (system, again)]
        assert times[1] == pytest.approx(times[0])


def test_a_data_sheet_alone_makes_a_system_that_says_what_it_assumes() -> None:
    system = td.System.from_dict(SHEET)
    assumed = {number.name for number in sourced_numbers(system) if number.is_assumed}
    assert {"intra_node.curves", "constants.hop_us", "kernels.matmul.default"} <= assumed
    assert "device.memory_bandwidth_GBps" not in assumed
    wire = 2 * 3 / 4 * 10**9
    elapsed = system.collective_time_s("all_reduce", 10**9, range(4))
    assert wire / 150e9 < elapsed < 2 * wire / 150e9


def test_a_system_that_states_no_schema_version_is_of_the_newest() -> None:
    unversioned = {key: value for key, value in SHEET.items() if key != "schema_version"}
    assert td.System.from_dict(unversioned) == td.System.from_dict(SHEET)


def test_a_file_without_a_name_is_named_as_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({key: SHEET[key] for key in ("device", "network")}))
    assert td.System.load(path) == td.System.from_dict({**SHEET, "name": "mine"})


def test_a_node_alone_is_a_system_whose_link_to_others_is_assumed() -> None:
    data = copy.deepcopy(SHEET)
    del data["network"]["inter_node"]  # type: ignore[attr-defined]
    system = td.System.from_dict(data)
    numbers = {number.name: number for number in sourced_numbers(system)}
    rate = numbers["inter_node.bandwidth_per_nic_GBps"]
    assert rate.value == 1.25 and rate.is_assumed
    assert td.System.from_dict(to_data(system)) == system


def test_the_price_and_power_of_the_system_replace_those_of_the_device() -> None:
    system = td.System.from_dict(
        {**SHEET, "device": "h100-sxm", "price_per_device_hour_usd": 2.5, "watts_per_device": 650}
    )
    assert (system.device.price_per_hour, system.device.watts) == (2.5, 650)
    assert td.System.load("h100").device.price_per_hour is None


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("device",), "h100-sxn", "there is no device"),
        (("network",), "hgx-h101", "there is no network"),
        (("device", "memory_bandwith_GBps"), 3, "memory_bandwith_GBps"),
        (("device", "matmul_TFLOPs"), {"default": "fast"}, "fast"),
        (("network", "intra_node"), {"name": "link"}, "devices_per_node"),
        (("device",), 3, "system/device: 3 is not an object"),
        (("network",), [], "system/network: "),
        (("library",), "nccl", "no curves of 'nccl'"),
        (("network", "sources"), 3, "is not an object"),
        (("constants",), {"hop_us": {"value": -1, "source": "x"}}, "-1"),
        (
            ("constants",),
            {"nic_efficiency": {"value": 2, "source": "x"}},
            "less than or equal to 1",
        ),
        (("kernles",), "flash", "kernles"),
    ],
)
def test_wrong_content_is_refused_by_name(path: tuple[str, ...], value: object, words: str) -> None:
    data = copy.deepcopy(SHEET)
    inner: dict[str, object] = data
    for key in path[:-1]:
        inner = inner[key]  # type: ignore[assignment]
    inner[path[-1]] = value
    with pytest.raises(HardwareError, match=words) as caught:
        td.System.from_dict(data)
    assert caught.value.code in ("DIST0701", "DIST0703")


def test_all_faults_of_a_system_are_reported_with_their_places() -> None:
    data = copy.deepcopy(SHEET)
    data["device"]["memory_bandwith_GBps"] = data["device"].pop("memory_bandwidth_GBps")
    data["device"]["matmul_TFLOPs"]["default"] = 10**400
    data["network"]["intra_node"]["devices_per_node"] = 4.0
    data["network"]["constants"] = {"hop_us": 3}
    data["constants"] = {"hopp_us": {"value": 3, "source": "x"}}
    data["watts_per_device"] = "700"
    with pytest.raises(HardwareError) as caught:
        td.System.from_dict(data)
    faults = {v.location.removeprefix("system/"): v for v in caught.value.violations}
    assert set(faults) == {
        "device/memory_bandwith_GBps",
        "device/matmul_TFLOPs/default",
        "network/intra_node/devices_per_node",
        "network/constants/hop_us",
        "constants/hopp_us",
        "watts_per_device",
    }
    assert {v.code for v in faults.values()} == {"DIST0703"}
    assert faults["device/memory_bandwith_GBps"].remedy == 'Did you mean "memory_bandwidth_GBps"?'
    assert faults["constants/hopp_us"].remedy == 'Did you mean "hop_us"?'


def test_an_unknown_device_and_an_unknown_network_are_reported_together() -> None:
    with pytest.raises(HardwareError) as caught:
        td.System.from_dict({**SHEET, "device": "h100-sxn", "network": "hgx-h101", "kernels": 3})
    codes = {v.location: v.code for v in caught.value.violations}
    assert codes == {"device": "DIST0701", "network": "DIST0701", "system/kernels": "DIST0703"}


def test_vector_peaks_of_a_data_sheet_default_to_a_share_of_the_matrix_peak() -> None:
    system = td.System.from_dict(SHEET)
    assert system.device.vector_TFLOPs == {"default": 25 / 16}
    assert system.sources["device.vector_TFLOPs"].startswith("assumed")


@pytest.mark.parametrize("name", ["h100+4xa100", "b200+dgx-h100"])
def test_devices_of_several_types_without_stages_are_refused_by_name(name: str) -> None:
    with pytest.raises(HardwareError, match=r"DIST0706.*several types of devices.*in order: \""):
        td.System.load(name)


def test_devices_of_several_types_are_those_of_stages() -> None:
    system = td.System.load("h100,a100-40gb")
    assert [stage.name for stage in system.stages] == ["h100", "a100-40gb"]
    assert system.memory_capacity_bytes == td.System.load("a100-40gb").memory_capacity_bytes
    assert system.name == "h100,a100-40gb" and not system.has_one_network


def test_a_file_lists_the_devices_of_stages() -> None:
    mixed = {"schema_version": 2, "name": "mixed", "device": ["h100-sxm", "a100-sxm"]}
    system = td.System.from_dict({**mixed, "network": "hgx-h100"})
    assert system.name == "mixed" and system.has_one_network
    assert [stage.device.name for stage in system.stages] == ["H100-SXM5-80GB", "A100-SXM4-80GB"]
    with pytest.raises(HardwareError, match="DIST0703"):
        td.System.from_dict({**mixed, "device": [], "network": "hgx-h100"})
