"""A real browser in front of a real server. Without Chromium these tests are skipped, except in CI."""

import time

import pytest

from live_site import PATIENCE_S, Site, running_browser

# How many pixels of the canvas are painted in the color of the curve.
PAINTED = """selector => {
  const canvas = document.querySelector(selector + ' canvas');
  const probe = document.createElement('canvas').getContext('2d');
  probe.fillStyle = getComputedStyle(document.documentElement).getPropertyValue('--accent').trim();
  probe.fillRect(0, 0, 1, 1);
  const [r, g, b] = probe.getImageData(0, 0, 1, 1).data;
  const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  let found = 0;
  for (let i = 0; i < data.length; i += 4) {
    const off = Math.abs(data[i] - r) + Math.abs(data[i + 1] - g) + Math.abs(data[i + 2] - b);
    if (data[i + 3] > 200 && off < 30) found += 1;
  }
  return found;
}"""


@pytest.fixture(
    scope="module"
)  # while it lives an event loop runs in this thread, which other tests need free
def browser():
    with running_browser() as started:
        yield started


@pytest.fixture
def site():
    made = Site()
    made.start()
    yield made
    made.close()


class Visitor:
    """One tab, and everything that went wrong in it."""

    def __init__(self, page):
        self.page, self.complaints = page, []
        page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def text(self, selector):
        return self.page.locator(selector).inner_text()

    def wait_for_text(self, selector, text):
        self.page.wait_for_function(
            "([selector, text]) => document.querySelector(selector)?.innerText.includes(text)",
            arg=[selector, text],
        )

    def wait_for_curve(self, selector):
        """Wait until a good part of the canvas has the color of the curve."""
        self.page.wait_for_function(f"selector => ({PAINTED})(selector) > 400", arg=selector)

    def wait_for_complaint(self, text):
        """Console messages come by their own way, which may be longer than that of an answer."""
        end_s = time.monotonic() + PATIENCE_S
        while not any(text in said for said in self.complaints):
            assert time.monotonic() < end_s, self.complaints
            self.page.wait_for_timeout(20)


@pytest.fixture
def visit(browser, site):
    contexts = []

    def open_page(path="/", *, width=1280, height=900, theme="dark"):
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme)
        context.set_default_timeout(PATIENCE_S * 1000)
        contexts.append(context)
        visitor = Visitor(context.new_page())
        visitor.page.goto(site.url + path)
        visitor.wait_for_text("#link-text", "live")
        return visitor

    yield open_page
    for context in contexts:
        context.close()
