"""One Chromium, one JupyterLab and one page in it for all tests of this folder; each module has a database of its own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from agentflow import Database
from tests.support.browser import Lab, chromium_browser, jupyter_lab
from tests.support.helpers import database_of_its_own


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """The Chromium of these tests."""
    with chromium_browser() as browser:
        yield browser


@pytest.fixture(scope="package")
def place(url: str) -> tuple[str, str]:
    """The name of the database that JupyterLab's kernels work in, and its URL."""
    name = f"t_{uuid.uuid4().hex[:12]}"
    return name, Database(url).url.set(database=name).render_as_string(hide_password=False)


@pytest.fixture(scope="package")
def jupyter(place: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A JupyterLab on copies of the notebooks, with its own settings."""
    with jupyter_lab(tmp_path_factory.mktemp("lab"), place[1]) as lab:
        yield lab


@pytest.fixture(scope="package")
def tab(browser: Browser) -> Page:
    """The page in which JupyterLab is loaded once, and notebooks are opened and closed."""
    return browser.new_page()


@pytest.fixture(scope="module")
def own_url(url: str, place: tuple[str, str]) -> Iterator[str]:
    """The database of the kernels, made anew: no notebook of another module has worked in it."""
    with database_of_its_own(url, place[0]) as own:
        yield own


@pytest.fixture(scope="module")
def lab(jupyter: Lab, own_url: str) -> Lab:
    """JupyterLab, on the module's own database."""
    return jupyter
