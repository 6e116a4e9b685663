"""Draws ``sampling.svg``: two groups of environments taking turns, worked out step by step."""

from pathlib import Path

ACT, STEP, LEARN, T = 2, 3, 5, 3  # units of time; steps in a rollout
UNIT, ROW, LEFT = 28, 44, 84  # pixels
COLOURS = {0: "#2a7f9e", 1: "#d9822b", "learn": "#6b4c9a"}
ROWS = ("policy", "core 0", "core 1")


def box(row: int, begin: int, length: int, colour: str, text: str) -> str:
    x, y, width = LEFT + begin * UNIT, 34 + row * ROW, length * UNIT - 2
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="34" rx="3" fill="{colour}"/>'
        f'<text x="{x + width / 2}" y="{y + 22}" fill="#fff" text-anchor="middle">{text}</text>'
    )


def draw() -> str:
    boxes = []
    policy_free = cores_free = 0
    ready = {0: 0, 1: 0}  # when each group has stepped
    for _ in range(T):
        for group in (0, 1):
            begin = max(policy_free, ready[group])
            boxes.append(box(0, begin, ACT, COLOURS[group], f"act {group}"))
            policy_free = begin + ACT
            begin = max(policy_free, cores_free)
            for core in (1, 2):
                boxes.append(box(core, begin, STEP, COLOURS[group], f"group {group}"))
            cores_free = ready[group] = begin + STEP
    boxes.append(box(0, cores_free, LEARN, COLOURS["learn"], "learn"))
    end = cores_free + LEARN
    labels = [
        f'<text x="8" y="{56 + row * ROW}" fill="#333">{name}</text>'
        for row, name in enumerate(ROWS)
    ]
    width, height = LEFT + end * UNIT + 12, 34 + len(ROWS) * ROW
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            'font-family="sans-serif" font-size="14">',
            f'<rect width="{width}" height="{height}" fill="#fff"/>',
            f'<text x="{LEFT}" y="20" fill="#333">time, one rollout of {T} steps &#8594;</text>',
            *labels,
            *boxes,
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(draw())
