# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Map earlier module paths to the modules that hold what they name, until version 0.3.

Programs of users have ``tvm_distir.strategy``, ``python -m tvm_distir.serve`` and so on. A path is
an alias: importing it gives the module itself, so that an object has the same identity under both
names. Nothing in this repository uses these paths.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import CodeType, ModuleType

PATHS = {
    "analysis": "core.analysis",
    "cli": "interface.command",
    "cli.__main__": "interface.command.__main__",
    "errors": "support.errors",
    "frontend": "models",
    "frontend.zoo": "models.zoo",
    "ir": "core.ir",
    "ir.attributes": "core.ir.attributes.readers",
    "ir.ops": "core.ir.operators.ops",
    "ir.rewrite": "core.rewriting",
    "ops": "core.ops",
    "ops.local": "core.ops.local",
    "ops.validate": "execution.rule_validation",
    "ops.validate.__main__": "execution.rule_validation.__main__",
    "plan": "core.plan",
    "program": "performance.program",
    "propagation": "core.propagation",
    "redistribution": "core.redistribution",
    "runtime": "execution.runtime",
    "searching": "planning.search",
    "serve": "interface.serve",
    "simulation": "performance.simulation",
    "strategy": "planning.strategies",
    "strategy.facts": "planning.strategies.model_info",
    "strategy.training": "planning.strategies.training_parts",
    "system": "hardware.systems",
    "transform": "transforms",
    "transform.gradient": "transforms.training",
    "transform.gradient.optimizers": "transforms.training.optimizers",
    "transform.legalize": "core.passes.legalize",
    "verification": "execution.verification",
}
"""The module that each earlier path stands for, both without the name of the package."""

_PACKAGE = __name__.rpartition(".")[0]


class _AliasFinder(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Finds the earlier paths; each gives the module that it is an alias of."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return a spec for a documented path, None for any other."""
        package, _, path_name = fullname.partition(".")
        if package != _PACKAGE or path_name not in PATHS:
            return None
        return importlib.util.spec_from_loader(fullname, self, is_package=self.is_package(fullname))

    def _target(self, fullname: str) -> str:
        return f"{_PACKAGE}.{PATHS[fullname.partition('.')[2]]}"

    def is_package(self, fullname: str) -> bool:
        """Return whether the module has modules inside."""
        spec = importlib.util.find_spec(self._target(fullname))
        return spec is not None and spec.submodule_search_locations is not None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """Return the module itself, and remember its spec."""
        module = importlib.import_module(self._target(spec.name))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module back its spec: it has been executed already."""
        if module.__spec__ is not None and module.__spec__.loader_state is not None:
            module.__spec__ = module.__spec__.loader_state

    def get_source(self, fullname: str) -> str | None:
        """Return the source of the module, for ``python -m``."""
        loader = self._loader(fullname)
        return loader.get_source(self._target(fullname))

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the code of the module, for ``python -m``."""
        return self._loader(fullname).get_code(self._target(fullname))

    def _loader(self, fullname: str) -> importlib.abc.InspectLoader:
        spec = importlib.util.find_spec(self._target(fullname))
        if spec is None or not isinstance(spec.loader, importlib.abc.InspectLoader):
            raise ImportError(f"no module {fullname}", name=fullname)
        return spec.loader


sys.meta_path.insert(0, _AliasFinder())
