"""The API server and the types say the same of drawn objects: two hundred of those that `make campaign-specs` draws."""

from __future__ import annotations

import pytest

from e2e.campaign.agreement import asked
from e2e.cluster import nodes
from e2e.kubectl import Kubectl

pytestmark = pytest.mark.cluster

SEED = 1


def test_the_api_server_and_the_types_agree_about_drawn_objects(api: Kubectl) -> None:
    said = list(asked(nodes.connect(), SEED, range(200)))
    assert [each.told() for each in said if not each.agree] == []
    assert min(sum(bool(each.server) for each in said), sum(not each.server for each in said)) >= 40
