# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run TVM's own DistIR tests with the plugin's passes in place of TVM's.

``python scripts/peers/run_tvm_distir_tests.py PATH_TO_TVM`` where PATH_TO_TVM is a checkout of
apache/tvm (its ``tests/python/relax/distributed`` is read, nothing of it is copied here).

The tests look PropagateSharding, LegalizeRedistribute and LowerDistIR up when they run: each is
replaced by the plugin's, and TVM's native functions behind them are replaced by ones that raise,
so that no stock pass can do the work. Prints how often each replacement was called.
"""

from __future__ import annotations

import collections
import sys
from pathlib import Path
from typing import Any

import pytest

REPLACED = ("PropagateSharding", "LegalizeRedistribute", "LowerDistIR")


class DropIn:
    """A pytest plugin that swaps the passes while the tests run."""

    def __init__(self) -> None:
        self.calls: collections.Counter[str] = collections.Counter()
        self.tests: set[str] = set()
        self.current = ""

    def pytest_configure(self) -> None:
        """Swap TVM's passes for the plugin's and make TVM's own raise."""
        from tvm.relax.distributed import transform as stock
        from tvm.relax.distributed.transform import _ffi_api

        from tvm_distir.core import passes  # of the package, or of the compiler alone

        def refuse(*_: Any) -> None:
            raise AssertionError("a stock pass was called")

        for name in REPLACED:
            setattr(stock, name, self.counted(name, getattr(passes, name)))
            if not hasattr(_ffi_api, name):
                raise RuntimeError(f"TVM has no native {name}: nothing would be replaced")
            setattr(_ffi_api, name, refuse)

    def counted(self, name: str, factory: Any) -> Any:
        """The factory, counting its calls and the tests that made them."""

        def make() -> Any:
            self.calls[name] += 1
            self.tests.add(self.current)
            return factory()

        return make

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Note which test runs."""
        self.current = item.nodeid


def main() -> int:
    """Run the tests; 2 when the checkout is not one."""
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    folder = Path(sys.argv[1]) / "tests" / "python" / "relax"
    if not (folder / "distributed").is_dir():
        print(f"{folder / 'distributed'} is missing: is this a checkout of TVM?", file=sys.stderr)
        return 2
    plugin = DropIn()
    options = ["-q", "-p", "no:cacheprovider", "-c", "/dev/null", f"--rootdir={folder}"]
    code = pytest.main([*options, str(folder / "distributed"), *sys.argv[2:]], plugins=[plugin])
    print(f"replaced passes called in {len(plugin.tests)} tests: {dict(plugin.calls)}")
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
