"""Command line of the build: argv becomes one checked config and Beam's options; nothing else sees flags or YAML."""

import argparse
import logging
import os
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from pipelines.analysis.analyst import start_analyst
from pipelines.config import BuildConfig
from shards import __version__
from shards.errors import DONE, ShardsmithError, run
from shards.manifest import MANIFEST
from shards.settings import load_settings, parse_assignments

_EPILOG = """\
examples:
  python -m pipelines build --source photos --output out/photos --resize center_crop:256
  python -m pipelines build configs/demo.yaml --set shards.target_mb=64
  python -m pipelines build configs/demo.yaml --direct_running_mode=multi_processing --direct_num_workers=8
  python -m pipelines plan configs/demo.yaml
  python -m pipelines append configs/demo.yaml         # new pictures have come
  python -m pipelines append configs/new.yaml --keep-missing   # a config that names only what is new
  python -m pipelines retry configs/demo.yaml          # after mending what rejected/*.jsonl lists
  python -m pipelines compact configs/demo.yaml        # after many appends
  python -m pipelines repair configs/demo.yaml         # when `python -m shards verify` finds damage

Options that are not listed here are Apache Beam's (--runner, --direct_num_workers, ...).
A build that was interrupted goes on when the same command is given again.
Exit codes: 0 done, 1 it failed, 2 bad config or usage.
"""


# The flags of one command alone.
_FLAGS = {
    "build": ("overwrite",),
    "append": ("keep_missing", "allow_removals"),
    "retry": ("keep_missing", "allow_removals"),
}


def make_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(
        prog="python -m pipelines",
        description="Turn raw images and labels into verified TFRecord shards.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"shardsmith {__version__}")
    names = "build|plan|append|retry|compact|repair"
    commands = parser.add_subparsers(dest="command", required=True, metavar=names)
    build = _add_command(commands, "build", "write the dataset")
    build.add_argument(
        "--overwrite",
        action="store_true",
        help="replace a finished dataset at the output, as soon as the new one is complete",
    )
    _add_command(commands, "plan", "dry run: list metadata, print images, classes, splits, shards and estimated bytes")
    append = _add_command(
        commands,
        "append",
        "take up what was added to the sources, changed there or removed from there, as a new version: "
        "shards and splits that are there stay as they are",
    )
    retry = _add_command(
        commands, "retry", "what append does, and try rejected inputs again; also for an unfinished build"
    )
    for command in (append, retry):
        _add_removal_flags(command)
    _add_command(
        commands,
        "compact",
        "merge small shards into the size that the config plans, as a new version: the same examples in the same "
        "splits; no source is opened",
    )
    _add_command(
        commands, "repair", "rebuild only what is damaged or missing, byte for byte, from copies and from the sources"
    )
    return parser


def _add_removal_flags(command: argparse.ArgumentParser) -> None:
    """What to do if more than a tenth of the inputs is gone, which else is taken for a mistake."""
    either = command.add_mutually_exclusive_group()
    either.add_argument(
        "--keep-missing",
        action="store_true",
        help="inputs that are no longer listed stay in the dataset: for configs that name only what is new",
    )
    either.add_argument(
        "--allow-removals", action="store_true", help="inputs that are no longer listed leave it, however many"
    )


def _add_command(commands: Any, name: str, summary: str) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=summary,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.add_argument("config", nargs="?", metavar="CONFIG", help="YAML file; see configs/")
    command.add_argument(
        "--source",
        metavar="PATH",
        help="folder, listing, table, archive, array, TFRecord file, a glob of them, or module:function (source.path)",
    )
    command.add_argument("--output", metavar="DIR", help="where the dataset goes (output)")
    command.add_argument("--resize", metavar="MODE[:SIZE]", help="e.g. center_crop:256, keep_ratio:512 (image.resize)")
    command.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="any config key, e.g. shards.target_mb=64"
    )
    return command


def read_config(arguments: argparse.Namespace) -> BuildConfig:
    """The config file with --set and then the three flags on top."""
    overrides = parse_assignments(arguments.set)
    flags = {"source.path": arguments.source, "output": arguments.output, "image.resize": arguments.resize}
    overrides |= {key: value for key, value in flags.items() if value is not None}
    if arguments.command == "plan":
        overrides.setdefault("output", "not used by plan")
    return load_settings(BuildConfig, arguments.config, overrides)


def main(argv: Sequence[str]) -> int:
    """Runs one command and returns its exit code."""
    started = time.monotonic()
    arguments, rest = make_parser().parse_known_args(argv)
    _quieten()
    if rest:  # A slip such as `--ouput x` makes x look like the config, so slips are found first.
        _beam_options(rest, arguments.command)
    config = read_config(arguments)
    if arguments.command == "plan":
        # Imported here, so that --help and config mistakes do not wait for Beam.
        from pipelines.build import plan

        plan(config, options=_beam_options(rest, arguments.command))
    elif arguments.command == "compact":
        from pipelines.compact import compact

        try:
            compact(config, options=_beam_options(rest, arguments.command), started=started)
        except KeyboardInterrupt as interrupt:
            raise ShardsmithError("interrupted; the same command merges what is left") from interrupt
    elif arguments.command == "repair":
        from pipelines.repair import repair

        try:
            repair(config, options=_beam_options(rest, arguments.command))
        except KeyboardInterrupt as interrupt:
            raise ShardsmithError("interrupted; the same command repairs what is left") from interrupt
    elif arguments.command == "build" and not arguments.overwrite and Path(config.output, MANIFEST).exists():
        _confirm(config, rest)
    else:
        _run(arguments, rest, config, started)
    return DONE


def _confirm(config: BuildConfig, rest: Sequence[str]) -> None:
    """A finished dataset needs neither Beam nor TensorFlow, which would take longer than all the rest."""
    from pipelines.versions.confirm import confirm_finished

    if rest:  # of Beam's options, those for object stores matter to sources
        from pipelines.inputs.objects import use_options

        use_options(_beam_options(rest, "build"))
    confirm_finished(config)


def _run(arguments: argparse.Namespace, rest: Sequence[str], config: BuildConfig, started: float) -> None:
    # The analyst takes longest to get ready, so it starts before Beam is imported here; and before that, too, whoever
    # finds the output held by another command is told so.
    with start_analyst() as analyst, _hold(config, arguments.command):
        from pipelines.build import build
        from pipelines.update import Policy, append, retry

        options = _beam_options(rest, arguments.command)
        try:
            if arguments.command == "build":
                build(config, options=options, analyst=analyst, started=started, overwrite=arguments.overwrite)
            else:
                command = {"append": append, "retry": retry}[arguments.command]
                policy = Policy(keep_missing=arguments.keep_missing, allow_removals=arguments.allow_removals)
                command(config, options=options, analyst=analyst, started=started, policy=policy)
        except KeyboardInterrupt as interrupt:
            told = f"interrupted; the same command goes on with the shards that are written in {config.output}"
            raise ShardsmithError(told) from interrupt


def _hold(config: BuildConfig, command: str) -> AbstractContextManager[None]:
    from pipelines.workspace.lock import hold

    return hold(Path(config.output), command)


def _beam_options(rest: Sequence[str], command: str) -> Any:
    from pipelines.runner import parse_beam_options

    flags = [f"--{name.replace('_', '-')}" for name in _FLAGS.get(command, ())]
    ours = ["--source", "--output", "--resize", "--set", *flags]
    return parse_beam_options(rest, ours=ours)


def _quieten() -> None:
    """Keeps the chatter of dependencies out of a person's sight; what matters to them we say ourselves."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    logging.basicConfig(level=logging.ERROR)
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)  # it logs a traceback for each failure that we explain


if __name__ == "__main__":
    code = run(lambda: main(sys.argv[1:]))
    if code == DONE:
        sys.exit(code)
    # An interrupt can leave Beam waiting for a worker that waits for Beam; the worker ends when this process does.
    with suppress(BrokenPipeError):
        sys.stdout.flush()
    os._exit(code)
