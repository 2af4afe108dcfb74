"""A headless Chromium of the distribution's, driven by Selenium."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from e2e.cluster.packages import install

PACKAGES = {"chromium": "chromium", "chromedriver": "chromium-driver"}
REMEDY = "no Chromium on this machine: python -m e2e.statuspage install (or the packages chromium and chromium-driver)"


def missing() -> list[str]:
    """Distribution packages whose programs are not on this machine."""
    return [package for program, package in PACKAGES.items() if shutil.which(program) is None]


def install_missing() -> None:
    """Install them where apt can."""
    if wanted := missing():
        install(wanted)


@contextmanager
def browser(profile: Path) -> Iterator[webdriver.Chrome]:
    """Open a browser that keeps its files in `profile`, and close it."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    flags = ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--no-proxy-server")
    for flag in (*flags, "--hide-scrollbars", f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(shutil.which("chromedriver"))))
    try:
        yield driver
    finally:
        driver.quit()


def resize(driver: webdriver.Chrome, width: int, height: int = 900) -> None:
    """Give the page exactly so many CSS pixels; a window cannot be as narrow as a phone."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def prefer(driver: webdriver.Chrome, scheme: str) -> None:
    """Prefer colours of a scheme, `light` or `dark`."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def complaints(driver: webdriver.Chrome) -> list[str]:
    """What the console has said since last asked: errors, warnings, violations of the policy."""
    return [entry["message"] for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
