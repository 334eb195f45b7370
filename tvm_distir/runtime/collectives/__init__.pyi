# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .ccl import ARGS as ARGS
from .ccl import PREFIX as PREFIX
from .fabric import Aborted as Aborted
from .fabric import Fabric as Fabric
from .fabric import Watched as Watched
from .fabric import call_words as call_words
from .fabric import failure_text as failure_text
from .fabric import ranks_text as ranks_text
from .legalize import register_legalization as register_legalization
from .native_fabric import NativeFabric as NativeFabric
from .transfers import Route as Route
from .transfers import Transfers as Transfers
