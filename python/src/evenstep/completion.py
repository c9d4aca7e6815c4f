"""`evenstep completion`: completion for shells. Commands are listed, options are read from a command's help."""

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001  # It has no public name.

_BASH = r"""_evenstep() {
  local word=${COMP_WORDS[COMP_CWORD]}
  if ((COMP_CWORD == 1)); then
    COMPREPLY=($(compgen -W '@COMMANDS@' -- "$word"))
  elif [[ $word == -* ]]; then
    local help=$(evenstep "${COMP_WORDS[1]}" --help 2> /dev/null)
    COMPREPLY=($(compgen -W "$(grep -oE -- '--[a-z][a-z-]+' <<< "$help")" -- "$word"))
  else
    COMPREPLY=($(compgen -f -- "$word"))
  fi
}
complete -o filenames -F _evenstep evenstep
"""

_FISH = r"""complete -c evenstep -n __fish_use_subcommand -f -a '@COMMANDS@'
complete -c evenstep -n 'not __fish_use_subcommand; and string match -q -- "-*" (commandline -ct)' -f \
  -a '(evenstep (commandline -opc)[2] --help 2> /dev/null | string match -ra -- "--[a-z][a-z-]+")'
"""

#: Scripts by shell. zsh runs bash's.
SCRIPTS = {"bash": _BASH, "zsh": "autoload -U +X bashcompinit && bashcompinit\n" + _BASH, "fish": _FISH}


def add_arguments(subparsers: "Subparsers") -> None:
    """Adds the `completion` command to a command line."""
    parser = subparsers.add_parser("completion", help="print a script for completion in a shell", description=__doc__)
    parser.add_argument("shell", choices=sorted(SCRIPTS), help='for bash: eval "$(evenstep completion bash)"')
    parser.set_defaults(run=lambda parsed: _print(parsed.shell, subparsers.choices))


def _print(shell: str, commands: Iterable[str]) -> int:
    sys.stdout.write(SCRIPTS[shell].replace("@COMMANDS@", " ".join(commands)))
    return 0
