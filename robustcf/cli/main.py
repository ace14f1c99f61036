"""Entry point: the command group, and what becomes of errors.

Exit codes: 0 done, 1 failed with a one-line reason (``--debug`` shows the traceback), 2 wrong
usage.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

import click

from robustcf import __version__
from robustcf.cli.attack import attack
from robustcf.cli.audit import audit, report
from robustcf.cli.certify import certify
from robustcf.cli.common import to_json
from robustcf.cli.compare import compare
from robustcf.cli.datasets import datasets
from robustcf.cli.evaluate import evaluate
from robustcf.cli.harden import harden
from robustcf.cli.importing import import_
from robustcf.cli.norm import norm
from robustcf.cli.recommend import recommend
from robustcf.cli.sweep import sweep
from robustcf.cli.train import train
from robustcf.cli.tune import tune
from robustcf.cli.vision import vision
from robustcf.errors import RobustcfError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="robustcf")
def cli() -> None:
    """Robust collaborative filtering: measure, prove and improve how rankings hold under attack."""


for command in (
    datasets,
    train,
    tune,
    import_,
    evaluate,
    recommend,
    attack,
    certify,
    audit,
    harden,
    report,
    compare,
    sweep,
    norm,
    vision,
):
    cli.add_command(command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command line and exit with its code."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Run a command line; returns the exit code instead of exiting."""
    try:
        # Outside standalone mode click hands back the code of --help and --version as a value.
        code = cli.main(list(arguments), prog_name="robustcf", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.exceptions.Abort:
        return _fail(arguments, "interrupted", 130)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()  # the help, as it is laid out
        return error.exit_code
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "robustcf"
        return _fail(arguments, f"{error.format_message()} (try '{where} --help')", error.exit_code)
    except click.ClickException as error:
        return _fail(arguments, error.format_message(), error.exit_code)
    except BrokenPipeError:
        # Whoever read our output has left (head, less): nothing to say, and nobody to say it to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (RobustcfError, OSError) as error:
        return _fail(arguments, str(error), 1)
    except Exception as error:
        reason = f"internal error, {type(error).__name__}: {error}"
        hint = "" if "--debug" in arguments else " (--debug shows where)"
        return _fail(arguments, reason + hint, 1)


def _fail(arguments: Sequence[str], reason: str, code: int) -> int:
    line = " ".join(reason.split())
    if "--debug" in arguments and code == 1:
        traceback.print_exc()
    click.echo(f"robustcf: {line}", err=True)
    if "--json" in arguments:
        click.echo(to_json({"error": line}))
    return code
