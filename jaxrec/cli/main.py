"""The entry point of the `jaxrec` command."""

import os
import sys
from collections.abc import Callable, Sequence

BAD_INPUT = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and explains in one line why it could not, if it could not.

    Args:
        arguments: What was typed after `jaxrec`; by default what started the process.

    Returns:
        The exit code: 0, or 2 for bad input, or 128 + the number of the signal that ended a fit;
        of `jaxrec check` 1 for warnings and 2 for errors.

    Raises:
        SystemExit: With code 2 for arguments that cannot be understood, with 0 for `--help`.
    """
    import tyro

    from .errors import CommandError, Interrupted, describe

    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        try:
            work = tyro.extras.subcommand_cli_from_dict(
                commands(arguments),
                prog="jaxrec",
                description="Reconstructs captured scenes as spheres with a neural shader.",
                args=arguments,
            )
        except ValueError as error:
            raise CommandError(str(error)) from error
        _silence_checkpoints()
        return work() or 0
    except Interrupted as stop:
        print(f"jaxrec: {stop}", file=sys.stderr)
        return stop.exit_code
    except KeyboardInterrupt:
        print("\njaxrec: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read the output has enough; Python would complain again while it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        line = describe(error)
        if line is None:
            raise
        print(f"jaxrec: {line}", file=sys.stderr)
        return BAD_INPUT


def commands(arguments: Sequence[str]) -> dict[str, Callable[..., Callable[[], int | None]]]:
    """Lists the commands: functions of what can be typed, which return the work to be done.

    Args:
        arguments: What was typed; the defaults of `fit` follow from the preset in it, and who
            interrupts a fit is told to type it again.
    """
    from .check import check_command
    from .demo import make_demo_command
    from .eval import eval_command
    from .export import export_command
    from .fit import make_fit_command
    from .info import info_command
    from .render import render_command

    return {
        "demo": make_demo_command(arguments),
        "check": check_command,
        "fit": make_fit_command(arguments),
        "eval": eval_command,
        "render": render_command,
        "export": export_command,
        "info": info_command,
    }


def _silence_checkpoints() -> None:
    """Keeps Orbax's threads from printing a traceback beside the one line that says it all."""
    import absl.logging

    absl.logging.set_verbosity(absl.logging.FATAL)


if __name__ == "__main__":
    sys.exit(main())
