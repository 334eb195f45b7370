# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .function import LocalFunction as LocalFunction
from .inlining import inline_functions as inline_functions
from .local_view import lower_local_view as lower_local_view
from .passes import LowerDistIR as LowerDistIR
from .sharing import device_classes as device_classes
from .sharing import entry_names as entry_names
from .sharing import merged as merged
from .sharing import transfer_order as transfer_order
from .values import Context as Context
