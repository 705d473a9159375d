"""Signals while a process is busy in C, where Python's own handlers do not get a turn."""

import signal
import subprocess
import sys
from typing import Any

import pytest

from trainer.running.signals import SIGNALS, listening

PROGRAM = """
import ctypes, sys, time
import numpy  # starts threads of its own, which do not inherit what is blocked later
from shards.errors import RestartMe, run
from trainer.running.signals import listening

class Variable:
    value = 0.0
    def assign(self, value):
        self.value = value

def work():
    with listening() as summons:
        leaving = Variable()
        if sys.argv[1] == "attached":
            summons.attach(leaving)
        print("ready", flush=True)
        while not leaving.value:
            ctypes.CDLL(None).usleep(100_000)
        if sys.argv[2] == "busy":
            ctypes.CDLL(None).sleep(600)
        raise RestartMe("saved")

sys.exit(run(work))
"""
NOTHING = "error: stopped on request; there was nothing to save, and the same command starts again\n"
AGAIN = "error: stopped at once by a second signal; the same command resumes from the last checkpoint\n"


def start(*arguments: str) -> Any:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_before_there_is_anything_to_save_it_ends(number: signal.Signals, code: int) -> None:
    process = start("starting", "")
    process.send_signal(number)
    assert process.communicate(timeout=60)[0] == NOTHING
    assert process.returncode == code


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_it_leaves_after_the_save(number: signal.Signals, code: int) -> None:
    process = start("attached", "")
    process.send_signal(number)
    told = f"{number.name}: saving after this step; a second signal ends at once\n"
    assert process.communicate(timeout=60)[0] == f"{told}error: saved\n"
    assert process.returncode == code


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_a_second_signal_ends_at_once(number: signal.Signals, code: int) -> None:
    process = start("attached", "busy")
    process.send_signal(signal.SIGTERM)
    assert "saving after this step" in process.stdout.readline()
    process.send_signal(number)
    assert process.communicate(timeout=60)[0] == AGAIN
    assert process.returncode == code


ORPHAN = """
import os, sys, time
from trainer.running.signals import listening
with listening(supervisor=int(sys.argv[1])):
    print("listening", flush=True)
    time.sleep(600)
"""


def test_a_worker_whose_supervisor_is_gone_does_not_start() -> None:
    result = subprocess.run(
        [sys.executable, "-c", ORPHAN, "1"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (result.returncode, result.stdout) == (75, "")


def test_afterwards_everything_is_as_before() -> None:
    before = [signal.getsignal(number) for number in SIGNALS], signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with listening():
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) >= set(SIGNALS)
    assert ([signal.getsignal(number) for number in SIGNALS], signal.pthread_sigmask(signal.SIG_BLOCK, [])) == before
    assert signal.set_wakeup_fd(-1) == -1
