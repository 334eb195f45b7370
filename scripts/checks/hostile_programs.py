# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Cases of ``hostile.py`` that call the package: each runs a program in its folder.

A program returns whether its results are those of the reference. It is refused where it raises a
DistIRError; any other exception is a fault.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

CACHE = "cache"
"""The cache folder, beside the inputs of each case."""
MEASURE = "analyze m.py --plan plan.json --system system.json --measure --json"
LEAST_S = 1e-7
"""The kernels of a device take longer."""
Program = Callable[[], bool]


def programs() -> Iterator[tuple[str, str, Program]]:
    """Names, what is expected (``equal``, ``refused`` or ``equal or refused``), and programs."""
    if importlib.util.find_spec("torch") is not None:
        for index in (64, -1, 100_000):
            yield f"index-torch-{index}", "refused", lambda index=index: _torch_index(index)
    for index, expected in ((-1, "equal"), (-65, "refused"), (64, "refused"), (100_000, "refused")):
        yield f"index-onnx-{index}", expected, lambda index=index: _onnx_index(index)
    for content in ("cut short", "empty", "a list", "texts", "NaN", "negative"):
        name = f"cache-{content.replace(' ', '-')}"
        yield name, "equal", lambda content=content: _broken_cache(content)
    yield "cache-no-folder", "equal", _no_cache
    for folder in ("../other", "absolute"):
        yield f"manifest-{folder.strip('./')}", "refused", lambda folder=folder: _manifest(folder)
    yield "threads", "equal or refused", _threads
    for operator in ("divide", "floor_divide", "floor_mod", "mod"):
        yield f"zero-verify-{operator}", "equal or refused", lambda op=operator: _zero_verify(op)
    for operator in ("Div", "Mod"):
        yield f"zero-onnx-{operator}", "equal", lambda op=operator: _zero_onnx(op)
    yield "kernel-symbolic", "equal", _symbolic_kernel
    yield "kernel-no-block", "equal or refused", lambda: _verified(_module(_NO_BLOCK))
    for call, text in _UNREGISTERED.items():
        yield f"packed-verify-{call}", "refused", lambda text=text: _verified(_module(text))
        yield f"packed-run-{call}", "refused", lambda text=text: _ran(_module(text))
    for operator, text in _CONTRADICTORY.items():
        yield f"dims-{operator}", "refused", lambda text=text: _contradictory(text)
    yield "simulate-module", "equal", _simulate_module
    yield "sweep-module", "refused", _sweep_module
    for field, value in _WRONG_FIELDS.items():
        yield f"plan-type-{field}", "refused", lambda value=value: _wrong_plan(**value)
    for name, value in (("number", 3), ("object", object()), ("bytes", b"\x00"), ("list", [[]])):
        yield f"stablehlo-{name}", "refused", lambda value=value: _foreign_stablehlo(value)
    yield "not-well-formed", "refused", lambda: _verified(_undefined())
    yield "search-text", "equal", _search_text
    yield "hta-new-folder", "equal", lambda: _traced("other/new/hta")
    yield "hta-file", "refused", lambda: _traced("m.py")
    for name, expression in _FOREIGN_CODE.items():
        yield f"script-{name}", "refused", lambda text=expression: _foreign_code(text)


def _module(text: str) -> Any:
    import tvm
    from tvm.script import ir, relax, tirx

    return tvm.script.from_source(text, {"I": ir, "R": relax, "T": tirx})


def _plan(param: str = "x", placement: str = "S[0]") -> dict[str, Any]:
    rule = {"param": param, "placement": placement}
    return {"schema_version": 1, "mesh": {"dp": 2}, "rules": [rule]}


def _verified(mod: Any) -> bool:
    import tvm_distir as td

    return bool(td.verify(mod, _plan()).equal)


def _ran(mod: Any) -> bool:
    import numpy as np

    import tvm_distir as td

    td.run(td.distribute(mod, _plan()), [np.ones((8, 8), "f4")], engine="virtual")
    return False  # there is no such function: no result can be right


def _torch_index(index: int) -> bool:
    """Look an id up that the table does not have: torch raises IndexError."""
    import numpy as np
    import torch

    import tvm_distir as td

    table = torch.nn.Embedding(64, 16)
    model = torch.nn.Sequential(table).eval()
    exported = torch.export.export(model, (torch.zeros(4, 8, dtype=torch.int64),))
    mod = td.from_exported_program(exported)
    dist = td.distribute(mod, td.planning.make_plan(mod, "tensor_parallel", {"tp": 2}))
    ids = np.zeros((4, 8), np.int64)
    ids[0, 0] = index
    td.run(dist, [ids, table.weight.detach().numpy()], engine="virtual")
    return False


def _onnx_model(operator: str, inputs: dict[str, tuple[int, list[int]]], output: Any) -> Any:
    from onnx import helper

    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node(operator, list(inputs), ["y"])],
        "g",
        [value(name, *about) for name, about in inputs.items()],
        [value("y", *output)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _onnx_index(index: int) -> bool:
    """Gather: an index from -64 to 63 is right, any other an error."""
    import numpy as np
    from onnx import TensorProto

    import tvm_distir as td

    inputs = {"table": (TensorProto.FLOAT, [64, 16]), "ids": (TensorProto.INT64, [8])}
    mod = td.from_onnx(_onnx_model("Gather", inputs, (TensorProto.FLOAT, [8, 16])))
    dist = td.distribute(mod, _plan("table"))
    table = np.random.default_rng(0).standard_normal((64, 16)).astype("f4")
    ids = np.zeros(8, np.int64)
    ids[0] = index
    (result,) = td.run(dist, [table, ids], engine="virtual")
    return -64 <= index < 64 and bool(np.array_equal(result, table[ids]))


def _zero_onnx(operator: str) -> bool:
    """Divide integers by zero: ONNX leaves it open, here the results are those of XLA."""
    import numpy as np
    from onnx import TensorProto

    import tvm_distir as td

    tensor = (TensorProto.INT32, [8])
    mod = td.from_onnx(_onnx_model(operator, {"a": tensor, "b": tensor}, tensor))
    values = [np.ones(8, "i4"), np.zeros(8, "i4")]
    (result,) = td.run(td.distribute(mod, _plan("a")), values, engine="virtual")
    return bool((result == {"Div": -1, "Mod": 1}[operator]).all())


def _zero_verify(operator: str) -> bool:
    """Verify a division of integers: the inputs that are drawn must not divide by zero."""
    return _verified(
        _module(f"""
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((8, 8), "int32"), y: R.Tensor((8, 8), "int32")):
        with R.dataflow():
            z = R.{operator}(x, y)
            R.output(z)
        return z
""")
    )


def _measured() -> bool:
    """Whether kernels that are measured take a time that they can take."""
    from tvm_distir.interface.command import main

    with contextlib.redirect_stdout(io.StringIO()) as printed:
        code = main(MEASURE.split())
    devices = json.loads(printed.getvalue())["devices"] if code == 0 else []
    return bool(devices) and all(device["compute_s"] > LEAST_S for device in devices)


def _broken_cache(content: str) -> bool:
    """Whether times are measured again that were kept in a file which is broken."""
    (file,) = Path(CACHE).rglob("*.json")
    whole = file.read_bytes()
    names = json.loads(whole)
    broken = {
        "cut short": whole[: len(whole) // 2],
        "empty": b"",
        "a list": b"[1]",
        "texts": json.dumps(dict.fromkeys(names, "1")).encode(),
        "NaN": json.dumps(dict.fromkeys(names, float("nan"))).encode(),
        "negative": json.dumps(dict.fromkeys(names, -1.0)).encode(),
    }
    file.write_bytes(broken[content])
    return _measured()


def _no_cache() -> bool:
    """Measure where no folder for the times can be made."""
    shutil.rmtree(CACHE)
    Path(CACHE).write_text("a file", encoding="utf-8")
    return _measured()


def _manifest(elsewhere: str) -> bool:
    """Load a folder whose manifest names a library outside of it."""
    import numpy as np

    import tvm_distir as td

    mod = td.from_tvmscript("m.py")
    weights = dict(np.load("w.npz"))
    other = Path("other" if elsewhere.startswith("..") else Path.cwd() / "other")
    other.mkdir()
    td.deploy(td.distribute(mod, td.Plan.load("plan.json")), "deployed", weights)
    manifest = json.loads(Path("deployed", "manifest.json").read_text(encoding="utf-8"))
    library = manifest["entries"][0]["library"]
    shutil.move(Path("deployed", library), other / library)
    name = str(Path(elsewhere if elsewhere.startswith("..") else other, library))
    manifest["files"][name] = manifest["files"].pop(library)
    for entry in manifest["entries"]:
        entry["library"] = name
    Path("deployed", "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    td.load("deployed", check=True).run([np.ones((8, 16), "f4")], engine="virtual")
    return False


def _threads() -> bool:
    """Run one program from four threads at a time, each with an input of its own."""
    import numpy as np

    import tvm_distir as td

    lines = "\n".join(f"            v{i + 1} = R.nn.relu(R.matmul(v{i}, w))" for i in range(12))
    mod = _module(f"""
@I.ir_module
class Module:
    @R.function
    def main(v0: R.Tensor((64, 64), "float32"), w: R.Tensor((64, 64), "float32")):
        with R.dataflow():
{lines}
            R.output(v12)
        return v12
""")
    dist = td.distribute(mod, _plan("v0"))
    eye = np.eye(64, dtype="f4")
    td.run(dist, [eye, eye], engine="virtual")
    right: list[bool] = []
    errors: list[Exception] = []

    def work(number: int) -> None:
        values = np.full((64, 64), number + 1, "f4")
        for _ in range(30):
            try:
                (result,) = td.run(dist, [values, eye], engine="virtual")
                right.append(bool(np.array_equal(result, values)))
            except Exception as error:
                errors.append(error)

    workers = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
    if errors:
        raise errors[0]
    return len(right) == 120 and all(right)


def _symbolic_kernel() -> bool:
    """Verify a kernel over rows whose number is symbolic until it is bound."""
    from tvm import te, tirx
    from tvm.relax.frontend import nn

    import tvm_distir as td

    def unpack(packed: Any, scale: Any) -> Any:
        rows, words = packed.shape
        mask = tirx.const(15, "uint32")

        def value(i: Any, j: Any) -> Any:
            bits = (packed[i, j // 8] >> tirx.Cast("uint32", (j % 8) * 4)) & mask
            return bits.astype("float32") * scale[i, j // 32]

        return te.compute((rows, words * 8), value, name="unpack")

    class Model(nn.Module):
        def __init__(self) -> None:
            self.packed = nn.Parameter(("vocab_size", 16), "uint32")
            self.scale = nn.Parameter(("vocab_size", 4), "float32")

        def forward(self, x: Any) -> Any:
            weight = nn.op.tensor_expr_op(unpack, "unpack", [self.packed, self.scale])
            return nn.op.matmul(x, nn.op.permute_dims(weight))

    spec = {"forward": {"x": nn.spec.Tensor((8, 128), "float32")}}
    mod = td.bind_dims(Model().export_tvm(spec)[0], {"vocab_size": 256})
    plan = _plan("packed")
    plan["rules"].append({"param": "scale", "placement": "S[0]"})
    return bool(td.verify(mod, plan).equal)


def _contradictory(text: str) -> bool:
    """Bind dims to sizes that cannot be together."""
    import tvm_distir as td

    td.bind_dims(_module(text), {"n": 3, "m": 4})
    return False


def _simulate_module() -> bool:
    """Simulate a module of level 5 that was not exported."""
    import tvm_distir as td

    mod = td.distribute(td.from_tvmscript("m.py"), td.Plan.load("plan.json"))
    system = td.System.load("system.json")
    return td.simulate(mod, system).time_s == td.simulate(td.export(mod), system).time_s


def _sweep_module() -> bool:
    """Sweep a module in place of the name of a model."""
    import tvm_distir as td

    td.sweep(td.from_tvmscript("m.py"), [{"dp": 2}], "dgx-a100")
    return False


def _wrong_plan(**fields: Any) -> bool:
    """Make a plan with a field of a wrong type."""
    import tvm_distir as td

    td.Plan(**{"mesh": {"dp": 2}, **fields})
    return False


def _foreign_stablehlo(value: Any) -> bool:
    """Import what is no text, path, module or lowered function."""
    import tvm_distir as td

    td.from_stablehlo(value)
    return False


def _undefined() -> Any:
    """Return a module whose function reads a variable that nothing binds."""
    import tvm
    from tvm import relax

    x, other = (relax.Var(name, relax.TensorType((8, 8), "float32")) for name in "xy")
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(relax.op.add(x, x)))
        builder.emit_func_output(result)
    main = relax.utils.copy_with_new_vars(builder.get()["main"])
    body = relax.SeqExpr(main.body.blocks, other)
    changed = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    return tvm.IRModule({"main": changed.with_attr("global_symbol", "main")})


def _search_text() -> bool:
    """Search plans of the text of a model: they are those of its module."""
    import tvm_distir as td

    text = "zoo:mlp?layers=1,hidden=8"
    by_text, by_module = (
        td.search(model, 2, td.System.load("system.json"), top=1, workers=1).plans[0].row.time_s
        for model in (text, td.load_model(text).mod)
    )
    return by_text == by_module


def _traced(folder: str) -> bool:
    """Write traces into a folder that is not there, or is none."""
    import tvm_distir as td

    local = td.distribute(td.from_tvmscript("m.py"), td.Plan.load("plan.json"))
    td.simulate(local, td.System.load("system.json")).to_hta(folder)
    return len(list(Path(folder).iterdir())) == 4


def _foreign_code(expression: str) -> bool:
    """Read TVMScript with code that does more than describe a module."""
    import tvm_distir as td

    text = Path("m.py").read_text(encoding="utf-8")
    td.from_tvmscript(text.replace("R.nn.relu(h)", expression))
    return False


_WRONG_FIELDS: dict[str, dict[str, Any]] = {
    "mesh": {"mesh": "dp=2"}, "rules": {"rules": "x"}, "rule": {"rules": [3]},
    "schedule": {"schedule": "1f1b"}, "recompute": {"recompute": "all"},
    "labels": {"labels": 3}, "ring": {"ring": 3}, "attention": {"attention": "flash"},
}  # fmt: skip
_FOREIGN_CODE = {
    "import": '__import__("os").mkdir("made")',
    "open": 'open("made", "w")',
    "comprehension": "[R.nn.relu(h) for _ in (1,)][0]",
    "attribute": "R.nn.__class__",
}
_NO_BLOCK = """
@I.ir_module
class Module:
    @T.prim_func(s_tir=True)
    def double(a: T.Buffer((8, 8), "float32"), b: T.Buffer((8, 8), "float32")):
        for i, j in T.grid(8, 8):
            b[i, j] = a[i, j] * T.float32(2)

    @R.function
    def main(x: R.Tensor((8, 8), "float32")):
        cls = Module
        with R.dataflow():
            y = R.call_tir(cls.double, (x,), out_ty=R.Tensor((8, 8), "float32"))
            R.output(y)
        return y
"""
_CALLS = {
    "pure": 'R.call_pure_packed("no.such.function", x, ty_args=(R.Tensor((8, 8), "float32"),))',
    "dps": 'R.call_dps_packed("no.such.function", (x,), out_ty=R.Tensor((8, 8), "float32"))',
}
_UNREGISTERED = {
    name: f"""
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((8, 8), "float32")):
        with R.dataflow():
            y = {call}
            R.output(y)
        return y
"""
    for name, call in _CALLS.items()
}
_CONTRADICTORY = {
    operator: f"""
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n", 8), "float32"), y: R.Tensor((8, "m"), "float32")):
        with R.dataflow():
            z = {call}
            R.output(z)
        return z
"""
    for operator, call in {
        "add": "R.add(x, R.permute_dims(y))",
        "matmul": "R.matmul(R.permute_dims(x), R.permute_dims(y))",
        "reshape": "R.reshape(x, R.shape([4, 16]))",
    }.items()
}
