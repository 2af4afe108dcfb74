"""The status page in a real browser: quick, readable, quiet, and safe against what users write."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from e2e.statuspage.browser import REMEDY, browser, complaints, missing, prefer, resize
from e2e.statuspage.played import Tick, board_of, play, without_image, without_prometheus
from e2e.statuspage.served import served
from e2e.statuspage.views import opened, readability
from holdfast.api.conditions import ConditionType
from holdfast.page.board import Board

SERVICES = 500
LOADED_MS = 1000.0
WIDTHS = pytest.mark.parametrize("width", [1400, 1280, 1000, 500, 400])
NASTY = '<img src=x onerror="window.hurt=1"><script>window.hurt=1</script>'


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    if missing():
        # Continuous integration installs it (make browser): there nothing may be left out.
        (pytest.fail if os.environ.get("CI") else pytest.skip)(REMEDY)
    with browser(tmp_path_factory.mktemp("profile")) as opened_browser:
        yield opened_browser


@pytest.fixture(scope="module")
def ticks() -> list[Tick]:
    return play()


@pytest.fixture(scope="module")
def url(ticks: list[Tick]) -> Iterator[str]:
    with served(board_of(ticks, time.time(), SERVICES)) as address:
        yield address


def rows(driver: webdriver.Chrome) -> int:
    return int(driver.execute_script("return document.querySelectorAll('.fleet tbody tr:not([hidden])').length"))


def texts(driver: webdriver.Chrome, selector: str) -> list[str]:
    """In one piece: an element that is found first and read then may have been replaced between the two."""
    script = "return [...document.querySelectorAll(arguments[0])].map((each) => each.innerText)"
    return [str(text) for text in driver.execute_script(script, selector)]


def plots(driver: webdriver.Chrome) -> list[str]:
    return texts(driver, ".plots h2")


def board_with(tick: Tick, outage: str = "") -> tuple[Board, str]:
    """A board that shows this tick alone, and the path of its service."""
    _, part, decision = tick
    board = Board(lambda: outage)
    board.pictured({part.spec.key: (part, decision)}, (), time.time())
    return board, f"{part.spec.key}"


def left(driver: webdriver.Chrome) -> None:
    """Leave a page that had nothing to complain of: before its server goes, for it asks at every tick."""
    assert complaints(driver) == []
    driver.get("about:blank")


def test_five_hundred_services_are_shown_within_a_second(driver: webdriver.Chrome, url: str) -> None:
    resize(driver, 1280)
    took = sorted(opened(driver, url, "api/services") for _ in range(5))
    print(f"{SERVICES} services are shown after {', '.join(f'{each:.0f}' for each in took)} ms")
    assert rows(driver) == SERVICES
    assert took[0] <= LOADED_MS, "a neighbour on the same cores only ever adds"
    assert complaints(driver) == []


@WIDTHS
def test_the_fleet_is_readable(driver: webdriver.Chrome, url: str, width: int) -> None:
    resize(driver, width)
    opened(driver, url, "api/services")
    assert readability(driver) == {"scrolls": 0, "small": []}
    assert complaints(driver) == []


@WIDTHS
def test_a_service_is_readable_with_all_its_plots(driver: webdriver.Chrome, url: str, width: int) -> None:
    resize(driver, width)
    opened(driver, f"{url}#/prod/chat", "api/services/prod/chat")
    assert readability(driver) == {"scrolls": 0, "small": []}
    assert len(driver.find_elements(By.CSS_SELECTOR, ".plots canvas")) == 8
    told = driver.find_element(By.ID, "main").text
    assert "What if it were another size" in told
    assert "holdfast savings prod/chat --since 1d" in told
    assert "a request that missed two objectives counts at both" in told, "the twin played engines without the plugin"
    assert complaints(driver) == []


def test_a_service_without_an_end_to_end_objective_has_no_plot_of_it_and_unknown_causes_are_said_to_be(
    driver: webdriver.Chrome, ticks: list[Tick]
) -> None:
    _, part, decision = ticks[-1]
    blind = replace(decision, slo=replace(decision.slo, bad=None))
    board = Board()
    board.pictured({part.spec.key: (part, blind)}, (), time.time())
    with served(board) as address:
        page = f"{address}#/{part.spec.key}", f"api/services/{part.spec.key}"
        opened(driver, *page)
        assert plots(driver).count("End to end") == 1
        assert "Not known now: no counts can be believed" in driver.find_element(By.ID, "main").text
        edited = replace(part, spec=replace(part.spec, slo=replace(part.spec.slo, e2e_seconds=None)))
        board.pictured({part.spec.key: (edited, decision)}, (), time.time())
        WebDriverWait(driver, 60).until(lambda _: "End to end" not in plots(driver))
        assert plots(driver).count("Bad requests by cause") == 1
        left(driver)


def test_who_comes_into_sight_has_a_sparkline(driver: webdriver.Chrome, url: str) -> None:
    resize(driver, 1280)
    opened(driver, url, "api/services")
    sparks = "return document.querySelectorAll('.spark canvas').length"
    WebDriverWait(driver, 60).until(lambda _: driver.execute_script(sparks) > 5)
    assert driver.execute_script(sparks) < SERVICES / 2


def test_services_are_found_by_what_is_typed(driver: webdriver.Chrome, url: str) -> None:
    opened(driver, url, "api/services")
    driver.find_element(By.CSS_SELECTOR, "input").send_keys("chat-042")
    WebDriverWait(driver, 60).until(lambda _: rows(driver) == 1)

    def followed(_: webdriver.Chrome) -> bool:
        driver.find_element(By.LINK_TEXT, "team-0/chat-042").click()
        return True

    # A tick may draw the row anew between finding and clicking.
    WebDriverWait(driver, 60, ignored_exceptions=[StaleElementReferenceException]).until(followed)
    WebDriverWait(driver, 60).until(lambda _: texts(driver, "h1") == ["team-0/chat-042"])
    assert complaints(driver) == []


def test_a_new_tick_is_shown_without_a_reload(driver: webdriver.Chrome, ticks: list[Tick]) -> None:
    board = board_of(ticks[:60], time.time())
    with served(board) as address:
        opened(driver, address, "api/services")
        board.pictured({}, (), time.time())
        WebDriverWait(driver, 60).until(lambda _: rows(driver) == 0)
        left(driver)


def test_a_service_that_is_gone_is_told_and_the_console_is_heard(driver: webdriver.Chrome, url: str) -> None:
    driver.get("about:blank")
    driver.get(f"{url}#/prod/gone")
    trouble = driver.find_element(By.ID, "trouble")
    WebDriverWait(driver, 60).until(
        lambda _: trouble.text.startswith("prod/gone: this operator decides on no LLMService with this name")
    )
    assert any("404" in each for each in complaints(driver))


def test_list_and_page_name_the_missing_image_and_not_what_follows_from_it(
    driver: webdriver.Chrome, ticks: list[Tick]
) -> None:
    board, key = board_with(without_image(ticks[-1]))
    with served(board) as address:
        opened(driver, address, "api/services")
        (row,) = texts(driver, ".fleet tbody tr")
        assert "not ready" in row
        assert "ImagePullFailing" in row
        assert "0 of 1 Ready" in row
        assert "1 failing" in row
        assert driver.title == "(1) Holdfast"
        opened(driver, f"{address}#/{key}", f"api/services/{key}")
        first, cause = texts(driver, ".verdict p")[:2]
        assert (first, cause.startswith("ImagePullFailing: ")) == ("not ready", True)
        assert "registry.example.com/vllm-openai:v9" in cause
        left(driver)


def test_what_does_not_answer_the_operator_is_said_on_top_until_it_does(
    driver: webdriver.Chrome, ticks: list[Tick]
) -> None:
    why = "Prometheus at http://prometheus:9090 did not answer within 5 s"
    board, key = board_with(without_prometheus(ticks[-1], why), "https://10.0.0.1:443 does not answer GET /apis")
    with served(board) as address:
        for path, source in (("", "api/services"), (f"#/{key}", f"api/services/{key}")):
            opened(driver, address + path, source)
            api, prometheus = texts(driver, "#outages p")
            assert api.startswith("The API server does not answer.")
            assert "10.0.0.1:443" in api
            assert prometheus.startswith("Prometheus does not answer for 1 of 1 service.")
            assert why in prometheus
        _, part, decision = ticks[-1]
        board.api_outage = str
        board.pictured({part.spec.key: (part, decision)}, (), time.time())
        WebDriverWait(driver, 60).until(lambda _: not texts(driver, "#outages p"))
        left(driver)


def test_legends_show_the_newest_values_and_lines_differ_without_colour(driver: webdriver.Chrome, url: str) -> None:
    resize(driver, 1280)
    opened(driver, f"{url}#/prod/chat", "api/services/prod/chat")
    legends = texts(driver, ".plots .u-legend")
    assert len(legends) == len(plots(driver))
    assert "objective1 s" in legends[2].replace("\n", "")
    assert "–" not in legends[0], "all of it is known now"
    styles = driver.execute_script(
        "return [...document.querySelector('.plots section:nth-child(3)').querySelectorAll('.u-marker')]"
        ".map((each) => getComputedStyle(each).borderTopStyle)"
    )
    assert len(set(styles)) > 1
    assert complaints(driver) == []


def test_an_odd_number_of_plots_leaves_no_half_row(driver: webdriver.Chrome, ticks: list[Tick]) -> None:
    _, part, decision = ticks[-1]
    part = replace(part, spec=replace(part.spec, slo=replace(part.spec.slo, e2e_seconds=None)))
    board, key = board_with((0.0, part, decision))
    resize(driver, 1400)
    widths = "return [...document.querySelectorAll('.plots section')].map((each) => each.offsetWidth)"
    with served(board) as address:
        opened(driver, f"{address}#/{key}", f"api/services/{key}")
        first, *rest = driver.execute_script(widths)
        assert len(rest) == 6
        assert first > 1.9 * max(rest)
        left(driver)


def contrast(driver: webdriver.Chrome, selector: str) -> float:
    """Of text and page, by the definition of WCAG 2.2."""

    def luminance(colour: str) -> float:
        parts = [int(each) / 255 for each in re.findall(r"\d+", colour)[:3]]
        linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    script = "return getComputedStyle(document.querySelector(arguments[0]))[arguments[1]]"
    ink = luminance(driver.execute_script(script, selector, "color"))
    back = luminance(driver.execute_script(script, "body", "backgroundColor"))
    return (max(ink, back) + 0.05) / (min(ink, back) + 0.05)


def test_light_and_dark_are_readable_and_a_state_is_told_by_a_sign(driver: webdriver.Chrome, url: str) -> None:
    backs = set()
    sign = "return getComputedStyle(document.querySelector(arguments[0]), '::before').content"
    try:
        for scheme in ("light", "dark"):
            prefer(driver, scheme)
            opened(driver, url, "api/services")
            backs.add(driver.execute_script("return getComputedStyle(document.body).backgroundColor"))
            for selector in ("body", ".fleet .missed", ".fleet .held", ".fleet .sub"):
                assert contrast(driver, selector) >= 4.5, (scheme, selector)
            assert driver.execute_script(sign, ".fleet .missed") != driver.execute_script(sign, ".fleet .held")
    finally:
        prefer(driver, "light")
    assert len(backs) == 2
    assert complaints(driver) == []


def test_what_users_write_stays_text(driver: webdriver.Chrome, ticks: list[Tick]) -> None:
    _, part, decision = ticks[-1]
    _, _, decision = without_prometheus((0.0, part, decision), NASTY)
    told = tuple(replace(each, message=NASTY) for each in decision.conditions)
    assert any(each.type == ConditionType.SLO_MET for each in told)
    part = replace(part, spec=replace(part.spec, model_uri=NASTY))
    decision = replace(decision, conditions=told, verdict=replace(decision.verdict, message=NASTY))
    board = Board(lambda: NASTY)
    board.pictured({part.spec.key: (part, decision)}, (), time.time())
    board.decided(decision, time.time())
    with served(board) as address:
        for path, source in (("", "api/services"), (f"#/{part.spec.key}", f"api/services/{part.spec.key}")):
            opened(driver, address + path, source)
            assert NASTY in driver.find_element(By.ID, "main").text
            assert sum(NASTY in each for each in texts(driver, "#outages p")) == 2
            assert driver.execute_script("return window.hurt === undefined && !document.querySelector('body img')")
        left(driver)
