"""The analyst's process: it works, it is gone afterwards, and its death is explained."""

import multiprocessing
import os
import signal

import pytest
from conftest import make_config

from pipelines.analyst import Analysis, start_analyst
from pipelines.values import Content
from shards.errors import ShardsmithError


def test_the_end_does_not_wait_for_tensorflow_to_load():
    with start_analyst():
        (child,) = multiprocessing.active_children()
    child.join(10)
    assert not child.is_alive()


def test_the_death_of_the_process_is_explained(tmp_path):
    with start_analyst() as analyst:
        (child,) = multiprocessing.active_children()
        os.kill(child.pid, signal.SIGKILL)
        with pytest.raises(ShardsmithError, match="tf.Transform's process died, probably for lack of memory"):
            analyst.run(Analysis([], tmp_path, [], make_config("raw", "out"), Content(), {}))
