# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""[Relax][DistIR] `PropagateSharding` gives other results from run to run

A module on two meshes, read from one text again and again. Most runs place every value; the
others end with an error about conflicting shardings of a value, of one value or another. The
order in which annotated axes are visited follows a table hashed by address; the last visit wins.

Expected: one result, whatever the addresses are.
"""

import tvm
from reporting import report
from tvm.relax.distributed import transform
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

TEST = "test_04_one_result.py::test_the_result_does_not_depend_on_addresses"
RUNS = 64


@I.ir_module
class Module:
    I.module_global_infos(
        {"mesh": [R.device_mesh((1,), I.Range(0, 1)), R.device_mesh((1,), I.Range(1, 2))]}
    )

    @R.function
    def main(
        x: R.Tensor((4, 4), "float32"),
        a: R.Tensor((4, 4), "float32"),
        b: R.Tensor((4, 4), "float32"),
        c: R.Tensor((4, 4), "float32"),
        d: R.Tensor((4, 4), "float32"),
    ) -> R.Tensor((4, 4), "float32"):
        with R.dataflow():
            x0 = R.dist.annotate_sharding(x, device_mesh="mesh[0]", placement="R")
            a0 = R.dist.annotate_sharding(a, device_mesh="mesh[0]", placement="R")
            b0 = R.dist.annotate_sharding(b, device_mesh="mesh[0]", placement="R")
            y = R.matmul(R.nn.relu(R.matmul(x0, a0)), b0)
            y1 = R.dist.annotate_sharding(y, device_mesh="mesh[1]", placement="R")
            c1 = R.dist.annotate_sharding(c, device_mesh="mesh[1]", placement="R")
            d1 = R.dist.annotate_sharding(d, device_mesh="mesh[1]", placement="R")
            z = R.matmul(R.nn.relu(R.matmul(y1, c1)), d1)
            R.output(z)
        return z


def outcome(text: str) -> str:
    """Return what one run gives: the text of the module, or of the error."""
    mod = tvm.script.from_source(text)
    try:
        return transform.PropagateSharding()(mod).script()
    except Exception as error:
        return f"error: {str(error).strip().splitlines()[-1]}"


def reproduce() -> str:
    """Run the pass on the same text many times."""
    text = Module.script()
    outcomes = [outcome(text) for _ in range(RUNS)]
    failed = [each for each in outcomes if each.startswith("error: ")]
    print(
        f"measured: {len(failed)} of {RUNS} runs fail, with {len(set(failed))} different messages"
    )
    print("runs that succeed agree:", len(set(outcomes) - set(failed)) <= 1)
    print("all runs agree:", len(set(outcomes)) == 1)
    if len(set(outcomes)) > 1:
        return "differs from run to run"
    return failed[0] if failed else "ok"


if __name__ == "__main__":
    report(reproduce)
