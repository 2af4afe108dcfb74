"""The status page in a real browser: quick, readable, quiet, and safe against what users write."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from e2e.statuspage.browser import REMEDY, browser, complaints, missing, resize
from e2e.statuspage.played import Tick, board_of, play
from e2e.statuspage.served import served
from e2e.statuspage.views import opened, readability
from holdfast.api.conditions import ConditionType
from holdfast.page.board import Board

SERVICES = 500
LOADED_MS = 1000.0
WIDTHS = pytest.mark.parametrize("width", [1280, 400])
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


def test_what_users_write_stays_text(driver: webdriver.Chrome, ticks: list[Tick]) -> None:
    _, part, decision = ticks[-1]
    told = tuple(replace(each, message=NASTY) for each in decision.conditions)
    assert any(each.type == ConditionType.SLO_MET for each in told)
    part = replace(part, spec=replace(part.spec, model_uri=NASTY))
    decision = replace(decision, conditions=told, verdict=replace(decision.verdict, message=NASTY))
    board = Board()
    board.pictured({part.spec.key: (part, decision)}, (), time.time())
    board.decided(decision, time.time())
    with served(board) as address:
        for path, source in (("", "api/services"), (f"#/{part.spec.key}", f"api/services/{part.spec.key}")):
            opened(driver, address + path, source)
            assert NASTY in driver.find_element(By.ID, "main").text
            assert driver.execute_script("return window.hurt === undefined && !document.querySelector('main img')")
        left(driver)
