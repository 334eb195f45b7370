# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Start gathers of parameters before the function that needs them is called."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

from tvm import ir, relax
from tvm.relax import Binding, BindingBlock, Var

from tvm_distir.core.ir import flat_types, is_private
from tvm_distir.core.ir.attributes import COUNT_PHASE, IN_FLIGHT_ATTR, phase_of
from tvm_distir.core.ir.operators import new_name, started_op, started_ops
from tvm_distir.core.passes import Rewrite, module_pass
from tvm_distir.core.redistribution import local_bytes
from tvm_distir.core.rewriting import (
    BlockWriter,
    callee_of,
    make_call,
    retyped,
    typed,
    variables,
    with_body,
    with_functions,
)
from tvm_distir.hardware import System
from tvm_distir.support import memoized

from .binding_costs import BindingCosts, BodyCosts
from .call_sites import CallSites
from .dependence import block_nodes, peak_bytes
from .function_facts import Scan
from .lifting import GatherPrologue, HoistedGathers


@module_pass("local")
def PrefetchGathers(
    system: System | str = "a100", *, ahead_bytes: int | None = None, units: bool = False
) -> Rewrite:
    """Start gathers of parameters before the call of the function that needs them.

    What a private function gathers of its parameters, where these are there early (weights), is
    started by a function of its own, ``layer_gathers``, whose result is in flight (the attribute
    ``dist.in_flight``) and which ``layer`` takes; it waits for each tensor at its first use. A
    caller calls ``layer_gathers`` as long before ``layer`` as the gathers travel, at most one
    such call ahead: so those of the next layer travel while this one computes. Only gathers are
    taken out without which a call would take longer. Collectives have to be split; other ones
    stay, and so do those of functions that are called in branches. Where entries share a mesh
    nothing is done: all its devices must meet in one order.

    Parameters
    ----------
    system : System or str
        System whose times decide.
    ahead_bytes : int, optional
        Maximum additional bytes of gathers that start early. None: a sixteenth of what the values
        take that are bound where the function is called. Where all gathers of a function take
        more, those that are needed first are taken.
    units : bool
        Whether a function has all of its gathers start early or none, whatever bytes they take, as
        FSDP prefetches a block.

    Returns
    -------
    pass : tvm.transform.Pass
    """
    known = system if isinstance(system, System) else System.load(system)
    return lambda mod: _Prefetch(mod, known, ahead_bytes, units).run()


class _Prefetch:
    """Rewriter of a module that hoists gathers out of functions and into their callers."""

    def __init__(
        self, mod: ir.IRModule, system: System, ahead_bytes: int | None, units: bool
    ) -> None:
        self.mod, self.ahead_bytes, self.units = mod, ahead_bytes, units
        self.costs = BindingCosts(mod, system)
        self.calls = CallSites(mod)
        self.functions = self.calls.functions

    def run(self) -> ir.IRModule:
        """Return the module, or the given module if nothing can start earlier."""
        if self.calls.share_a_mesh:
            return self.mod
        parts: dict[ir.GlobalVar, HoistedGathers] = {}
        for gv, fn in self.functions.items():
            lifted = self._lifted(gv, fn)
            if lifted is not None:
                parts[gv] = lifted
        if not parts:
            return self.mod
        old_functions = dict(self.mod.functions.items())
        used_names = {str(gv.name_hint) for gv in old_functions}
        named: dict[ir.GlobalVar, SplitPrefetch] = {}
        for gv, lifted in parts.items():
            name = new_name(f"{gv.name_hint}_gathers", used_names)
            gathers = typed(ir.GlobalVar(name), lifted.gathers.ty)
            named[gv] = SplitPrefetch(lifted, gathers, retyped(gv, lifted.rest.ty))
        callers = {caller for gv in parts for caller, _ in self.calls.of[gv]}
        functions: dict[ir.GlobalVar, ir.BaseFunc] = {}
        for gv, fn in old_functions.items():
            split = named.get(gv)
            body = fn if split is None else split.lifted.rest
            if gv in callers:
                body = _Caller(body, named, self.costs).run()
            if split is not None:
                functions[split.gathers] = split.lifted.gathers
            functions[gv if split is None else split.rest] = body
        return with_functions(self.mod, functions)

    def _lifted(self, gv: ir.GlobalVar, fn: relax.Function) -> HoistedGathers | None:
        """Return the gathers hoisted out of a function, or None if there are none."""
        if not is_private(fn) or gv in self.calls.barred or not self.calls.of[gv]:
            return None
        if phase_of(fn) == COUNT_PHASE:  # it runs for other micro-batches too, as a whole
            return None
        noted = fn.attrs[IN_FLIGHT_ATTR] if fn.attrs and IN_FLIGHT_ATTR in fn.attrs else {}
        if len(fn.body.blocks) != 1 or "params" in noted:
            return None
        if not started_ops(fn.body.blocks[0].bindings):
            return None
        head = GatherPrologue(fn, self.calls.early_params(gv), self.costs)
        if not head.starts:
            return None
        if self.units:
            count = head.all_or_none()
        else:
            callers = dict.fromkeys(caller for caller, _ in self.calls.of[gv])
            count = head.fitting(min(self._most_bytes(caller) for caller in callers))
        return head.lifted(count) if count else None

    @memoized
    def _most_bytes(self, caller: ir.GlobalVar) -> int:
        """Return the most bytes that prefetched values may occupy beyond the caller's values."""
        if self.ahead_bytes is not None:
            return self.ahead_bytes
        fn = self.functions[caller]
        scan = Scan.of(fn)
        blocks = block_nodes(scan, self.costs.of(scan.reading))
        most = max((peak_bytes(nodes, range(len(nodes))) for nodes in blocks), default=0)
        param_bytes = sum(local_bytes(t) for param in fn.params for t in flat_types(param.ty))
        return (param_bytes + most) // 16


class SplitPrefetch:
    """Function split in two, with both names in the new module."""

    def __init__(self, lifted: HoistedGathers, gathers: ir.GlobalVar, rest: ir.GlobalVar) -> None:
        self.lifted, self.gathers, self.rest = lifted, gathers, rest


class _Caller:
    """Rewriter of a caller that starts gathers before the calls that wait for them."""

    def __init__(
        self, fn: relax.Function, named: Mapping[ir.GlobalVar, SplitPrefetch], costs: BindingCosts
    ) -> None:
        self.fn, self.named, self.costs = fn, named, costs

    def run(self) -> relax.Function:
        """Return the function with its calls split in two."""
        costs = self.costs.of(Scan.of(self.fn).reading)
        blocks, first = [], 0
        for block in self.fn.body.blocks:
            blocks.append(self._block(block, costs, first))
            first += len(block.bindings)
        return with_body(
            self.fn, self.fn.params, blocks, self.fn.body.body, bool(self.fn.is_pure), self.fn.attrs
        )

    def _block(self, block: BindingBlock, costs: BodyCosts, first: int) -> BindingBlock:
        bindings = block.bindings[:]
        calls = [n for n, b in enumerate(bindings) if callee_of(b.value) in self.named]
        writer = BlockWriter(relax.BlockBuilder(), isinstance(block, relax.DataflowBlock))
        begun: dict[int, list[int]] = defaultdict(list)

        def spent_ps(number: int) -> int:
            return costs.picoseconds(first + number)

        for earlier, number in zip([-1, *calls], calls):
            begun[self._locate(bindings, spent_ps, earlier, number)].append(number)
        flying: dict[int, Var] = {}
        for number, binding in enumerate(bindings):
            for later in begun[number]:
                flying[later] = self._begin(writer, bindings[later])
            if number in flying:
                binding = self._waiting(binding, flying[number])
            writer.bindings.append(binding)
        return writer.block()

    def _locate(
        self, bindings: list[Binding], spent_ps: Callable[[int], int], earlier: int, number: int
    ) -> int:
        """Return the last binding before which a start still leaves enough time.

        Not before the call ``earlier``, so that at most a single call is ahead, nor before another
        collective of the caller, which may be needed first.
        """
        value = bindings[number].value
        lifted = self.named[value.op].lifted
        needs = {var for n in lifted.given for var in variables(value.args[n])}
        left_ps, position = lifted.transfer_ps, number
        while left_ps > 0 and position > max(earlier, 0):
            binding = bindings[position - 1]
            if binding.var in needs or started_op(binding.value) is not None:
                break
            position -= 1
            left_ps -= spent_ps(position)
        return position

    def _begin(self, writer: BlockWriter, binding: Binding) -> Var:
        begun, old = self.named[binding.value.op], binding.value.args[:]
        args = [old[n] for n in begun.lifted.given]
        call = make_call(begun.gathers, args, None, [], begun.lifted.gathers.ret_ty)
        return writer.add(call, f"{binding.var.name}_gathers")

    def _waiting(self, binding: Binding, flying: Var) -> Binding:
        call = binding.value
        begun, old = self.named[call.op], call.args[:]
        args = [*(old[n] for n in begun.lifted.kept), flying]
        new = make_call(begun.rest, args, call.attrs, call.ty_args, call.ty, call.span)
        return relax.VarBinding(binding.var, new)
