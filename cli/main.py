"""The outer edge of the command line: the commands by name, and how every failure becomes an exit code."""

from __future__ import annotations

import errno
import functools
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, cast

import typer
import typer.core

from pie_mlx.cli.options import expand_groups
from pie_mlx.cli.render import ColorWish, StdoutClosedError, abandon_stdout, wants_color

if TYPE_CHECKING:
    from pie_mlx.cli.diagnostics import Report

PROGRAM = "pie-mlx"
_EXIT_INTERRUPTED = 130
_EXIT_TERMINATED = 143

PANELS = TALK, THINK, MODELS, MEASURE, SERVE, CONFIG = "Talk", "Think", "Models", "Measure", "Serve", "Config"


class _Command(typer.core.TyperCommand):
    """A command whose ``--help`` is shown as the switch that it is."""

    def get_help_option(self, ctx: Any) -> Any:
        """Return ``--help`` without a type."""
        return _as_switch(super().get_help_option(ctx))


class _Commands(typer.core.TyperGroup):
    """Commands in the order of their headings; a group's own place would be behind every plain command."""

    def get_help_option(self, ctx: Any) -> Any:
        """Return ``--help`` without a type."""
        return _as_switch(super().get_help_option(ctx))

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names, those of one heading beside each other."""
        places = {
            name: PANELS.index(getattr(one, "rich_help_panel", None) or TALK) for name, one in self.commands.items()
        }
        return sorted(self.commands, key=places.__getitem__)


def _as_switch(option: Any) -> Any:
    """Return an option that takes no value, with no value's name in help."""
    if option is not None:
        option.metavar = ""
    return option


app = typer.Typer(
    cls=_Commands,
    name=PROGRAM,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Data goes to stdout, talk to stderr. Exit codes: 0 ok, 1 failure, 2 usage, 3 model, 4 starved, 5 unsolved "
    "(with --check), 130 interrupted.",
)


def _show_version(wanted: bool) -> None:
    """Show the version and end, before a command is looked for."""
    if wanted:
        from pie_mlx import __version__
        from pie_mlx.cli.render import Stdout

        Stdout().line(f"{PROGRAM} {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", "-V", metavar="", help="Show the version.", is_eager=True, callback=_show_version),
    ] = False,
) -> None:
    """Run language models on your own machine, and branch them for free."""


def _register(to: typer.Typer, name: str, where: str, *, panel: str | None = None) -> None:
    """Give ``to`` the command that ``module:function`` names; its module imports no engine at its top."""
    module, function = where.split(":")
    command = getattr(import_module(f"pie_mlx.cli.commands.{module}"), function)
    to.command(name, cls=_Command, rich_help_panel=panel)(_logged(f"{to.info.name} {name}", expand_groups(command)))


def _logged(name: str, command: Callable[..., object]) -> Callable[..., object]:
    """Let a command begin with a line in the log."""

    @functools.wraps(command)
    def run(**values: object) -> object:
        from pie_mlx.cli import logfile

        flag = values.get("log_file")
        logfile.begin(name, flag=flag if isinstance(flag, str) else None, debug=bool(values.get("debug")))
        return command(**values)

    return run


def _add_group(name: str, about: str, *, panel: str) -> typer.Typer:
    """Add an empty group of commands."""
    group = typer.Typer(name=f"{PROGRAM} {name}", cls=_Commands, no_args_is_help=True, help=about)
    app.add_typer(group, name=name, rich_help_panel=panel)
    return group


def _register_all() -> None:
    """Register every command that works."""
    _register(app, "run", "run:run", panel=TALK)
    _register(app, "chat", "chat:chat", panel=TALK)
    _register(app, "tui", "tui:tui", panel=TALK)
    sessions = _add_group("sessions", "Saved conversations.", panel=TALK)
    for name in ("ls", "show", "search", "rename", "rm", "export"):
        _register(sessions, name, f"sessions:{name}")
    tot = _add_group("tot", "Search trees of thoughts, and look at them.", panel=THINK)
    for name, where in (
        ("run", "tot_run:run"),
        ("resume", "tot_run:resume"),
        ("view", "tui:view"),
        ("show", "tot_trace:show"),
        ("replay", "tot_trace:replay"),
        ("export", "tot_trace:export"),
        ("tasks", "tot_trace:tasks"),
    ):
        _register(tot, name, where)
    _register(app, "bench", "bench:bench", panel=MEASURE)
    _register(app, "models", "models:models", panel=MODELS)
    _register(app, "pull", "models:pull", panel=MODELS)
    _register(app, "rm", "models:rm", panel=MODELS)
    _register(app, "info", "model_card:info", panel=MODELS)
    snapshots = _add_group("snapshots", "Contexts saved with their K/V.", panel=MODELS)
    for name in ("ls", "rm"):
        _register(snapshots, name, f"snapshots:{name}")
    _register(app, "serve", "serve:serve", panel=SERVE)
    _register(app, "top", "top:top", panel=SERVE)
    _register(app, "doctor", "doctor:doctor", panel=CONFIG)
    config = _add_group("config", "Show and change settings.", panel=CONFIG)
    for name, function in (("show", "show"), ("path", "path"), ("set", "set_")):
        _register(config, name, f"configuration:{function}")
    _register(app, "completion", "configuration:completion", panel=CONFIG)


_register_all()


@dataclass(frozen=True, slots=True)
class EdgeFlags:
    """The flags that decide how a failure is shown; read by hand, as the failure may be one of parsing."""

    json: bool
    debug: bool
    color: ColorWish

    @classmethod
    def read(cls, args: Sequence[str]) -> EdgeFlags:
        """Find them among the arguments before ``--``."""
        own = list(args[: args.index("--")]) if "--" in args else list(args)
        wish = "auto"
        for index, arg in enumerate(own):
            if arg.startswith("--color="):
                wish = arg.partition("=")[2]
            elif arg == "--color" and index + 1 < len(own):
                wish = own[index + 1]
        known = cast("ColorWish", wish if wish in ("always", "never") else "auto")
        return cls("--json" in own or "--jsonl" in own, "--debug" in own, known)


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with its code."""
    sys.exit(invoke(sys.argv[1:] if args is None else args))


def invoke(args: Sequence[str]) -> int:
    """Run the command line and return its exit code; no error leaves this function."""
    began_s = time.monotonic()
    code = 1
    try:
        code = _invoke(args)
    finally:
        logfile = sys.modules.get("pie_mlx.cli.logfile")
        if logfile is not None:
            logfile.end(code, began_s)
    return code


def _invoke(args: Sequence[str]) -> int:
    """Run the command line; turn what it raises into its exit code."""
    from pie_mlx.errors import PieError

    edge = EdgeFlags.read(args)
    _open_missing_streams()
    signal.signal(signal.SIGTERM, _terminate)
    try:
        code = _run(args, edge)
        sys.stdout.flush()
    except (StdoutClosedError, BrokenPipeError):
        abandon_stdout()
        return 0
    except KeyboardInterrupt:
        return _EXIT_INTERRUPTED
    except PieError as error:
        return _fail(_report(error), error, edge)
    except typer.TyperException as error:
        return _fail(_usage_report(error), error, edge)
    except OSError as error:
        return _fail(_system_report(error) or _fault_report(error), error, edge)
    except Exception as error:  # noqa: BLE001  the outer edge: what nobody foresaw is reported as our fault
        return _fail(_fault_report(error), error, edge)
    return code


def _open_missing_streams() -> None:
    """Point streams that the caller closed (``>&-``) at nothing: else the next file opened takes their number."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, number)
            if nothing != number:
                os.close(nothing)
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8"))


def _run(args: Sequence[str], edge: EdgeFlags) -> int:
    """Let Typer parse and run; return the exit code."""
    from typer import rich_utils

    # Left alone, Typer colours its help in a pipe on some build servers, and under NO_COLOR.
    rich_utils.FORCE_TERMINAL = wants_color(edge.color, sys.stdout)
    if f"_{PROGRAM.replace('-', '_').upper()}_COMPLETE" in os.environ:
        from typer.completion import completion_init  # type: ignore[attr-defined]

        completion_init()
    try:
        result = app(args=list(args), prog_name=PROGRAM, standalone_mode=False)
    except SystemExit as leaving:
        # Typer and Rich leave this way when a pipe breaks, and after printing shell completions.
        if isinstance(leaving.__context__, BrokenPipeError):
            raise StdoutClosedError from leaving
        return leaving.code if isinstance(leaving.code, int) else 0
    return result if isinstance(result, int) else 0


def _terminate(_number: int, _frame: FrameType | None) -> None:
    """Leave through every ``finally``, so that the terminal is restored and pages are freed."""
    sys.exit(_EXIT_TERMINATED)


def _fail(report: Report, error: BaseException, edge: EdgeFlags) -> int:
    """Show a failure and return its exit code."""
    from pie_mlx.cli import logfile
    from pie_mlx.cli.diagnostics import Stderr, show_failure

    logfile.failure(report.code, error)
    try:
        if edge.debug:
            Stderr(edge.color).traceback(error)
        show_failure(report, as_json=edge.json, color=edge.color)
    except (StdoutClosedError, BrokenPipeError):
        abandon_stdout()
    except OSError:
        # Stdout takes nothing more, a full disk say: the person at the terminal is told.
        abandon_stdout()
        show_failure(report, as_json=False, color=edge.color)
    try:
        sys.stdout.flush()
    except OSError:
        # What a full disk refused is still in the buffer: the interpreter would try it again, and fail in its own way.
        abandon_stdout()
    code = getattr(error, "exit_code", 1)
    return code if isinstance(code, int) else 1


def _report(error: Exception) -> Report:
    """Report a typed error."""
    from pie_mlx.cli.diagnostics import Report
    from pie_mlx.errors import PieError

    assert isinstance(error, PieError), "only typed errors come here"
    return Report.of(error)


_PLAINER = (
    ("Value error, ", ""),
    ("Input should be a valid integer, unable to parse string as an integer", "it must be a whole number"),
    ("Input should be a valid number, unable to parse string as a number", "it must be a number"),
)
"""What Typer's own checks say, and how a person would."""


def _usage_report(error: typer.TyperException) -> Report:
    """Report a command line that cannot be parsed."""
    from pie_mlx.cli.diagnostics import Report

    context = getattr(error, "ctx", None)
    command = getattr(context, "command_path", PROGRAM)
    what = error.format_message() or f"{command} needs a command"
    for told, plain in _PLAINER:
        what = what.replace(told, plain)
    return Report("usage", what, None, f"{command} --help")


_REFUSALS = {
    errno.ENOSPC: (
        "disk_full",
        "the disk is full",
        "free some space; pie-mlx config path shows which folders are used",
    ),
    errno.EDQUOT: ("disk_full", "the disk quota is used up", "free some space"),
    errno.EROFS: ("not_writable", "this place cannot be written", "pie-mlx config path shows which folders are used"),
    errno.EACCES: ("not_writable", "access is refused", "pie-mlx config path shows which folders are used"),
    errno.EPERM: ("not_writable", "access is refused", "pie-mlx config path shows which folders are used"),
}
"""What the system may refuse to any command: code, sentence, what to try."""


def _system_report(error: OSError) -> Report | None:
    """Report what the system refused; None where that is no usual refusal."""
    from pie_mlx.cli.diagnostics import Report

    if error.errno not in _REFUSALS:
        return None
    code, what, hint = _REFUSALS[error.errno]
    place = f"{error.filename}: " if error.filename else ""
    return Report(code, what, f"{place}{error.strerror}", hint)


def _fault_report(error: Exception) -> Report:
    """Report what nobody foresaw."""
    from pie_mlx.cli.diagnostics import Report

    what = "something went wrong that pie-mlx did not expect"
    why = f"{type(error).__name__}: {error}"
    return Report("fault", what, why, "report the traceback: it is in the log (pie-mlx config path), or add --debug")


if __name__ == "__main__":
    main()
