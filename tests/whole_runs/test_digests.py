"""What a short run of each preset learns: alone, with a memory, through the store, two in step.

``digests.json`` holds the numbers of an earlier version. A change of the code that is not meant to
change what is learned leaves them as they are. To renew them after one that is:

    python tests/helpers/digests.py > tests/whole_runs/digests.json
"""

import json
from pathlib import Path

import numpy as np
import pytest
from digests import cases, digest

STORED = json.loads((Path(__file__).parent / "digests.json").read_text())
CASES = cases()


def test_each_case_has_a_digest() -> None:
    assert list(CASES) == list(STORED)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # of a store, which is left
@pytest.mark.parametrize("name", CASES)
def test_run_learns_what_it_learned_before(name: str, tmp_path: Path) -> None:
    found = digest(CASES[name](tmp_path / "run"))
    assert found.keys() == STORED[name].keys()
    for part, (number, total, magnitude, *powers) in found.items():
        number_before, total_before, magnitude_before, *powers_before = STORED[name][part]
        # Processors differ in how they round.
        assert number == number_before
        np.testing.assert_allclose(total, total_before, atol=1e-4 * magnitude_before, rtol=0)
        np.testing.assert_allclose(magnitude, magnitude_before, rtol=1e-4)
        np.testing.assert_allclose(powers, powers_before, rtol=1e-3)
