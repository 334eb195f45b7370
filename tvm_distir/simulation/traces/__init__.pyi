# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .chakra import chakra_files as chakra_files
from .files import trace_form as trace_form
from .files import write_file as write_file
from .hta import hta_pages as hta_pages
from .perfetto import write_perfetto as write_perfetto
from .sheets import Kind as Kind
from .sheets import Sheet as Sheet
from .sheets import Task as Task
from .sheets import Traced as Traced
from .sheets import Wires as Wires
