"""The studies of scale: their settings are valid, and their tables right for made-up runs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accel_rl.presets import find_preset
from benchmarks.tables import study_figures
from benchmarks.tables.studies import STUDIES


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(study_figures, "ROWS", tmp_path / "rows")
    monkeypatch.setattr(study_figures, "DOCS", tmp_path / "docs")
    (tmp_path / "docs" / "pictures").mkdir(parents=True)


@pytest.mark.parametrize(
    ("study", "name"), [(study, name) for study, of in STUDIES.items() for name in of.settings]
)
def test_settings_are_presets_with_the_batch_that_is_said(study: str, name: str) -> None:
    config: Any = find_preset(f"benchmarks.tables.studies:{name}")()
    batch, sampler = STUDIES[study].settings[name].batch, config.sampler
    if batch is not None:
        assert config.learner.samples_per_update(sampler.num_envs * sampler.horizon) == batch
    assert config.total_steps is not None and config.total_steps <= 3_000_000


@pytest.mark.parametrize("scale", [30.0, 400.0])
def test_noise_scale_is_found_from_cosines_of_drawn_gradients(scale: float) -> None:
    """Against gradients of single samples, drawn around one with a known share of noise."""
    rng = np.random.default_rng(0)
    size, batch = 2_000, 64
    gradient = rng.normal(size=size)
    gradient /= np.linalg.norm(gradient)
    cosines = []
    for _ in range(200):
        samples = gradient + rng.normal(size=(batch, size)) * np.sqrt(scale / size)
        half, whole = samples[::2].mean(0), samples.mean(0)
        cosines.append(half @ whole / np.linalg.norm(half) / np.linalg.norm(whole))
    found = study_figures.noise_scale(float(np.mean(cosines)), batch)
    assert found == pytest.approx(scale, rel=0.1)


def test_noise_scale_of_noise_alone_is_infinite() -> None:
    assert study_figures.noise_scale(0.7, 64) == np.inf


def test_table_has_intervals_over_seeds(tmp_path: Path) -> None:
    for seed, last in enumerate((4.0, 6.0, 8.0)):
        folder = tmp_path / "sweep" / "runs" / str(seed)
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text(
            f"algo: benchmarks.tables.studies:a2c_16\nseed: {seed}\ntotal_steps: 1000\n"
        )
        (folder / "metrics.csv").write_text(
            "steps,training_seconds,episode_return_raw_mean,gradient_cosine\n"
            f"100,1,0,0.8\n500,1,{last / 2},0.8\n1000,2,{last},0.8\n"
        )
    study_figures.main([str(tmp_path / "sweep")])
    page = (tmp_path / "docs" / "scale.md").read_text()
    (row,) = [line for line in page.splitlines() if line.startswith("| 16 simulators")]
    assert "`simulators_ppo`" in page.splitlines()[-1]  # has not been run
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1:3] == ["3", "80"]
    assert cells[4] == "6.0 (4.0 to 8.0)"
    assert cells[6:] == ["0.80", "103", "500"]  # 80 * 0.36 / 0.28
    (picture,) = (tmp_path / "docs" / "pictures").iterdir()
    assert picture.name == "study_simulators_a2c.png" and f"(pictures/{picture.name})" in page
