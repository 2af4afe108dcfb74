"""Where demo and tests can run."""

import pytest

from e2e.cluster import provider


@pytest.mark.parametrize("named", ["kind", "current", "minikube"])
def test_demo_and_tests_refuse_a_cluster_that_they_did_not_start(
    named: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOLDFAST_CLUSTER_PROVIDER", named)
    assert provider.main() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "as root on Linux, without HOLDFAST_CLUSTER_PROVIDER" in line


def test_demo_and_tests_take_their_own_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_CLUSTER_PROVIDER", "embedded")
    assert provider.main() == 0
