# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Systems as data: the files that come with the package, and what is refused."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.plain_systems import PLAIN_A100
from tvm_distir.hardware.systems.system import System
from tvm_distir.hardware.systems.system_reader import DATA, system_aliases, system_names
from tvm_distir.hardware.systems.system_writer import to_data
from tvm_distir.support.errors.tree import HardwareError


@pytest.fixture
def data():
    return json.loads(Path(PLAIN_A100).read_text())


def test_names():
    assert {"a100", "h100", "laptop-cpu"} <= set(system_names())
    assert System.load("dgx-h100") == replace(System.load("h100"), name="dgx-h100")
    assert set(system_aliases().values()) <= set(system_names())
    assert not set(system_aliases()) & set(system_names())


@pytest.mark.parametrize("name", system_names())
def test_every_number_has_a_source(name):
    data = json.loads((DATA / f"{name}.json").read_text())
    assert System.load(name).name == name == data["name"]
    if data["schema_version"] == 2:  # test_system_family.py asks their devices and networks
        return

    def keys(value, path):
        if not isinstance(value, dict):
            return [path] if isinstance(value, (int, float)) else []
        return [leaf for key, single in value.items() for leaf in keys(single, [*path, key])]

    sources = data.pop("sources")
    data.pop("schema_version")
    for constant in data.pop("constants", {}).values():
        assert constant["source"] and constant["unit"] and constant["meaning"]
    leaves = keys(data, [])
    assert len(leaves) > 15
    for leaf in leaves:
        named = [".".join(leaf[:n]) for n in range(2, len(leaf) + 1)]
        assert any(key in sources for key in named), leaf
    prefixes = {".".join(leaf[:n]) for leaf in leaves for n in range(1, len(leaf) + 1)}
    assert set(sources) <= prefixes, "a source of something that is not there"


def test_load_by_path(tmp_path, data):
    data["name"] = "mine"
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(data))
    mine, stock = System.load(path), System.load(PLAIN_A100)
    assert mine.name == "mine"
    assert mine.device == stock.device
    assert System.load(str(path)) == mine
    assert mine.memory_capacity_bytes == 80 * 1024**3


def test_a_system_without_a_description_is_written_and_read(data):
    del data["description"]
    system = System.from_dict(data)
    assert system.description == ""
    assert System.from_dict(to_data(system)) == system


def test_frozen():
    with pytest.raises(AttributeError):
        System.load("dgx-a100").name = "other"


def refused(data, code="DIST0703"):
    with pytest.raises(HardwareError) as caught:
        System.from_dict(data, "s.json")
    assert caught.value.code == code
    return str(caught.value)


def changed(data, path, value):
    out = copy.deepcopy(data)
    *head, last = path.split("/")
    node = out
    for key in head:
        node = node[key]
    if value is ...:
        del node[last]
    else:
        node[last] = value
    return out


def test_missing_names_the_available():
    with pytest.raises(HardwareError) as caught:
        System.load("dgx-a10")
    text = str(caught.value)
    assert text.startswith("DIST0701")
    assert 'Did you mean "dgx-a100"?' in text
    for name in system_names():
        assert text.count(f" {name}") == 1 + sum(
            other.startswith(name) for other in system_names() if other != name
        )


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("A100_80G", "a100-80gb"),
        ("L40", "l40s"),
        ("mi300xx", "mi300x"),
        ("v100", None),
        ("mi455x", None),
        ("rtx3080", None),
        ("b100", None),
    ],
)
def test_another_model_number_is_not_suggested(name, suggestion):
    with pytest.raises(HardwareError, match="data sheet") as caught:
        System.load(name)
    assert caught.value.remedy.partition("Available: ")[0].strip() == (
        "" if suggestion is None else f'Did you mean "{suggestion}"?'
    )


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("H100-SXM", "h100-sxm"), ("NVIDIA H100", "h100"), ("RTX 4090", "rtx-4090"),
        ("a100_40gb", "a100-40gb"), ("AMD MI300X", "mi300x"),
    ],
)  # fmt: skip
def test_names_are_read_as_people_write_them(written, name):
    assert System.load(written) == System.load(name)


@pytest.mark.parametrize("content", ["{", "", "\x00", '{"a": }'])
def test_no_json(tmp_path, content):
    path = tmp_path / "broken.json"
    path.write_text(content)
    with pytest.raises(HardwareError) as caught:
        System.load(path)
    assert caught.value.code == "DIST0702"
    assert str(path) in str(caught.value)


def test_binary_file(tmp_path):
    path = tmp_path / "binary.json"
    path.write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(HardwareError, match="DIST0702"):
        System.load(path)


def test_unknown_key_names_the_nearest(data):
    text = refused(changed(data, "device/memory_bandwith_GBps", 1.0))
    assert "s.json/device/memory_bandwith_GBps" in text
    assert 'Did you mean "memory_bandwidth_GBps"?' in text


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("schema_version", 3),
        ("schema_version", True),
        ("device/memory_capacity_GiB", ...),
        ("device/memory_capacity_GiB", 0),
        ("device/memory_capacity_GiB", -1),
        ("device/memory_capacity_GiB", "80"),
        ("device/memory_capacity_GiB", True),
        ("device/memory_bandwidth_GBps", float("nan")),
        ("device/memory_bandwidth_GBps", float("inf")),
        ("device/launch_floor_us", -0.5),
        ("device/matmul_TFLOPs", {"float16": 312}),
        ("device/matmul_TFLOPs", [312]),
        ("device/efficiency/matmul", ...),
        ("device/efficiency/matmul/flops", 1.5),
        ("device/efficiency/matmul/flops", 0),
        ("device/efficiency/mamtul", {"flops": 1, "bandwidth": 1}),
        ("intra_node/devices_per_node", 0),
        ("intra_node/devices_per_node", 8.0),
        ("intra_node", ...),
        ("inter_node/nics_per_node", None),
        ("name", ""),
        ("name", 3),
        ("sources", []),
        ("sources/x", 3),
    ],
)
def test_wrong_values(data, path, value):
    bad = changed(data, path, value)
    assert path.split("/")[0] in refused(bad)


def test_another_schema_version_names_the_supported_versions(data):
    assert "Use schema version 1 or 2." in refused(changed(data, "schema_version", 3))


@pytest.mark.parametrize("whole", [[], None, 3, "text"])
def test_no_object(whole):
    refused(whole)


@pytest.mark.parametrize("name", ["tpu-v4-like", "dgx-a100-megatron"])
def test_all_faults_of_a_file_are_reported_with_their_places(name, tmp_path):
    data = json.loads((DATA / f"{name}.json").read_text())
    data["device"]["memory_bandwith_GBps"] = data["device"].pop("memory_bandwidth_GBps")
    data["intra_node"]["latency_us"] = "3"
    data["inter_node"]["nics_per_node"] = 0
    data["sources"]["device.matmul_TFLOPs"] = 7
    data["device"]["matmul_TFLOPs"] = {"float16": 312}
    del data["intra_node"]["name"]
    path = tmp_path / "faults.json"
    path.write_text(json.dumps(data))
    with pytest.raises(HardwareError, match="DIST0703") as caught:
        System.load(path)
    faults = {v.location.removeprefix(f"{path}/"): v for v in caught.value.violations}
    assert set(faults) == {
        "device/memory_bandwith_GBps",
        "device/matmul_TFLOPs",
        "intra_node/latency_us",
        "intra_node/name",
        "inter_node/nics_per_node",
        "sources/device.matmul_TFLOPs",
    }
    assert {v.code for v in faults.values()} == {"DIST0703"}
    assert "memory_bandwidth_GBps" in faults["device/memory_bandwith_GBps"].remedy


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("device/launch_floor_us", 3.0),
        ("device/efficiency", {}),
        ("constants/matmul_efficiency", ...),
        ("constants/matmul_efficiency/value", 1.5),
        ("constants/matmul_efficiency/source", ""),
        ("constants/hop_us/value", -1),
        ("constants/hop_us/value", "1"),
        ("constants/overlap_slowdown", {"value": 0.9, "source": "assumed"}),
        ("constants/hopp_us", {"value": 1, "source": "assumed"}),
    ],
)
def test_wrong_constants(path, value):
    data = json.loads((DATA / "dgx-a100-megatron.json").read_text())
    assert f"s.json/{path}" in refused(changed(data, path, value))


def test_a_key_that_stands_twice_is_refused(tmp_path):
    path = tmp_path / "twice.json"
    text = Path(PLAIN_A100).read_text()
    path.write_text(text.replace('"name"', '"kernels": "eager", "kernels": "eager", "name"', 1))
    with pytest.raises(HardwareError, match=r'DIST0703.*"kernels" occurs twice'):
        System.load(path)
