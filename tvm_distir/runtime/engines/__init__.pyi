# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .base import Engine as Engine
from .reference import Reference as Reference
from .reference import strip_annotations as strip_annotations
from .registry import engine as engine
from .registry import engine_names as engine_names
from .registry import register_engine as register_engine
from .registry import run as run
