# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .cache import CACHE as CACHE
from .cache import CacheFile as CacheFile
from .files import file_fault as file_fault
from .files import parse_json as parse_json
from .files import read_json as read_json
from .files import read_text as read_text
from .record import RECORD as RECORD
from .record import OutputRecord as OutputRecord
from .record import digest_file as digest_file
from .values import LARGEST as LARGEST
from .values import JsonValue as JsonValue
from .values import Refuse as Refuse
from .whole import write_whole as write_whole
