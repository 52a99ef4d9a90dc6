"""The command line: `jaxspec generate`, `measure`, `plan`, `train-hrad`, `bench`, `check`, `serve` and `chat`.

Results go to stdout, all else to stderr; `--json` makes of the results one JSON object. A command is a function that
registers it and one that runs it. What needs JAX is imported when a command runs, so that `--help` is quick.
"""

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from typing import NoReturn

from jaxspec.cli.commands import bench, chat, check, generate, measure, plan, serve, train_hrad
from jaxspec.cli.values import with_trees
from jaxspec.pairs import fetching

DEBUG_VARIABLE = "JAXSPEC_DEBUG"


FAILED, INTERRUPTED = 2, 130
"""Exit statuses, beside those of the commands."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status: its own, `FAILED` with a line on stderr, or `INTERRUPTED`."""
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # it advises to install torch
    try:
        words = sys.argv[1:] if argv is None else argv
        args = _parser().parse_args(with_trees(words), argparse.Namespace(command=shlex.join(["jaxspec", *words])))
        return args.run(args)
    except SystemExit as end:  # --help
        return int(end.code or 0)
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader has gone: nothing is left to be told, not even by the flush at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (ValueError, OSError, fetching.Unavailable) as error:
        if os.environ.get(DEBUG_VARIABLE):
            raise
        about = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
        fetching.remark(f"error: {' '.join(about.split())}")
        return FAILED


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, like all others."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message} (see {self.prog} --help)")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="jaxspec",
        description="Lossless speculative decoding in JAX.",
        epilog=f"{DEBUG_VARIABLE}=1 in the environment shows the traceback of an error.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for module in (generate, measure, plan, train_hrad, bench, check, serve, chat):
        module.register(commands)
    return parser
