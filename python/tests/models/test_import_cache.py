# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Imports of archives are cached by content, and a comparison loads its model once."""

from __future__ import annotations

import gzip
import json
import warnings

import pytest
import tvm

torch = pytest.importorskip("torch", reason="the extra torch is not installed")

import tvm_distir as td  # noqa: E402
from tvm_distir.interface.command import main  # noqa: E402
from tvm_distir.models import model as models  # noqa: E402
from tvm_distir.models.common import import_cache  # noqa: E402
from tvm_distir.models.torch import importer  # noqa: E402
from tvm_distir.support.errors.tree import ModelError  # noqa: E402


class Scaled(torch.nn.Module):
    """Two linear layers and a table of numbers, which becomes a constant of the module."""

    def __init__(self, start):
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)
        self.register_buffer("order", torch.arange(start, start + 8), persistent=False)

    def forward(self, x):
        return self.second(torch.relu(self.first(x))) * self.order


def save(path, start=0, width_seed=0):
    torch.manual_seed(width_seed)
    dims = {"x": {0: torch.export.Dim("rows", min=2, max=64)}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(Scaled(start), (torch.ones(4, 8),), dynamic_shapes=dims)
        torch.export.save(program, path)
    return path


@pytest.fixture
def imports(monkeypatch, tmp_path):
    """The archives that the importer reads, in order, with a cache of this test alone."""
    monkeypatch.setattr(import_cache, "CACHE", tmp_path / "cache")
    read, names = importer.from_exported_program, []

    def counted(source, **options):
        names.append(source)
        return read(source, **options)

    monkeypatch.setattr(importer, "from_exported_program", counted)
    return names


def test_same_content_is_imported_once(imports, tmp_path):
    first = save(tmp_path / "first.pt2")
    second = tmp_path / "second.pt2"
    second.write_bytes(first.read_bytes())
    created = td.from_exported_program(first, batch=4)
    read = td.from_exported_program(second, batch=4)
    assert imports == [first]
    for key in ("format", "source"):
        expected = {"format": "torch", "source": str(second)}
        assert str(read.attrs["dist.frontend"][key]) == expected[key]
    hidden = {"format": "torch", "source": ""}
    tvm.ir.assert_structural_equal(
        created.with_attr("dist.frontend", hidden), read.with_attr("dist.frontend", hidden), True
    )
    assert {str(n) for n in read["main"].attrs["dist.param_names"]} >= {"x", "first.weight"}
    assert models.load_weights(read).keys() == models.load_weights(created).keys() != set()


def test_options_constants_and_sources_are_part_of_the_key(imports, tmp_path, monkeypatch):
    archive = save(tmp_path / "net.pt2")
    td.from_exported_program(archive, batch=4)
    assert int(td.from_exported_program(archive, batch=6)["main"].params[0].ty.shape[0]) == 6
    other = save(tmp_path / "other.pt2", start=1)
    texts = [td.from_exported_program(a, batch=4).script(show_meta=True) for a in (archive, other)]
    assert texts[0] != texts[1] and len(imports) == 3
    monkeypatch.setattr(import_cache, "sources_digest", lambda skipped: "other sources")
    td.from_exported_program(other, batch=4)
    assert len(imports) == 4


def test_faults_are_not_cached_and_broken_files_are_replaced(imports, tmp_path):
    archive = save(tmp_path / "net.pt2")
    for _ in range(2):
        with pytest.raises(ModelError, match="DIST0313"):
            td.from_exported_program(archive)
    td.from_exported_program(archive, batch=4)
    (file,) = (tmp_path / "cache" / "imports").glob("*.json.gz")
    for content in (b"no gzip", gzip.compress(json.dumps({"nodes": 1}).encode())):
        file.write_bytes(content)
        with pytest.warns(UserWarning, match="cannot be used"):
            td.from_exported_program(archive, batch=4)
    assert len(imports) == 5
    td.from_exported_program(archive, batch=4)
    assert len(imports) == 5


def test_comparison_loads_the_model_once(monkeypatch, tmp_path, capsys):
    read, specs = models.load_model, []

    def counted(spec, **options):
        specs.append(spec)
        return read(spec, **options)

    monkeypatch.setattr("tvm_distir.planning.model_loading.load_model", counted)
    ways = ["--strategy", "data_parallel", "--strategy", "tensor_parallel"]
    meshes = ["--mesh", "dp=2", "--mesh", "tp=2"]
    model = "zoo:mlp"
    assert main(["compare", model, *ways, *meshes, "--system", "dgx-a100", "--json"]) == 0
    assert specs == [model]
    assert len(json.loads(capsys.readouterr().out)["results"]) == 2
