#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Distribute models as MLC-LLM exports them, and compare their entry points with one device.

    scripts/peers/mlc_families.py MLC_LLM [FAMILY...] [--quantization q0f32] [--strategy NAME]
                                    [--plain] [--symbolic]

``MLC_LLM`` is the folder of a checkout of MLC-LLM; its compiled library is not needed. Each family
is exported with small widths, two layers and packed weights. An entry runs twice on one device, by
stock TVM, and twice on two devices, on the engine ``virtual``; the paged caches are those of the
wheel, on each device with the heads that the plan gives it. With ``--plain`` each weight is a
parameter, with the name that the model gives it, and not a field of a tuple. A line per family,
strategy and entry says ``equal`` with the number of collectives, ``different``, or the code of the
error. With ``--strategy mlc`` the program is MLC-LLM's own, with ``tensor_parallel_shards``. With
``--symbolic`` the dims of tokens and sequences stay symbolic, and one program runs with two sets of
lengths. Needs the package `tqdm`, which MLC-LLM imports. Exits with 1 where anything differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import types
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import ir, relax
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn.llm.kv_cache import RopeMode, TIRPagedKVCache
from tvm.script import relax as R

import tvm_distir as td
from tvm_distir.core.ir import static_shape
from tvm_distir.core.ops import creates_cache
from tvm_distir.core.rewriting import all_bindings, keep_entry
from tvm_distir.support import GenericConst, StringImm
from tvm_distir.support.errors import DistIRError

FAMILIES = (
    *("llama", "mistral", "gemma", "gemma2", "gpt2", "phi", "qwen2", "qwen3", "gpt_neox"),
    *("baichuan", "stablelm", "cohere", "olmo2", "internlm2", "starcoder2", "gpt_bigcode", "phi3"),
)
"""Families by default. TVM's kernels of phi3's cache cannot be built: with scaled rotary factors,
which are tensors, they evaluate ``if ext_factors`` (TVM 0.27)."""
ENTRIES = {
    "embed": [8],
    "prefill": [8],
    "decode": [1],
    "batch_prefill": [4, 4],
    "batch_decode": [1, 1],
    "batch_verify": [4, 4],
}
"""Entry points, and the tokens that each sequence adds to the cache."""
OTHER_LENGTHS = {
    "embed": [12],
    "prefill": [14],
    "decode": [1],
    "batch_prefill": [3, 5, 4],
    "batch_decode": [1, 1, 1, 1],
    "batch_verify": [6, 4],
}
"""Other lengths, with which the program of symbolic dims runs too."""
WIDTHS = {
    **dict.fromkeys(("hidden_size", "n_embd"), 128),
    **dict.fromkeys(("intermediate_size", "n_inner"), 256),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "n_head"), 4),
    **dict.fromkeys(("num_hidden_layers", "n_layer"), 2),
    **dict.fromkeys(
        ("max_position_embeddings", "context_window_size", "n_positions", "n_ctx"), 256
    ),
    **{"vocab_size": 512, "head_dim": 32, "prefill_chunk_size": 64},
    **dict.fromkeys(("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon"), 1e-5),
}
DEVICES = 2
RTOL, ATOL = 1e-3, 1e-4


def import_mlc(root: Path) -> None:
    """Make the package of a checkout importable without its library, and names that it expects."""
    package = types.ModuleType("mlc_llm")
    package.__path__ = [str(root / "python" / "mlc_llm")]
    sys.modules["mlc_llm"] = package
    for name, new in (
        ("Constant", GenericConst),
        ("StringImm", StringImm),
        ("DataTypeImm", R.dtype),
    ):
        if not hasattr(relax, name):
            setattr(relax, name, new)


def exported(
    family: str, quantization: str, plain: bool = False, shards: int = 1
) -> tuple[ir.IRModule, Any]:
    """Return what MLC-LLM exports for a small model of a family: the module and its parameters."""
    from mlc_llm import op
    from mlc_llm.model import MODEL_PRESETS, MODELS
    from mlc_llm.quantization import QUANTIZATION

    presets = (p for p in MODEL_PRESETS.values() if p.get("model_type") == family)
    config = json.loads(json.dumps(next(presets, WIDTHS)))
    config.update({key: value for key, value in WIDTHS.items() if key in config})
    for name, factors in (config.get("rope_scaling") or {}).items():
        if name.endswith("_factor") and isinstance(factors, list):  # one for each pair of features
            config["rope_scaling"][name] = factors[: WIDTHS["head_dim"] // 2]
    config.setdefault("context_window_size", WIDTHS["context_window_size"])
    config.setdefault("prefill_chunk_size", WIDTHS["prefill_chunk_size"])
    config["tensor_parallel_shards"] = shards
    target, model = tvm.target.Target("llvm"), MODELS[family]
    with target:
        op.enable(target=target, flashinfer=False, faster_transformer=False, cutlass=False)
        scheme = QUANTIZATION[quantization]
        created, _ = model.quantize[scheme.kind](model.config.from_dict(config), scheme)
        spec = created.get_default_spec()
        for method in spec.method_specs if plain else ():
            method.param_mode = "plain"
        mod, params, _ = created.export_tvm(spec=spec, allow_extern=True)
    return mod, params


def only(mod: ir.IRModule, entry: str, lengths: Sequence[int] | None) -> ir.IRModule:
    """Return the module with an entry and a vocabulary; without lengths other dims are symbolic."""
    sizes = {"vocab_size": 512}
    if lengths is not None:
        sizes |= {"seq_len": sum(lengths), "batch_size": len(lengths)}
    alone = keep_entry(mod, entry)
    known = {str(v.name) for v in relax.analysis.defined_symbolic_vars(alone[entry])}
    return td.bind_dims(alone, {name: n for name, n in sizes.items() if name in known})


def cache_numbers(mod: ir.IRModule) -> list[Any]:
    """Return the arguments with which the module creates its cache."""
    for fn in mod.functions.values():
        for binding in all_bindings(fn.body) if isinstance(fn, relax.Function) else ():
            if creates_cache(binding.value):
                return list(binding.value.args)[1:]
    raise ValueError("the module creates no cache")


def cache_maker(numbers: Sequence[Any], parts: int) -> Any:
    """Return a function that makes a cache with a part of the heads."""
    layers, queries, keys, query_size, value_size = (int(n) for n in numbers[3:8])
    spec = dict.fromkeys(
        ("max_batch_size", "max_total_seq_len", "prefill_chunk_size", "page_size"), int
    )

    factors = numbers[14] if isinstance(numbers[14], GenericConst) else relax.prim_value(0)

    class Maker(nn.Module):
        """The maker of a cache."""

        def create(
            self,
            max_batch_size: Any,
            max_total_seq_len: Any,
            prefill_chunk_size: Any,
            page_size: Any,
            support_sliding_window: Any,
        ) -> Any:
            """Return the cache."""
            return TIRPagedKVCache(
                "mha", max_batch_size, max_total_seq_len, prefill_chunk_size, page_size,
                support_sliding_window, relax.ShapeExpr([0, layers]), layers, queries // parts,
                max(keys // parts, 1), query_size, value_size, 0, 0, RopeMode(numbers[10].value),
                numbers[11].value, numbers[12].value, json.loads(str(numbers[13].value)),
                factors, int(numbers[15]), False, "float32",
                tvm.target.Target("llvm"),
            )  # fmt: skip

    modes = {"param_mode": "none", "effect_mode": "none"}
    with tvm.target.Target("llvm"):
        mod, _ = Maker().export_tvm({"create": {**spec, "support_sliding_window": int, "$": modes}})
        machine = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    sizes = [tvm.runtime.ShapeTuple([n]) for n in (4, 256, 64, 16, 0)]
    return lambda: machine["create"](*sizes)


def draw(ty: Any, rng: np.random.Generator) -> Any:
    """Return values of a type: weights by their fan-in, words of all bits with small scales."""
    if isinstance(ty, relax.TupleType):
        packed = any(str(field.dtype) == "uint32" for field in ty.fields)
        return [_weight(field, packed, rng) for field in ty.fields]
    shape, dtype = tuple(int(n) for n in static_shape(ty) or ()), str(ty.dtype)
    if dtype.startswith("int"):
        return rng.integers(0, 4, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def _weight(ty: Any, packed: bool, rng: np.random.Generator) -> Any:
    shape, dtype = tuple(int(n) for n in static_shape(ty) or ()), str(ty.dtype)
    if dtype == "uint32":
        return rng.integers(0, 1 << 32, shape).astype(dtype)
    if len(shape) == 1:
        return (1 + 0.1 * rng.standard_normal(shape)).astype(dtype)
    scale = 0.2 / np.sqrt(32 * shape[-1]) if packed else shape[-1] ** -0.5
    values = rng.uniform(0.5, 1.5, shape) if packed else rng.standard_normal(shape)
    return (values * scale).astype(dtype)


def _begin(caches: td.DeviceObjects, lengths: Sequence[int], first: bool) -> None:
    shape = tvm.runtime.ShapeTuple
    for number in range(len(lengths)) if first else ():
        caches.call("vm.builtin.kv_state_add_sequence", number)
    ids = shape(list(range(len(lengths))))
    caches.call("vm.builtin.kv_state_begin_forward", ids, shape(list(lengths)))


def _arguments(fn: relax.Function, rng: np.random.Generator) -> Iterator[Any]:
    """Yield a value for each parameter, None for the cache."""
    packed = any("uint32" in str(param.ty) for param in fn.params)
    for number, param in enumerate(fn.params):
        if isinstance(param.ty, relax.AnyType):
            yield None
        elif number < int(fn.attrs["num_input"]) or isinstance(param.ty, relax.TupleType):
            yield draw(param.ty, rng)
        else:
            yield _weight(param.ty, packed, rng)


def _tensor(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(tvm.runtime.tensor, value))
    return tvm.runtime.tensor(value)


def _results(result: Any) -> list[Any]:
    """Return the tensors among the results."""
    leaves = [result] if hasattr(result, "numpy") else list(result)
    return [leaf.numpy() for leaf in leaves if hasattr(leaf, "numpy")]


class Comparison:
    """The comparison of an entry on one device with two."""

    def __init__(
        self,
        mod: ir.IRModule,
        entry: str,
        lengths: Sequence[int],
        programs: dict[str, ir.IRModule] | None = None,
        local: tuple[ir.IRModule, Any] | None = None,
    ) -> None:
        self.mod, self.entry, self.lengths = only(mod, entry, lengths), entry, lengths
        # With programs, those of symbolic dims by strategy, which several lengths share.
        self.source = self.mod if programs is None else only(mod, entry, None)
        self.programs = {} if programs is None else programs
        if local is not None and "mlc" not in self.programs:
            alone = only(local[0], entry, None if programs is not None else lengths)
            self.programs["mlc"] = td.from_ccl((alone, local[1]), DEVICES)
        self.takes_cache = any(isinstance(p.ty, relax.AnyType) for p in self.mod[entry].params)
        self.values = list(_arguments(self.mod[entry], np.random.default_rng(0)))
        if "logit_positions" in [str(p.name) for p in self.mod[entry].params]:
            at = [str(p.name) for p in self.mod[entry].params].index("logit_positions")
            self.values[at] = (np.cumsum(self.lengths) - 1).astype("int32")

    def one_device(self, create: Any) -> list[Any]:
        """Return the results of the second run of stock TVM."""
        machine = relax.VirtualMachine(tvm.compile(self.mod, "llvm"), tvm.cpu())
        caches = td.DeviceObjects({0: create()} if self.takes_cache else {})
        result: Any = None
        for first in (True, False):
            _begin(caches, self.lengths, first)
            args = [caches.objects[0] if v is None else _tensor(v) for v in self.values]
            result = machine[self.entry](*args)
            caches.call("vm.builtin.kv_state_end_forward")
        return _results(result)

    def several_devices(self, strategy: str, makers: dict[int, Any]) -> tuple[list[Any], int]:
        """Return the results of the second run, and the number of collectives."""
        axis = "dp" if strategy.startswith("data") else "tp"
        dist = self.programs.get(strategy)
        if dist is None:
            plan = td.planning.make_plan(self.source, strategy, {axis: DEVICES})
            dist = self.programs[strategy] = td.distribute(self.source, plan)
        text = dist.script()
        heads = self._divided_by(dist)
        ranks = range(DEVICES)
        caches = td.DeviceObjects(
            {rank: makers[heads]() for rank in ranks} if self.takes_cache else {}
        )
        got: list[Any] = []
        for first in (True, False):
            _begin(caches, self.lengths, first)
            args = [caches if v is None else tuple(v) if isinstance(v, list) else v
                    for v in self.values]  # fmt: skip
            got = td.run(dist, args, "virtual")
            caches.call("vm.builtin.kv_state_end_forward")
        names = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
        count = sum(text.count(f"R.dist.{name}(") for name in names)
        return [g for g in got if isinstance(g, np.ndarray)], count

    def _divided_by(self, dist: ir.IRModule) -> int:
        """Return how many devices divide the heads of attention."""
        heads = []
        for mod in (self.source, dist):
            values = [binding.value for binding in all_bindings(mod[self.entry].body)]
            calls = [v for v in values if isinstance(v, ir.Call) and "fused_qkv" in str(v.args[:1])]
            heads += [int((static_shape(calls[0].ty_args[0]) or (0, 1))[1])] if calls else [1]
        return heads[0] // heads[1]


def compared(case: Comparison, expected: list[Any], strategy: str, makers: dict[int, Any]) -> str:
    """Return ``equal`` with the number of collectives, ``different``, or the code of an error."""
    try:
        got, count = case.several_devices(strategy, makers)
    except DistIRError as error:
        return str(error.code)
    if len(got) != len(expected):
        return "different"
    pairs = zip(got, expected, strict=True)
    same = all(np.allclose(a, b, RTOL, ATOL * float(np.abs(b).max())) for a, b in pairs)
    return f"equal ({count})" if same else "different"


def main() -> int:
    """Compare all families, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mlc", type=Path)
    parser.add_argument("families", nargs="*", default=FAMILIES)
    parser.add_argument("--quantization", default="q0f32")
    parser.add_argument("--strategy", action="append")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--symbolic", action="store_true")
    args = parser.parse_args()
    strategies = args.strategy or ("data_parallel", "tensor_parallel", "megatron")
    warnings.simplefilter("ignore")
    import_mlc(args.mlc)
    differs = False
    for family in args.families:
        try:
            mod, _ = exported(family, args.quantization, args.plain)
            local = None
            if "mlc" in strategies:
                local = exported(family, args.quantization, args.plain, DEVICES)
        except Exception as error:
            reason = str(error).splitlines()[0][:80]
            print(f"{family}: not exported ({type(error).__name__}: {reason})", flush=True)
            continue
        numbers = cache_numbers(mod)
        try:
            makers = {parts: cache_maker(numbers, parts) for parts in (1, DEVICES)}
        except tvm.error.DiagnosticError as error:
            reason = str(error).splitlines()[0][:80]
            print(f"{family}: TVM cannot build its cache ({reason})", flush=True)
            continue
        for entry in ENTRIES:
            programs: dict[str, ir.IRModule] | None = {} if args.symbolic else None
            for lengths in (ENTRIES[entry], OTHER_LENGTHS[entry])[: 1 + args.symbolic]:
                case = Comparison(mod, entry, lengths, programs, local)
                title = f"{family} {args.quantization}{' plain' * args.plain} {entry}"
                title += f" {list(lengths)}" if args.symbolic else ""
                try:
                    expected = case.one_device(makers[1])
                except (RuntimeError, TypeError, ValueError) as error:
                    reason = str(error).strip().splitlines()[0][:80]
                    print(f"{title}: one device fails ({reason})", flush=True)
                    continue
                for strategy in strategies:
                    name = strategy
                    if strategy == "data_parallel" and case.values[0].shape[0] == 1:
                        name = "data_parallel:dim=1"
                    verdict = compared(case, expected, name, makers)
                    differs |= verdict == "different"
                    print(f"{title} {name}: {verdict}", flush=True)
    return int(differs)


if __name__ == "__main__":
    sys.exit(main())
