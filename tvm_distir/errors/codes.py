# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Every error code, in one line each. A code never changes its meaning."""

from __future__ import annotations

CODES: dict[str, str] = {
    # 01xx: environment and usage
    "DIST0101": "apache-tvm is missing or of a version the plugin does not support",
    "DIST0102": "apache-tvm-ffi is missing or of a version the plugin does not support",
    "DIST0110": "the native library of the plugin is missing or of another version",
    "DIST0150": "the command line cannot be read",
    "DIST0151": "options that contradict each other, or an option that another one needs",
    "DIST0152": "the value of an option cannot be read",
    "DIST0153": "an output path cannot be written",
    # 020x, 021x: meshes and placements
    "DIST0201": "a mesh has no axis, or an axis whose size is not a positive integer",
    "DIST0202": "the devices of a mesh do not match its shape, or one stands twice",
    "DIST0203": "a placement text cannot be read",
    "DIST0204": "a placement has another number of entries than the mesh has axes",
    "DIST0205": "a placement shards a dim that the tensor does not have",
    "DIST0206": "an unknown mesh or mesh axis is named",
    "DIST0207": "a collective does not fit the placement or shape of its operand",
    # 022x-029x: plans and strategies
    "DIST0220": "a plan file is missing, cannot be read or is no JSON",
    "DIST0221": "a key or value of a plan is wrong",
    "DIST0222": "a plan is of another schema version",
    "DIST0223": "a rule of a plan matches nothing in the module",
    "DIST0224": "a rule of a plan names something that is no tensor, or is not clear",
    "DIST0225": "a function is named that the module does not have",
    "DIST0226": "a dim is too uneven to be sharded by several mesh axes",
    "DIST0227": "a plan cannot be written",
    "DIST0230": "an unknown strategy is named",
    "DIST0231": "an option of a strategy is unknown or has a wrong value",
    "DIST0232": "strategies contradict each other",
    "DIST0233": "a strategy does not find in the model what it needs",
    "DIST0234": "a size of the model is not divisible as a strategy needs it",
    "DIST0235": "a strategy text cannot be read",
    # 03xx: frontends
    "DIST0301": "a model file is missing or cannot be read",
    "DIST0302": "a MODEL string is of no known kind",
    "DIST0303": "a model file is broken or truncated",
    "DIST0304": "reading this kind of model needs an extra that is not installed",
    "DIST0310": "an ONNX model breaks the rules of ONNX",
    "DIST0311": "an ONNX model uses an operator that cannot be imported",
    "DIST0312": "a node of an ONNX model cannot be imported",
    "DIST0313": "a dim of an input is not known",
    "DIST0314": "the batch of a model cannot be changed",
    "DIST0315": "the weights of a model cannot be read",
    "DIST0320": "a TVMScript file is no Python",
    "DIST0321": "a TVMScript file holds a statement that is not allowed",
    "DIST0322": "a TVMScript file holds no module, or the one to take is not clear",
    "DIST0323": "a TVMScript module cannot be parsed",
    "DIST0330": "the zoo has no such model",
    "DIST0331": "a model of the zoo has no such key or size",
    "DIST0332": "the keys given to the zoo make no model",
    "DIST0340": "the inputs of a module cannot be drawn",
    # 040x-044x: rules and propagation
    "DIST0401": "what a call calls has no sharding rule, and none can be derived",
    "DIST0402": "the shape of an operand or result of a call is unknown",
    "DIST0403": "a sharding rule contradicts itself or its call",
    "DIST0404": "an installed plugin's sharding rules cannot be loaded",
    "DIST0405": "the placements around a call fit no factor of its sharding rule",
    "DIST0406": "an op would get a second sharding rule",
    "DIST0407": "a whole tuple is annotated",
    "DIST0408": "functions call each other recursively",
    "DIST0409": "the module has no mesh",
    "DIST0410": "a labelling problem is too wide to be solved exactly",
    "DIST0411": "a stationary placement cannot be used as it is",
    "DIST0412": "an expression is not in normal form",
    "DIST0413": "control flow cannot be distributed",
    "DIST0414": "a kernel is called directly, not through call_tir",
    "DIST0415": "an annotation names a mesh the module does not have",
    # 045x: levels
    "DIST0451": "a module is not at the IR level that a pass needs",
    # 05xx: lowering
    # 06xx: runtime
    "DIST0601": "an unknown engine is named",
    "DIST0602": "the inputs of a run do not fit the module",
    "DIST0603": "a module has no entry function with the attribute dist.io, or one that is wrong",
    "DIST0604": "devices that must hold the same output hold different bits",
    "DIST0605": "a construct that the engine cannot run",
    "DIST0606": "TVM cannot compile the module",
    "DIST0610": "ranks wait for each other forever",
    "DIST0611": "a collective is called wrongly, or differently by the ranks of its group",
    "DIST0612": "a worker failed",
    "DIST0613": "a rank did not arrive at a collective in time",
    "DIST0614": "Disco, TVM's distributed runtime, is not available in this process",
    "DIST0620": "verify: the reference holds NaN or Inf, which proves nothing",
    "DIST0621": "verify: an output does not depend on the inputs, which proves nothing",
    "DIST0690": "verify: the distributed program gives another result than the original",
    # 07xx: systems and simulation
    # 08xx: infeasible
    # 09xx: our bugs
    "DIST0901": "an internal error: a bug of the plugin",
}
