"""What ``--help`` and ``presets`` print, from the index of options, without torch."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence

from accel_rl.cli.index import Listed, Preset, describe, keys_of_presets, read_index
from accel_rl.cli.suggest import check_keys, split, suggest

ALL_HELP = "--help=all"
PLAN = "--plan"
_HELP = {"--help", "-h", ALL_HELP}

COMMANDS: Mapping[str, tuple[str, str]] = {
    "train": ("[key=value ...]", "one training run"),
    "evaluate": ("RUN", "the score of a saved run, over whole games"),
    "play": ("RUN", "one game of a saved run as a film"),
    "plot": (
        "RUN...",
        "learning curves of saved runs, averaged over seeds; what=COLUMN draws other numbers",
    ),
    "report": ("RUN...", "one HTML page about saved runs, or all runs of a sweep's directory"),
    "export": ("RUN", "the policy of a saved run as ONNX and safetensors, for other programs"),
    "package": ("RUN", "a saved run as a directory for the Hugging Face Hub"),
    "sweep": ("key=value,value ...", "many runs, for each combination of options"),
    "check": ("env=NAME", "what is wrong with an environment"),
    "presets": ("", "what algo=NAME can be"),
    "completion": ("bash|zsh", "a script that completes commands, options and presets"),
}
"""commands, their arguments, and what they do"""

_EXAMPLES = """
Examples
  accel_rl train algo=ppo env=CartPole-v1 total_steps=50000
  accel_rl train algo=cat_dqn env=breakout gpus=8
  accel_rl evaluate runs/breakout-ppo-0-...
  accel_rl sweep algo=a2c,ppo env=pong,breakout seed=0..2"""

_TRAIN = """
config=FILE reads options from a YAML file, such as the config.yaml of a run. Options on the
command line override the file. run_dir in the file is ignored. If another person's file or run
names code (module:function), it runs only with trust=true.

A key may be shortened to its last part if that names one option: num_envs=64. Counts may be
written as 3e6. --plan prints where the run would compute and how fast, without training."""

_SWEEP = """
  accel_rl sweep algo=a2c,ppo env=pong,breakout seed=0,1,2
                                a run for each combination of what is listed
  accel_rl sweep resume=SWEEP   goes on with a sweep that was stopped
  accel_rl sweep resume=SWEEP seed=0..4 total_steps=2e7
                                more runs, or longer ones

Every option of training may be given, with one value or several; `accel_rl train --help` lists
them. seed=0..4 is seed=0,1,2,3,4, and so for all options that are integers. env=atari49 is the 49
games of Stooke and Abbeel 2018, Table 1."""

_ABOUT = {
    "check": "\nThe exit status is 1 if a rule is broken.",
    "sweep": _SWEEP,
}
_RUNS = "\nRUN is a run directory, as training made it."


def wants_help(arguments: Sequence[str]) -> bool:
    """Return whether ``--help``, ``--help=all`` or ``-h`` is among the arguments."""
    return not _HELP.isdisjoint(arguments)


def check_names(arguments: Sequence[str]) -> None:
    """Check preset and names of options of a training run, before torch is loaded."""
    given = split([each for each in arguments if each != PLAN])
    algo = given.pop("algo", "a2c")
    if given.keys() & {"config", "resume"} or ":" in algo:
        return
    _preset(algo)
    keys = keys_of_presets()
    check_keys(given, algo, keys[algo], keys)


def main_help() -> str:
    """Return what ``accel_rl`` prints: commands, examples and presets."""
    lines = ["accel_rl COMMAND [key=value ...]", ""]
    lines += [f"  {name:11}{about.partition(',')[0]}" for name, (_, about) in COMMANDS.items()]
    names = list(read_index().presets)
    rows = -(-len(names) // 6)
    lines += [*_EXAMPLES.splitlines(), "", "Presets (algo=NAME)"]
    lines += [
        "  " + "".join(f"{name:15}" for name in names[row::rows]).rstrip() for row in range(rows)
    ]
    lines += [
        "",
        "accel_rl COMMAND --help    accel_rl train algo=NAME --help    accel_rl --version",
    ]
    return "\n".join(lines)


def presets_table(width: int) -> str:
    """Return what ``accel_rl presets`` prints."""
    rows = [("algo=", "actions", "memory", "learners", "what it is")]
    for name, preset in read_index().presets.items():
        title = preset.about.partition("\n")[0]
        memory = "yes" if preset.has_memory else "no"
        rows.append((name, preset.actions, memory, preset.learners, title))
    lines = []
    for name, actions, memory, learners, title in rows:
        head = f"{name:15}{actions:10}{memory:8}{learners:10}"
        lines += textwrap.wrap(
            title, max(width, 80), initial_indent=head, subsequent_indent=" " * 43
        )
    return "\n".join(lines)


def train_help(arguments: Sequence[str], width: int) -> str:
    """Return the options of a preset, with types, documentation and defaults."""
    given = split([each for each in arguments if each not in _HELP | {PLAN}])
    algo = given.get("algo", "a2c")
    preset = _preset(algo)
    lines = ["accel_rl train [key=value ...]", *_TRAIN.splitlines(), "", f"algo={algo}"]
    lines += textwrap.indent(preset.about, "  ").splitlines()
    if ALL_HELP in arguments:
        lines += ["", "Options, with their defaults"]
        group = ""
        for option in preset.options:
            if (own := option.key.rpartition(".")[0]) != group:
                group = own
                lines += ["", group]
            lines += _entry(option, width)
    else:
        shown = [each for each in preset.options if each.is_common]
        some = f"the common ones of {len(preset.options)}; {ALL_HELP} shows all"
        lines += ["", f"Options, with their defaults ({some})"]
        lines += [_line(each, max(width, 80)) for each in shown]
    return "\n".join(lines)


def command_help(name: str, width: int) -> str:
    """Return the options of another command than ``train``."""
    arguments, what = COMMANDS[name]
    options = read_index().commands.get(name, [])
    more = " [key=value ...]" if options and "=" not in arguments else ""
    lines = [f"accel_rl {name} {arguments}{more}".rstrip(), *textwrap.wrap(f"  {what}", width)]
    lines += (_ABOUT.get(name, "") or (_RUNS if "RUN" in arguments else "")).splitlines()
    if options:
        lines += ["", "Options, with their defaults"]
    for option in options:
        lines += _entry(option, width)
    return "\n".join(lines)


def completion(shell: str) -> str:
    """Return a script by which a shell completes commands, options and presets."""
    if shell not in ("bash", "zsh"):
        raise ValueError(
            f"completion is for bash and zsh; write accel_rl completion bash, not {shell!r}"
        )
    index = read_index()
    options = {each.name: each for own in index.presets.values() for each in own.options}
    options |= {each.name: each for own in index.commands.values() for each in own}
    keys = " ".join(f"{name}=" for name in [*options, "config"])
    choices = {
        name: each.type_name.replace(" or ", "|").split("|")
        for name, each in options.items()
        if "|" in each.type_name  # it may be these words alone
    }
    choices["algo"] = list(index.presets)
    cases = [f"    {name}) words='{' '.join(all_)}' ;;" for name, all_ in choices.items()]
    lines = ["autoload -U +X bashcompinit && bashcompinit"] if shell == "zsh" else []
    lines += [
        "_accel_rl() {",
        '  local word="${COMP_WORDS[COMP_CWORD]}" key= words= prefix= i=$COMP_CWORD',
        # bash takes = for a word of its own, zsh does not.
        '  [ "$word" = = ] && word= || i=$((i - 1))',
        '  [ "${COMP_WORDS[i]}" = = ] && key="${COMP_WORDS[i - 1]}"',
        '  case "$word" in *=*) key="${word%%=*}" prefix="$key=" word="${word#*=}" ;; esac',
        f"  if [ -z \"$key\" ] && [ $COMP_CWORD = 1 ]; then words='{' '.join(COMMANDS)}'",
        f"  elif [ -z \"$key\" ]; then words='{keys}'; fi",
        '  case "$key" in',
        *cases,
        "  esac",
        '  COMPREPLY=($(compgen -P "$prefix" -W "$words" -- "$word"))',
        "}",
        "complete -o nospace -o default -F _accel_rl accel_rl",
    ]
    return "\n".join(lines)


def _preset(name: str) -> Preset:
    presets = read_index().presets
    if name in presets:
        return presets[name]
    if ":" not in name:
        raise ValueError(f"algo={name} is unknown; {suggest(name, list(presets))}")
    from accel_rl.presets import find_preset

    return describe(find_preset(name))


def _entry(option: Listed, width: int) -> list[str]:
    """An option with all its documentation."""
    margin = " " * 6
    body = textwrap.wrap(
        option.doc, max(width, 40), initial_indent=margin, subsequent_indent=margin
    )
    return [f"  {option.key}={option.default}  ({option.type_name})", *body]


def _line(option: Listed, width: int) -> str:
    """An option with the first sentence of its documentation, as far as a line has room."""
    head = f"  {option.name}={option.default}"
    first = re.split(r"(?<=[.;]) ", option.doc, maxsplit=1)[0].rstrip(".;")
    return f"{head:34} {textwrap.shorten(first, width - 35, placeholder=' ...')}".rstrip()
