"""Where demo and tests can run, and what a cluster of each kind is made of."""

from pathlib import Path

import pytest

from e2e.cluster import images, kind, provider, toolset
from e2e.cluster.toolset import CAMPAIGN_TOOLS, EMBEDDED_TOOLS, TEST_TOOLS, Tool


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


@pytest.mark.parametrize("tools", [kind.tools(), EMBEDDED_TOOLS], ids=["kind", "embedded"])
def test_a_fresh_machine_builds_every_program_that_images_hold(
    tools: tuple[Tool, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path))
    for tool in tools:
        tool.folder.mkdir(parents=True)
        for name in tool.programs:
            tool.program(name).write_bytes(b"")
    assert all(image.archive.is_file() for image in images.program_images())


def test_every_program_is_built_before_what_runs_it_which_has_no_way_to_the_internet() -> None:
    named = {each.name for each in vars(toolset).values() if isinstance(each, Tool)}
    assert named == {tool.name for tool in (*EMBEDDED_TOOLS, *TEST_TOOLS, *CAMPAIGN_TOOLS, toolset.KIND)}


def test_a_tool_without_the_files_that_are_kept_with_it_is_built_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(toolset, "cache_folder", lambda: tmp_path)
    toolset.LWS.folder.mkdir(parents=True)
    toolset.LWS.program("cmd").write_bytes(b"")
    assert not toolset.LWS.is_built(), "an earlier build kept no CRDs"
    for kept in ("bases", "webhook"):
        toolset.LWS.program(kept).mkdir()
    assert toolset.LWS.is_built()


def test_a_program_that_is_not_built_is_named_with_the_command_that_builds_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(toolset, "cache_folder", lambda: tmp_path)
    with pytest.raises(FileNotFoundError, match=r"kstatus is not built: python -m e2e\.cluster build"):
        toolset.KSTATUS.built_program("kstatus")
