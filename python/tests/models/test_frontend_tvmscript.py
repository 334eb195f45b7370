# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""TVMScript files: what is read, what is refused and where."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi

from tests.quick_compilation import quick_machine
from tvm_distir.models import zoo
from tvm_distir.models.tvmscript import from_tvmscript
from tvm_distir.support.errors.tree import ModelError

HEAD = '''"""A file."""
from __future__ import annotations
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

N = 4
'''

PLAIN = """
@I.ir_module
class Plain:
    @R.function
    def main(x: R.Tensor((N, 3), "float32")) -> R.Tensor((N, 3), "float32"):
        y = R.add(x, x)
        return y
"""

DIST = """
@I.ir_module
class Dist:
    I.module_attrs({"device_num": 2})
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

    @R.function
    def main(x: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
        lv = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
        return lv

    @R.function
    def spread(
        x: R.DTensor((4, 4), "float32", "mesh[0]", "S[0]")
    ) -> R.DTensor((4, 4), "float32", "mesh[0]", "R"):
        lv = R.dist.all_gather(x, device_mesh="mesh[0]", mesh_axis=0, dim=0)
        return lv
"""


def write(tmp_path, text, name="model.py"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_file_gives_the_module_and_computes(tmp_path):
    mod = from_tvmscript(write(tmp_path, HEAD + PLAIN))
    vm = quick_machine(mod)
    x = np.arange(12, dtype="float32").reshape(4, 3)
    np.testing.assert_array_equal(vm["main"](tvm.runtime.tensor(x)).numpy(), 2 * x)


def test_dist_ops_and_several_modules(tmp_path):
    path = write(tmp_path, HEAD + PLAIN + DIST)
    mod = from_tvmscript(f"{path}::Dist")
    assert mod.attrs["device_num"] == 2
    assert "R.dist.all_gather" in mod.script()
    assert tvm_ffi.structural_equal(from_tvmscript(mod.script(show_meta=True)), mod)
    with pytest.raises(ModelError, match=r"DIST0322 .*Plain, Dist"):
        from_tvmscript(path)
    with pytest.raises(ModelError, match=r'DIST0322 .*Did you mean "Plain"'):
        from_tvmscript(f"{path}::Plan")


def test_aliases_of_the_usual_imports(tmp_path):
    text = PLAIN.replace("I.", "tvmir.").replace("R.", "rx.").replace("N", "4")
    for package in ("tvm.script", "tvm.script.parser"):
        lines = f"import tvm\nfrom {package} import ir as tvmir, relax as rx\n"
        mod = from_tvmscript(write(tmp_path, lines + text))
        assert tvm_ffi.structural_equal(mod, from_tvmscript(HEAD + PLAIN))


def test_printed_module_with_constants_round_trips(tmp_path):
    mod = zoo.gpt(size="tiny")
    path = write(tmp_path, mod.script(show_meta=True))
    assert tvm_ffi.structural_equal(from_tvmscript(path), mod)


def test_a_module_that_was_printed_without_its_constants(tmp_path):
    text = zoo.gpt(size="tiny").script()
    path = write(tmp_path, text)
    line = next(n for n, line in enumerate(text.splitlines(), 1) if "metadata[" in line)
    with pytest.raises(ModelError, match=rf"DIST0323 .*:{line}: .*constants") as caught:
        from_tvmscript(path)
    assert "show_meta=True" in caught.value.remedy


def test_a_name_of_the_users_own_that_is_called_metadata(tmp_path):
    text = PLAIN.replace("y = R.add(x, x)", "metadata = x").replace("return y", "return metadata")
    assert "metadata" in from_tvmscript(write(tmp_path, HEAD + text)).script()


def test_the_file_is_not_executed(tmp_path):
    witness = tmp_path / "witness"
    line = f"import os; os.mkdir({str(witness)!r})\n"
    with pytest.raises(ModelError, match="DIST0321"):
        from_tvmscript(write(tmp_path, line + HEAD + PLAIN))
    assert not witness.exists()


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        (HEAD + PLAIN.replace("R.add(x, x)", "R.add(x,"), "DIST0320", 12),
        (HEAD + PLAIN.replace("R.add(x, x)", "R.ad(x, x)"), "DIST0323", 12),
        (HEAD + PLAIN.replace("R.add(x, x)", "R.matmul(x, x)"), "DIST0323", 12),
        (HEAD + PLAIN.replace("R.add(x, x)", "missing"), "DIST0323", 12),
        (HEAD + DIST.replace("mesh[0]", "mesh[3]", 1), "DIST0323", 15),
        (HEAD + PLAIN + "import numpy\n", "DIST0321", 14),
        (HEAD + "from tvm.script import te\n" + PLAIN, "DIST0321", 7),
        (HEAD + "from .other import Module\n" + PLAIN, "DIST0321", 7),
        (HEAD + "M = open('x')\n" + PLAIN, "DIST0321", 7),
        (HEAD + "A, B = 1, 2\n" + PLAIN, "DIST0321", 7),
        (HEAD + "def f():\n    pass\n" + PLAIN, "DIST0321", 7),
        ('metadata = tvm.ir.load_json("""{""")\n' + PLAIN, "DIST0321", 1),
        ("metadata = tvm.ir.load_json(open('x'))\n" + PLAIN, "DIST0321", 1),
    ],
)
def test_malformed_files_name_the_line(tmp_path, text, code, line, capfd):
    path = write(tmp_path, text)
    with pytest.raises(ModelError) as caught:
        from_tvmscript(path)
    assert caught.value.code == code
    assert caught.value.location == f"{path}:{line}"
    assert "\n" not in str(caught.value)
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""


def test_a_module_that_breaks_a_rule_of_relax_is_told_which(tmp_path):
    impure = 'R.call_packed("f", x, ty_args=(R.Tensor((4, 4), "float32"),))'
    with pytest.raises(ModelError, match="DIST0323") as caught:
        from_tvmscript(write(tmp_path, HEAD + PLAIN.replace("R.add(x, x)", impure)))
    assert "main: " in str(caught.value) and "impure call: R.call_packed" in str(caught.value)
    assert "0x" not in str(caught.value) and "pure=False" in caught.value.remedy


def test_missing_empty_and_binary_files(tmp_path):
    with pytest.raises(ModelError, match="DIST0301"):
        from_tvmscript(tmp_path / "none.py")
    with pytest.raises(ModelError, match="DIST0322"):
        from_tvmscript(write(tmp_path, HEAD))
    binary = tmp_path / "binary.py"
    binary.write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(ModelError, match="DIST0320"):
        from_tvmscript(binary)


@pytest.mark.parametrize(
    "expression",
    [
        '__import__("os").mkdir(MARK)',
        'eval("1")',
        'open(MARK, "w")',
        "R.add.__globals__",
        "R.frame.tvm",
        "R.nn.nn",
        "tvm.get_global_func",
        'tvm.runtime.load_module("x.so")',
        "R.const(1).data.numpy().tofile(MARK)",
        "R.emit_te(R.add, x, x)",
        "[R.add(x, x) for _ in range(2)][0]",
        'T.call_kernel("source", 1)',
        "(lambda: ().__class__)()",
        'f"{x.__class__}"',
    ],
)
def test_nothing_but_names_of_tvm_literals_and_arithmetic(tmp_path, expression):
    mark = tmp_path / "mark"
    text = HEAD + PLAIN.replace("R.add(x, x)", expression.replace("MARK", repr(str(mark))))
    with pytest.raises(ModelError, match=r"DIST032[13]"):
        from_tvmscript(write(tmp_path, text))
    assert not mark.exists()


@pytest.mark.parametrize(
    "member",
    [
        "@I.pyfunc\n    def f(a):\n        return a\n\n",
        "@R.macro\n    def f(a):\n        return a\n\n",
        "import os\n\n",
        "@(lambda f: f)\n    def f(a):\n        a.b.tofile(a)\n\n",
    ],
)
def test_members_that_run_python_are_refused(tmp_path, member):
    text = (HEAD + PLAIN).replace("@R.function", f"{member}    @R.function", 1)
    with pytest.raises(ModelError, match="DIST0321"):
        from_tvmscript(write(tmp_path, text))
