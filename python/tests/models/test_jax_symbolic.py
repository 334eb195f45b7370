# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Modules of ``jax.export`` with symbolic dims are imported with sizes for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="the extra jax is not installed")

import jax.numpy as jnp  # noqa: E402
from jax import export  # noqa: E402

import tvm_distir as td  # noqa: E402
from tvm_distir.models.model import load_model  # noqa: E402
from tvm_distir.support import ModelError  # noqa: E402


def model(p: Any, x: Any, ids: Any) -> Any:
    h = jax.nn.softmax(jnp.tanh(x @ p["w"]), -1) + jnp.arange(x.shape[1])[None, :, None]
    h = jnp.concatenate([h, h], 1)[:, ::2]
    return h.reshape(-1, 4).mean(0), h.mean() + ids.sum() / x.shape[0]


@pytest.fixture(scope="module")
def exported() -> Any:
    b, s = export.symbolic_shape("b, s", constraints=["b>=2", "mod(s,2)==0"])
    specs = ((16, 8), "float32"), ((b, 2 * s, 16), "float32"), ((b,), "int32")
    w, x, ids = (jax.ShapeDtypeStruct(*spec) for spec in specs)
    return export.export(jax.jit(model))({"w": w}, x, ids)


def test_results_on_two_devices_are_those_of_jax(exported: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.jax"
    path.write_bytes(exported.serialize())
    rng = np.random.default_rng(0)
    w, x = (rng.normal(size=shape).astype("float32") for shape in ((16, 8), (4, 4, 16)))
    ids = np.arange(4, dtype="int32")
    for mod in (
        td.from_stablehlo(exported, dims={"b": 4, "s": 2}),
        load_model(str(path), dims={"b": 4, "s": 2}).mod,
    ):
        assert [str(name) for name in mod["main"].attrs["dist.param_names"]] == ["x", "ids", "p.w"]
        plan = td.planning.make_plan(mod, "data_parallel", {"dp": 2})
        results = td.run(td.distribute(mod, plan), [x, ids, w])
        for a, b in zip(results, model({"w": w}, x, ids), strict=True):
            np.testing.assert_allclose(a, np.asarray(b), rtol=1e-5)


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ({"b": 4}, r"the symbolic dims s have no sizes .*--dim s=N"),
        ({}, r"the symbolic dims b, s have no sizes"),
        ({"b": 4, "s": 2, "t": 1}, r'no symbolic dim "t"'),
        ({"b": 1, "s": 2}, r"do not match the symbolic shape constraint b>=2"),
        ({"b": 4, "s": 3}, r"do not match the symbolic shape constraint .*s"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(exported: Any, dims: Any, message: str) -> None:
    with pytest.raises(ModelError, match=f"DIST0313 .*{message}"):
        td.from_stablehlo(exported, dims=dims)


def test_sizes_of_a_module_without_symbolic_dims_are_refused() -> None:
    lowered = jax.jit(jnp.tanh).lower(np.zeros(4, "float32"))
    with pytest.raises(ModelError, match=r'DIST0313 .*there is no symbolic dim "b"'):
        td.from_stablehlo(lowered, dims={"b": 4})
