"""Help and usage errors: boxes and colors for a terminal, plain lines for a file or another program."""

from typing import TYPE_CHECKING

from cyclopts.exceptions import CycloptsError
from cyclopts.help import DefaultFormatter, PlainFormatter
from rich.console import Console

from proxy.cli.common import plain

if TYPE_CHECKING:
    from cyclopts.help import HelpPanel
    from rich.console import ConsoleOptions

_TERMINAL = DefaultFormatter()
_FILE = PlainFormatter()


class HelpLines:
    """Format help: with boxes on a terminal or with FORCE_COLOR, otherwise without."""

    def __call__(self, console: Console, options: "ConsoleOptions", panel: "HelpPanel") -> None:
        """Print a panel of help."""
        _formatter(console)(console, options, panel)

    def render_usage(self, console: Console, options: "ConsoleOptions", usage: object) -> None:
        """Print the usage line."""
        _formatter(console).render_usage(console, options, usage)

    def render_description(self, console: Console, options: "ConsoleOptions", description: object) -> None:
        """Print the description, without trailing spaces."""
        with console.capture() as captured:
            _formatter(console).render_description(console, options, description)
        for line in captured.get().splitlines():  # Rich fills up lines with spaces
            console.out(line.rstrip(), highlight=False)


def _formatter(console: Console) -> DefaultFormatter | PlainFormatter:
    return _TERMINAL if console.is_terminal else _FILE


def usage_error(error: CycloptsError) -> str:
    """Return the problem of a command line and the command that prints its help, on one line."""
    command = " ".join(["concertina", *(error.command_chain or ())])
    message = plain(str(error))
    return f"{message if message.endswith('...') else message.removesuffix('.')}; see `{command} --help`"


def error_console() -> Console:
    """Return the console of usage errors: standard error, without wrapping."""
    return Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
