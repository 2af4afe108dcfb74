"""The limits that an engine shows, read from a page as vLLM and the plugin write it."""

from e2e.limits import limits_on

PAGE = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 2.0
# HELP holdfast:limits Limits in force.
# TYPE holdfast:limits gauge
holdfast:limits{engine="0",model_name="m",name="version"} 1.763841e+09
holdfast:limits{engine="0",model_name="m",name="active_sequences"} 4.0
holdfast:limits_other{engine="0",model_name="m",name="version"} 1.0
"""


def test_limits_are_read_by_name_and_nothing_else_is() -> None:
    assert limits_on(PAGE) == {"version": 1763841000.0, "active_sequences": 4.0}


def test_an_engine_without_the_plugin_shows_none() -> None:
    assert limits_on("") == {}
