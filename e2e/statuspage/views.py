"""The page in a browser: opened, measured and pictured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.support.wait import WebDriverWait

_DRAWN_MS = """
  const entries = performance.getEntriesByName("drawn");
  return entries.length ? entries[0].startTime : null;
"""
_WIDTHS = """
  const narrow = [...document.querySelectorAll("body *")].filter((each) =>
    [...each.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.textContent.trim())
    && each.getClientRects().length && parseFloat(getComputedStyle(each).fontSize) < 12);
  const root = document.documentElement;
  return {scrolls: root.scrollWidth - root.clientWidth, small: narrow.map((each) => each.outerHTML.slice(0, 120))};
"""


def opened(driver: webdriver.Chrome, url: str, source: str, seconds: float = 30.0) -> float:
    """Open the page anew and wait until it shows `source`; returns milliseconds from the request until it did."""
    driver.get("about:blank")
    driver.get(url)
    wait = WebDriverWait(driver, seconds, poll_frequency=0.05)
    wait.until(lambda _: driver.execute_script("return document.documentElement.dataset.drawn") == source)
    return float(driver.execute_script(_DRAWN_MS))


def readability(driver: webdriver.Chrome) -> dict[str, Any]:
    """Return how many pixels the page scrolls sideways, and what is written in less than 12 pixels."""
    found: dict[str, Any] = driver.execute_script(_WIDTHS)
    return found


def picture(driver: webdriver.Chrome, path: Path) -> None:
    """Keep what is seen, once two frames have been drawn of it."""
    driver.execute_async_script("const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(done));")
    path.write_bytes(_smaller(driver.get_screenshot_as_png()))


def _smaller(png: bytes) -> bytes:
    """The same picture in 64 colours: a third of the bytes, and no difference to the eye."""
    import io

    from PIL import Image

    out = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").quantize(64).save(out, "PNG", optimize=True)
    return out.getvalue()
