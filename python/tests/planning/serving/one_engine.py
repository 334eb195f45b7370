# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Serve requests by a single engine."""

from tvm_distir.planning.serving.engine_loop import EngineLoop


def serve_requests(requests, *numbers, **options):
    """Return the times of requests; the other parameters are those of ``EngineLoop``."""
    ((_, served),) = EngineLoop(*numbers, **options).serve(requests)
    return served
