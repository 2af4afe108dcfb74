"""docs/security.md: each attack names a test that exists."""

from __future__ import annotations

import re

import pytest
import yaml

from tests.docs import named_tests

ATTACKS = named_tests.rows(named_tests.page("security.md"), r"\| attack .*")


def test_the_page_has_attacks_of_every_kind() -> None:
    assert len(ATTACKS) >= 20


@pytest.mark.parametrize("row", ATTACKS)
def test_each_attack_names_a_test_that_exists(row: str) -> None:
    path, name = re.fullmatch(r"\|.*\| `([\w/.]+)::(\w+)` \|", row).groups()  # type: ignore[union-attr]
    assert named_tests.exists(path, name)


def test_the_policies_of_the_page_select_the_pods_and_ports_that_are_rendered() -> None:
    folder = named_tests.ROOT / "tests/golden"
    goldens = [(folder / f"manifests-{name}.yaml").read_text(encoding="utf-8") for name in ("zero", "router")]
    manifests = [each for golden in goldens for each in yaml.safe_load_all(golden)]
    pods = [each["spec"]["template"] for each in manifests if each["kind"] == "Deployment"]
    (block,) = re.findall(r"^```yaml\n(.*?)^```", named_tests.page("security.md"), re.MULTILINE | re.DOTALL)
    for policy in yaml.safe_load_all(block):
        (selected,) = policy["spec"]["podSelector"]["matchExpressions"]
        admitted = {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}
        containers = [each["spec"]["containers"] for each in pods if selected["key"] in each["metadata"]["labels"]]
        assert containers
        assert all({port["name"] for port in container["ports"]} == admitted for (container,) in containers)
