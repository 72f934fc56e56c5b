"""A browser with the chat page of a fake server, for tests.

TOKAMAK_SHOTS=FOLDER keeps the screenshots.
"""
import os
import pathlib
import shutil
import tempfile
import unittest

from harness import Server

CHROMIUM = os.environ.get("TOKAMAK_CHROMIUM") or shutil.which("chromium") or ""
try:
    from playwright.sync_api import sync_playwright
except ImportError:
    sync_playwright = None
NEEDS_BROWSER = unittest.skipUnless(CHROMIUM and sync_playwright, "needs Chromium (Debian's package, or TOKAMAK_CHROMIUM) and the Python package playwright: tools/install_deps.sh test")


class Browser(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.addClassCleanup(cls.server.stop)
        cls.playwright = sync_playwright().start()
        cls.addClassCleanup(cls.playwright.stop)
        cls.browser = cls.playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        cls.addClassCleanup(cls.browser.close)
        cls.url = f"http://127.0.0.1:{cls.server.port}/"

    def open(self, width=1100, height=760, scheme="light"):
        self.errors = []
        context = self.browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        self.addCleanup(context.close)
        page = context.new_page()
        page.on("console", lambda m: self.errors.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda e: self.errors.append(str(e)))
        page.on("request", lambda r: self.errors.append(r.url) if not r.url.startswith(self.url) else None)
        page.goto(self.url)
        self.until(page, "document.getElementById('model').value === 'fake'")
        return page

    def until(self, page, condition):
        """page.wait_for_function needs eval, which the page's policy forbids."""
        for _ in range(1500):
            if page.evaluate(condition):
                return
            page.wait_for_timeout(20)
        self.fail(condition)

    def ask(self, page, text):
        page.locator("#input").fill(text)
        page.locator("#input").press("Enter")

    def texts(self, page):
        return page.locator(".message .body").all_inner_texts()

    def wait(self, page):
        page.wait_for_selector("#send:visible")

    def shot(self, page, name):
        folder = os.environ.get("TOKAMAK_SHOTS") or tempfile.gettempdir()
        path = pathlib.Path(folder) / f"tokamak-page-{name}.png"
        page.screenshot(path=path)
        self.assertGreater(path.stat().st_size, 5000)
        if not os.environ.get("TOKAMAK_SHOTS"):
            path.unlink()
