"""The two kinds of failure that a person using the command line can cause, and how a command ends with them."""

import os
import sys
from collections.abc import Callable

DONE, FAILED, BAD_USAGE = 0, 1, 2
RESTART = 75  # EX_TEMPFAIL of sysexits.h: the same command, given again, goes on
INTERRUPTED = 130  # what shells make of Ctrl-C: a person wanted to stop, so nobody restarts it


class ShardsmithError(Exception):
    """The work failed for a reason that the user can act on; the message names the value, the place and the remedy."""

    exit_code = FAILED


class UsageError(ShardsmithError):
    """The request itself is wrong (config, flag or path); found before any work starts."""

    exit_code = BAD_USAGE


class RestartMe(ShardsmithError):
    """The work was cut short by something that passes: a lost worker, a preemption. Nothing saved is lost."""

    exit_code = RESTART


class Interrupted(RestartMe):
    """A person stopped the work with Ctrl-C. Nothing saved is lost, and the same command goes on."""

    exit_code = INTERRUPTED


def run(command: Callable[[], int]) -> int:
    """Runs a command and turns a user's mistake into one line on stderr and an exit code; bugs keep their traceback."""
    try:
        code = command()
        sys.stdout.flush()  # now, while it can be handled that nobody listens
        return code
    except ShardsmithError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # `... | head` has closed our output; what is left would fail again when Python exits
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return FAILED
