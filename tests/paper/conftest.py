import pytest

from gdpa import experiments


@pytest.fixture
def toy(monkeypatch):
    """The toy experiment, registered alone."""
    monkeypatch.setattr(experiments, "EXPERIMENTS", {"toy": "tests.paper.toy"})
    for module in ("runner", "report"):
        monkeypatch.setattr(f"gdpa.paper.{module}.EXPERIMENTS", experiments.EXPERIMENTS)
    return experiments.get("toy")
