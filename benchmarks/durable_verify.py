"""What verifying costs: MB/s of a full check against plain sequential reading of the same files in the same run.

Both are measured from the page cache, which is the harder comparison, and from the disk; and so is reading with
sha256 alone, which bounds every check that proves that a file is the one that was written. All use as many processes.
"""

import hashlib
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median

from shards.example import encode_example
from shards.files import write_atomically
from shards.manifest import FORMAT_VERSION, MANIFEST, Counts, FeatureEntry, Manifest, ShardEntry, SourceEntry, SplitEntry
from shards.manifest import read_manifest
from shards.records import RecordWriter
from shards.verify import verify
