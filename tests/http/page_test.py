"""The chat page in headless Chromium with the fake engine: user actions at desktop and phone width, light and dark.

TOKAMAK_SHOTS=FOLDER keeps the screenshots.
"""
import json
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

SHOW = """A **plan** with `code` and a [link](https://example.com/a).

1. First:
   - nested
2. Second

| Name | Value |
|------|------:|
| one | 1 |

> quoted

```python title="x"
print("a line that is longer than a phone is wide, so that it has to scroll inside its box, not with the page")
```

<img src=x onerror="document.title='broken'"> [bad](javascript:alert(1)) 2*3*4
"""


@unittest.skipUnless(CHROMIUM and sync_playwright, "needs Chromium (TOKAMAK_CHROMIUM) and playwright")
class Page(unittest.TestCase):
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

    def shot(self, page, name):
        folder = os.environ.get("TOKAMAK_SHOTS") or tempfile.gettempdir()
        path = pathlib.Path(folder) / f"tokamak-page-{name}.png"
        page.screenshot(path=path)
        self.assertGreater(path.stat().st_size, 5000)
        if not os.environ.get("TOKAMAK_SHOTS"):
            path.unlink()

    def test_ask_stop_edit_reload(self):
        page = self.open()
        self.ask(page, "[say Hello **there**]")
        page.wait_for_selector("#send:visible")
        self.assertEqual(page.locator(".message.assistant strong").inner_text(), "there")
        self.assertIn("tokens", page.locator("#status").inner_text())
        self.ask(page, "[slow 20] go on")
        page.wait_for_selector(".message.assistant:nth-child(4) p")
        page.keyboard.press("Escape")
        page.wait_for_selector("#send:visible")
        self.assertEqual(page.locator("#status").inner_text(), "Stopped.")
        self.assertEqual(self.server.wait_engine(lambda e: e["running"] == 0)["running"], 0)
        page.locator(".message.user .who button").last.click(force=True)
        self.assertEqual((page.locator("#input").input_value(), page.locator(".message").count()), ("[slow 20] go on", 4))
        self.ask(page, "[slow 20] go on")
        page.wait_for_selector(".message.assistant:nth-child(4) p")
        page.reload()  # while it answers: the partial answer is kept, once
        page.wait_for_selector(".message.assistant:nth-child(4)")
        self.assertEqual(page.locator(".message").count(), 4)
        self.assertIn("closed before the answer was complete", page.locator(".message").last.inner_text())
        page.locator("#clear").click()
        self.assertEqual(page.locator(".message").count(), 0)
        self.assertEqual([e for e in self.errors if "ERR_" not in e], [])

    def texts(self, page):
        return page.locator(".message .body").all_inner_texts()

    def test_an_edit_changes_nothing_until_it_is_sent(self):
        page = self.open()
        for text in ("[say one]", "[say two]"):
            self.ask(page, text)
            page.wait_for_selector("#send:visible")
        before = self.texts(page)
        self.assertEqual(before, ["[say one]", "one", "[say two]", "two"])
        page.locator("#input").fill("a draft")
        for leave in (lambda: page.keyboard.press("Escape"), lambda: page.locator("#cancel").click()):
            page.locator(".message.user .who button").first.click(force=True)
            self.assertEqual(page.locator("#input").input_value(), "[say one]")
            self.assertTrue(page.locator("#editing").is_visible())
            self.assertEqual(page.locator(".message.replaced").count(), 4)
            leave()
            self.assertEqual((page.locator("#input").input_value(), page.locator("#editing").is_visible()), ("a draft", False))
            self.assertEqual((self.texts(page), page.locator(".message.replaced").count()), (before, 0))
        page.locator(".message.user .who button").first.click(force=True)
        page.reload()  # in the middle of an edit
        page.wait_for_selector(".message.assistant:nth-child(4)")
        self.assertEqual(self.texts(page), before)
        page.locator(".message.user .who button").last.click(force=True)
        self.ask(page, "[say three]")
        page.wait_for_selector("#send:visible")
        self.assertEqual(self.texts(page), ["[say one]", "one", "[say three]", "three"])
        page.locator(".message.assistant .who button").last.click(force=True)  # again
        page.wait_for_selector("#send:visible")
        self.assertEqual(self.texts(page), ["[say one]", "one", "[say three]", "three"])
        self.assertEqual(self.errors, [])

    def test_the_answer_length_is_left_to_the_server(self):
        page = self.open()
        bodies = []
        page.on("request", lambda r: bodies.append(r.post_data_json) if r.method == "POST" else None)
        self.ask(page, "[say x]")
        page.wait_for_selector("#send:visible")
        self.assertNotIn("max_tokens", bodies[0])
        page.locator("#settings summary").click()
        page.locator("#max-tokens").fill("3")
        self.ask(page, "[say abcdef]")
        page.wait_for_selector("#send:visible")
        self.assertEqual(bodies[1]["max_tokens"], 3)
        self.assertIn("abc\n", self.texts(page)[-1])
        page.locator("#max-tokens").fill("4090")  # more than is left of the context: the answer still comes
        self.ask(page, "[say whole]")
        page.wait_for_selector("#send:visible")
        self.assertEqual([b.get("max_tokens") for b in bodies[2:]], [4090, None])
        self.assertEqual(self.texts(page)[-1], "whole")
        page.locator("#max-tokens").fill("")
        page.reload()
        self.until(page, "document.getElementById('model').value === 'fake'")
        self.ask(page, "[say y]")
        page.wait_for_selector("#send:visible")
        self.assertNotIn("max_tokens", bodies[-1])

    def test_tabs_and_new_chats_lose_nothing(self):
        first = self.open()
        self.ask(first, "[say one]")
        first.wait_for_selector("#send:visible")
        second = first.context.new_page()
        second.goto(self.url)
        self.until(second, "document.getElementById('model').value === 'fake'")
        self.assertEqual(self.texts(second), ["[say one]", "one"])  # the latest conversation
        self.ask(second, "[say two]")
        second.wait_for_selector("#send:visible")
        self.until(first, "document.querySelectorAll('.message').length === 4")  # the first tab follows
        # Both at once: the later one continues in a copy.
        self.ask(first, "[slow 60][say first tab]")
        first.wait_for_selector("#stop:visible")
        self.ask(second, "[say second tab]")
        second.wait_for_selector("#send:visible")
        first.wait_for_selector("#send:visible")
        self.assertIn("another tab", first.locator("#status").inner_text())
        for page, last in ((first, "first tab"), (second, "second tab")):
            page.reload()
            page.wait_for_selector(".message:nth-child(6)")
            self.assertEqual(self.texts(page)[-1], last)
        # A new chat keeps the old ones.
        first.locator("#clear").click()
        self.assertEqual(first.locator(".message").count(), 0)
        self.ask(first, "[say third]")
        first.wait_for_selector("#send:visible")
        first.locator("#chats summary").click()
        self.until(first, "document.querySelectorAll('#chat-list li').length === 3")
        first.locator("#chat-list li").last.get_by_text("[say one]").click()
        self.assertGreaterEqual(first.locator(".message").count(), 6)
        before = self.texts(first)
        first.locator("#chat-list [aria-current=true] + button").click()
        self.assertEqual((first.locator(".message").count(), first.locator("#chat-list li").count()), (0, 2))
        first.locator("#status button").click()
        self.assertEqual((self.texts(first), first.locator("#chat-list li").count()), (before, 3))
        self.assertEqual(self.errors, [])

    def test_a_long_answer_is_followed_unless_the_user_scrolls(self):
        page = self.open()
        page.evaluate("document.getElementById('log').style.width = '6rem'")  # so that few words fill the page
        self.ask(page, "[slow 4] a long one")
        bottom = "(() => { const l = document.getElementById('log'); return l.scrollHeight - l.scrollTop - l.clientHeight; })()"
        self.until(page, "document.getElementById('log').scrollHeight > 1500")
        self.assertLess(page.evaluate(bottom), 16)
        page.evaluate("document.getElementById('log').scrollTop = 10")
        page.wait_for_timeout(150)
        page.keyboard.press("Escape")
        page.wait_for_selector("#send:visible")
        self.assertEqual(page.evaluate("document.getElementById('log').scrollTop"), 10)

    def test_markdown_on_all_screens(self):
        saved = {"messages": [{"role": "user", "content": "x\ny"}, {"role": "assistant", "content": SHOW}], "settings": {}}
        for width, height, scheme in ((1100, 760, "light"), (390, 800, "dark")):
            page = self.open(width, height, scheme)
            page.evaluate("text => localStorage.setItem('tokamak-chat', text)", json.dumps(saved))
            page.reload()
            body = page.locator(".message.assistant .body")
            for what, count in (("strong", 1), ("code", 2), ("a", 1), ("ol > li", 2), ("ol ul li", 1), ("td", 2), ("blockquote", 1),
                                ("pre", 1), ("img", 0), ("em", 0)):
                self.assertEqual(body.locator(what).count(), count, what)
            self.assertEqual(body.locator("a").get_attribute("href"), "https://example.com/a")
            self.assertIn("onerror=", body.inner_text())
            for drawer in ("#panel", "#settings"):
                page.locator(f"{drawer} summary").click()
                box = page.locator("#input").bounding_box()
                self.assertLess(box["y"] + box["height"], height)  # the typed text stays visible
            self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), width)
            header = [page.locator(s).bounding_box() for s in ("h1", "#model", "#theme", "#clear")]
            for left, right in zip(header, header[1:]):
                self.assertLessEqual(left["x"] + left["width"], right["x"] + 0.5)
            self.shot(page, f"{width}-{scheme}")
            self.assertEqual(page.title(), "Tokamak")
            self.assertEqual(self.errors, [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
