"""Where each preset leaves its paper, and the commands for the published results to compare with.

`--help` of a preset shows its notes; ``python -m accel_rl.preset_notes`` prints all of them as they
stand in ``docs/algorithms.md``.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import NamedTuple


class Comparison(NamedTuple):
    """A published result, and what to run for it; ``command`` comes after ``python launch/``."""

    published: str
    command: str


@dataclass(frozen=True)
class Notes:
    """``source``: whose settings they are, and what the deviations are from."""

    source: str
    deviations: tuple[str, ...]
    comparisons: tuple[Comparison, ...]


_STOOKE = "Stooke and Abbeel 2018 (arXiv:1803.02811) and the code published with it"
_BASELINES = "OpenAI's baselines"

_LIMIT = (
    "A game that the limit of 27,000 steps cuts off is bootstrapped from its final observation; "
    "there the limit is the game's end. learner.time_limit_terminal=true gives that."
)
_LIMIT_OF_GYM = (
    "A game is cut off after 27,000 steps and bootstrapped from its final observation; there its "
    "end is gym's limit, 100,000 steps or, in later versions, 27,000. "
    "learner.time_limit_terminal=true lets the limit end it."
)
_LAMBDA = "gae_lambda is 0.95; the examples in the code for several learners have 1."
_EXACT = "Logarithms of probabilities are exact, without a small number added inside."
_DECORRELATED = (
    "Start states are decorrelated by up to 2,000 random steps; there they are not. "
    "sampler.decorrelation_steps=0 gives that."
)
_LIVES = (
    "A life that was won in the game ends the return when it is lost, like any other; there it "
    "does not."
)
_ACTOR_CRITIC = (_LIMIT, _LIVES, _EXACT)
_OF_BASELINES = (
    _LIMIT_OF_GYM,
    _DECORRELATED,
    "A game starts with NOOP, FIRE and UP and then 0 to 30 no-ops, and a lost life with the same "
    "three, one frame each; there with 1 to 30 no-ops, then FIRE and the third action for four "
    "frames each, and a lost life with a no-op of four frames before these.",
)
_Q_LEARNING = (
    "Epsilon, beta, target updates and the beginning of learning go by the steps of all "
    "environments, and the replay's size is that of all together; there each learner counts its "
    "own.",
    _LIVES,
    "A return that meets the limit of 27,000 steps goes on with the value of the final "
    "observation; there the limit is the game's end. learner.time_limit_terminal=true gives that.",
    "Updates are counted from steps, so that the training intensity is kept with any batch size; "
    "there the batch must divide.",
    "Epsilon falls from the first step on; there it stays at 1 until learning begins, and then "
    "jumps to the same line.",
    "The first evaluation comes after evaluation_interval; there before the first step, with "
    "epsilon 1.",
    "An evaluation plays the games that it has begun to their end; there those that have not ended "
    "after 125,000 steps are left out.",
)
_DUELING = (
    "dueling=true does not limit the gradient; there it does, to an L2 norm of 10: "
    "max_gradient_norm=10 gives that."
)
_CATEGORICAL = (
    "Predicted probabilities are not clipped from below before the logarithm; there at 1e-6, which "
    "takes the gradient of what lies below and bounds prioritized=true's priorities by 13.8."
)


_LOCKS = (
    "A chunk's parameters and optimizer state change together, under its one lock, and Adam's step "
    "count is the store's."
)
_COUNTS = "Steps are those that all learners have taken; there the first one's, times their number."


def _table_1(scores: str, steps: int, options: str, remark: str = "") -> Comparison:
    average, median = scores.split()
    return Comparison(
        f"Table 1, human-normalised over 49 games after {steps} M steps: average {average}, median "
        f"{median}{remark}",
        f"sweep.py {options} env=atari49 seed=0,1",
    )


def _table_2(hours: str, options: str, remark: str = "") -> Comparison:
    return Comparison(
        f"Table 2: {hours} hours for 50 M steps on one P100 and 5 cores{remark}",
        f"train.py {options} env=breakout total_steps=50e6",
    )


NOTES: dict[str, Notes] = {
    "a2c": Notes(
        _STOOKE,
        (
            *_ACTOR_CRITIC,
            "The square-root rule of the learning rate holds at any number of simulators. The "
            "paper states 3e-3 at 512, where the rule gives 3.96e-3: set learner.lr for that.",
            "The learning rate is the paper's, 7e-4 at 16 simulators, and environments are reset "
            "within the rollout; the example in the code has 2.5e-4 at 64 and leaves out the rest "
            "of the rollout: sampler.reset_policy=wait gives that.",
        ),
        (
            _table_1("2.5 0.65", 25, "algo=a2c"),
            _table_1("8.0 0.48", 25, "algo=a2c num_envs=128"),
            _table_2("3.8", "algo=a2c num_envs=128", " (128 simulators are our choice)"),
        ),
    ),
    "a2c_baselines": Notes(
        _BASELINES,
        _OF_BASELINES,
        (
            Comparison(
                "their curves, mean of six: Pong 18.5, Breakout 275 after 10 M steps. Of how many "
                "environments they do not say: baselines had 16, later as many as CPUs. On "
                "Breakout 8 came near them over 3 M steps, 16 learned a million steps later",
                "sweep.py algo=a2c_baselines num_envs=8 env=pong,breakout seed=0,1,2",
            ),
        ),
    ),
    "a3c": Notes(
        _STOOKE,
        (
            *_ACTOR_CRITIC,
            _LOCKS,
            _COUNTS,
            "The learning rate is the paper's, 7e-4, as is the number of simulators of a learner, "
            "16; the example in the code has 64 and 2.5e-4 or 7.5e-4.",
        ),
        (
            _table_1("5.4 0.53", 25, "algo=a3c learners=3"),
            Comparison(
                "Table 2: 2.4 hours for 50 M steps on two P100 and 10 cores",
                "train.py algo=a3c gpus=2 env=breakout total_steps=50e6",
            ),
        ),
    ),
    "paac": Notes(
        "Clemente et al. 2017 (arXiv:1705.04862), in the code that its authors published",
        (
            "A game is cut off after 27,000 steps and bootstrapped from its final observation; "
            "there it has no limit.",
            _EXACT,
            _DECORRELATED,
            "Settings are the code's where it differs from the paper: gradient norm 3 (paper: 40), "
            "entropy 0.02 (0.01), the loss times 5 with the squared value error times 0.25 in it "
            "(no factor, 1), 80 M steps (115 M).",
            "Images are reduced by areas; there by picking pixels.",
            "A game starts with 0 to 30 no-ops, as in that code (paper: 1 to 30); there an action "
            "is then repeated four times to fill the stack.",
            "Initial biases are 0; there they are drawn as the weights are.",
        ),
        (
            Comparison(
                "Table 1, best of three, mean of 30 games: Breakout 470, Pong 20.6, Seaquest 1754",
                "sweep.py algo=paac env=breakout,pong,seaquest seed=0,1,2 total_steps=115e6 "
                "schedule_steps=115e6",
            ),
            Comparison(
                "the same with the larger network: Breakout 565, Pong 20.9, Seaquest 1755",
                "sweep.py algo=paac model=paac_nature env=breakout,pong,seaquest seed=0,1,2 "
                "total_steps=115e6 schedule_steps=115e6",
            ),
        ),
    ),
    "ga3c": Notes(
        "Babaeizadeh et al. 2017 (arXiv:1611.06256) and the code published with it",
        (
            "The last step of an episode is trained on, with its reward; that code leaves it out. "
            "learner.compatibility=true does so too, draws batches of more than "
            "min_training_batch samples (here: at least so many), and takes log(max(pi, 1e-6)), "
            "where the paper and we have log(pi + 1e-6).",
            "Nobody computes with parameters while they change: an update makes a new version, and "
            "predictors and trainers take the latest one. There they are changed in place.",
            "The value behind a segment is that of the parameters that acted, as there; those that "
            "advantages are measured from are the trainer's.",
            "The tuner measures each change against the numbers that it left, over intervals of "
            "equal length, and changes one number by one, as the paper says, or all of them; of "
            "many it changes a quarter, and while that pays twice as much. That code changes any "
            "of the three by one, and measures its baseline on numbers already given up.",
            _LIMIT_OF_GYM,
            _DECORRELATED,
            "Actions do not stick; there, by the environments' names, with probability 0.25: "
            "atari.sticky_actions=0.25 gives that.",
            "A game starts with 0 to 30 no-ops of one frame; there with three of four frames, that "
            "fill the stack. A frame is the maximum of the emulator's last two; there the last. "
            "Images are reduced by areas; there bilinearly.",
            "Convolutions have no padding (there: so that they keep the size), observations are "
            "divided by 255 (there: between -1 and 1), and initial biases are 0 (there: drawn as "
            "the weights are).",
            "A run has 100 M steps, our choice, and lr_schedule=linear goes by steps; there it has "
            "400,000 episodes, and learning rate and entropy weight may change with these, by "
            "default not at all.",
            "Batches have at least 20 samples, in the range that the paper finds most stable; that "
            "code trains on single segments unless told otherwise.",
        ),
        (
            Comparison(
                "Table 3, mean of 30 games after a day: Pong 18, Seaquest 1706, Qbert 14966",
                "sweep.py algo=ga3c env=pong,seaquest,qbert seed=0,1,2",
            ),
            Comparison(
                "Table 2: 1,361 predictions a second on a 16-core machine with one GPU",
                "train.py algo=ga3c env=pong",
            ),
        ),
    ),
    "ppo": Notes(
        _STOOKE,
        (
            *_ACTOR_CRITIC,
            "A rollout that minibatches do not divide is refused; there the rest is dropped.",
            _LAMBDA,
        ),
        (
            _table_1("2.8 1.2", 25, "algo=ppo"),
            _table_1("9.8 0.97", 25, "algo=ppo num_envs=128"),
            _table_2("4.4", "algo=ppo num_envs=128", " (128 simulators are our choice)"),
        ),
    ),
    "appo": Notes(
        _STOOKE,
        (
            *_ACTOR_CRITIC,
            _LOCKS,
            _COUNTS,
            "Steps that a batch leaves over between two exchanges with the store are carried on; "
            "there they are lost.",
            "Bias is corrected by the store's count of steps; there by the learner's own.",
            "Parameters are taken over before the steps 64, 128 and 192 of a rollout and before it "
            "is learned from; there also before 255, and before 63, 127 and 191.",
            _LAMBDA,
        ),
        (
            _table_1("8.8 1.2", 25, "algo=appo learners=8"),
            Comparison(
                "Table 2: 2.8 hours for 50 M steps on two P100 and 10 cores",
                "train.py algo=appo gpus=2 env=breakout total_steps=50e6",
            ),
        ),
    ),
    "ppo_baselines": Notes(
        _BASELINES,
        _OF_BASELINES,
        (
            Comparison(
                "their curves, mean of six: Pong 20.7, Breakout 239.9 after 10 M steps",
                "sweep.py algo=ppo_baselines env=pong,breakout seed=0,1,2",
            ),
        ),
    ),
    "dqn": Notes(
        _STOOKE,
        (
            *_Q_LEARNING,
            _DUELING,
            "Between and beyond batch sizes 32, 512 and 1,024 the learning rate is interpolated; "
            "the paper has no others.",
        ),
        (
            _table_1("2.4 0.96", 50, "algo=dqn", " (from van Hasselt et al. 2016)"),
            _table_1("9.8 1.4", 50, "algo=dqn batch_size=512"),
            _table_2("8.3", "algo=dqn batch_size=512"),
        ),
    ),
    "async_dqn": Notes(
        _STOOKE,
        (
            *_Q_LEARNING,
            _DUELING,
            _LOCKS,
            _COUNTS,
        ),
        (),
    ),
    "double_dqn": Notes(
        _STOOKE,
        (
            *_Q_LEARNING,
            _DUELING,
            "All but the target is as in dqn, not as in van Hasselt et al. 2016 "
            "(arXiv:1509.06461).",
        ),
        (),
    ),
    "cat_dqn": Notes(
        _STOOKE,
        (*_Q_LEARNING, _DUELING, _CATEGORICAL),
        (
            _table_1("25.5 2.1", 50, "algo=cat_dqn", " (from Bellemare et al. 2017)"),
            _table_1("22.1 2.9", 50, "algo=cat_dqn batch_size=2048"),
            _table_2("10.7", "algo=cat_dqn batch_size=2048"),
        ),
    ),
    "rainbow": Notes(
        _STOOKE,
        (
            *_Q_LEARNING,
            _CATEGORICAL,
            "Draws by priority are stratified and with replacement; there they are neither.",
            "Of Rainbow itself (Hessel et al. 2018, arXiv:1710.02298) noisy layers are left out, "
            "as in the paper.",
        ),
        (
            _table_1("22.4 2.5", 50, "algo=rainbow"),
            _table_2("14.1", "algo=rainbow"),
        ),
    ),
}
NOTES["eps_rainbow"] = NOTES["rainbow"]


def markdown() -> str:
    """All notes, for the page on algorithms."""
    same: dict[int, list[str]] = {}
    for name, notes in NOTES.items():
        same.setdefault(id(notes), []).append(name)
    lines: list[str] = []
    for names in same.values():
        notes = NOTES[names[0]]
        lines += ["### " + ", ".join(f"`{name}`" for name in names), ""]
        lines += [f"Settings of {notes.source}. Where it leaves them:", ""]
        for deviation in notes.deviations:
            lines += textwrap.wrap(deviation, 118, initial_indent="- ", subsequent_indent="  ")
        if notes.comparisons:
            lines += ["", "Published, and the command for it:", ""]
        for published, command in notes.comparisons:
            lines += [f"- {published}:", f"  `python launch/{command}`"]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
