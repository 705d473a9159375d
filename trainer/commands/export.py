"""`export`: writes a SavedModel from a checkpoint."""

import argparse
import shlex
from typing import Any

from shards.errors import DONE
from trainer.commands.request import add_checkpoint_flag, config_command, load_config
from trainer.quiet import import_tensorflow
from trainer.reading.source import open_source


def add_parser(commands: Any) -> None:
    """Declares the command."""
    parser = config_command(commands, "export", run, "write a SavedModel that takes encoded pictures or rows")
    add_checkpoint_flag(parser)
    parser.add_argument("--tflite", action="store_true", help="write OUTPUT/model.tflite too, and compare")


def run(arguments: argparse.Namespace) -> int:
    """Exports, and says what the model takes and gives."""
    config = load_config(arguments)
    source = open_source(config)
    import_tensorflow()
    from trainer.learning.task import make_task
    from trainer.reading.inputs import make_inputs
    from trainer.serving.answers import make_answers
    from trainer.serving.export import export

    exported = export(config, source, checkpoint=arguments.checkpoint, lite=arguments.tflite)
    takes = ", ".join([make_inputs(source.form).signature.name, *config.model.columns])
    gives = ", ".join(make_answers(make_task(source)).served)
    print(f"exported {exported.checkpoint}\nmade     {exported.directory} (takes {takes}, gives {gives})")
    if exported.lite:
        print(f"made     {exported.lite} ({exported.parity})")
    asked = f"--dataset {shlex.quote(config.dataset)} --split NAME" if config.model.columns else "FILE..."
    print(f"next     python -m trainer predict {asked} --model {shlex.quote(str(exported.directory))}")
    return DONE
