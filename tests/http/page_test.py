"""The chat page in headless Chromium with the fake engine: user actions at desktop and phone width, light and dark.

TOKAMAK_SHOTS=FOLDER keeps the screenshots.
"""
import json
import os
import pathlib
import re
import shutil
import tempfile
import unittest

from browser import NEEDS_BROWSER, Browser
from harness import Server

SHOW = """A **plan** with `code` and a [link](https://example.com/a).

1. First:
   - nested
2. Second

| Name | Value | Middle |
|------|------:|:------:|
| one \\| a | 1 | x |

- [x] done
- [ ] open _slanted_ \\*plain\\*

See https://example.com/b_c. ![dot](data:image/png;base64,iVBORw0KGgo=) ![not loaded](https://example.com/x.png)

> quoted

```python title="x"
print("a line that is longer than a phone is wide, so that it has to scroll inside its box, not with the page")
```

<img src=x onerror="document.title='broken'"> [bad](javascript:alert(1)) 2*3*4
"""


@NEEDS_BROWSER
class Page(Browser):
    def test_documents(self):
        page = self.open()
        page.locator("#tab-rag").click()
        self.assertIn("Passages: 2. Files: 1.", page.locator("#panel-rag").inner_text())
        page.locator("#rag-query").fill("the moon")
        page.locator("#rag-ask").click()
        page.wait_for_selector("#rag-sources li")
        page.wait_for_selector("#rag-stop", state="hidden")
        sources = page.locator("#rag-sources summary").all_inner_texts()
        self.assertEqual(sources, ["[1] a.txt:1 (0.750)", "[2] b.txt:7 (0.250)"])
        page.locator("#rag-sources summary").first.click()
        self.assertEqual(page.locator("#rag-sources p").first.inner_text(), "about the moon")
        self.assertNotEqual(page.locator("#rag-answer").inner_text(), "Answering …")
        self.assertEqual(self.errors, [])

    def test_ask_stop_edit_reload(self):
        page = self.open()
        self.ask(page, "[say Hello **there**]")
        page.wait_for_selector("#send:visible")
        self.assertEqual(page.locator(".message.assistant strong").inner_text(), "there")
        self.assertIn("15 tokens", page.locator(".message.assistant .stats").inner_text())
        self.ask(page, "[slow 100] go on")
        page.wait_for_selector(".message.assistant:nth-child(4) p")
        page.keyboard.press("Escape")
        page.wait_for_selector("#send:visible")
        self.assertEqual(page.locator("#status").inner_text(), "Stopped.")
        self.assertEqual(self.server.wait_engine(lambda e: e["running"] == 0)["running"], 0)
        page.get_by_label("Edit this message").last.click(force=True)
        self.assertEqual((page.locator("#input").input_value(), page.locator(".message").count()), ("[slow 100] go on", 4))
        self.ask(page, "[slow 100] go on")
        page.wait_for_selector(".message.assistant:nth-child(4) p")
        page.reload()  # while it answers: the partial answer is kept, once
        page.wait_for_selector(".message.assistant:nth-child(4)")
        self.assertEqual(page.locator(".message").count(), 4)
        self.assertIn("closed before the answer was complete", page.locator(".message").last.inner_text())
        page.locator("#clear").click()
        self.assertEqual(page.locator(".message").count(), 0)
        self.assertEqual([e for e in self.errors if "ERR_" not in e], [])

    def test_an_edit_changes_nothing_until_it_is_sent(self):
        page = self.open()
        for text in ("[say one]", "[say two]"):
            self.ask(page, text)
            page.wait_for_selector("#send:visible")
        before = self.texts(page)
        self.assertEqual(before, ["[say one]", "one", "[say two]", "two"])
        page.locator("#input").fill("a draft")
        for leave in (lambda: page.keyboard.press("Escape"), lambda: page.locator("#cancel").click()):
            page.get_by_label("Edit this message").first.click(force=True)
            self.assertEqual(page.locator("#input").input_value(), "[say one]")
            self.assertTrue(page.locator("#editing").is_visible())
            self.assertEqual(page.locator(".message.replaced").count(), 4)
            leave()
            self.assertEqual((page.locator("#input").input_value(), page.locator("#editing").is_visible()), ("a draft", False))
            self.assertEqual((self.texts(page), page.locator(".message.replaced").count()), (before, 0))
        page.get_by_label("Edit this message").first.click(force=True)
        page.reload()  # in the middle of an edit
        page.wait_for_selector(".message.assistant:nth-child(4)")
        self.assertEqual(self.texts(page), before)
        page.get_by_label("Edit this message").last.click(force=True)
        self.ask(page, "[say three]")
        page.wait_for_selector("#send:visible")
        self.assertEqual(self.texts(page), ["[say one]", "one", "[say three]", "three"])
        page.get_by_label("Answer again").last.click(force=True)
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

    def test_sampling_is_left_to_the_server_where_it_says_something(self):
        page = self.open()
        bodies = []
        page.on("request", lambda r: bodies.append(r.post_data_json) if r.method == "POST" else None)
        def ask():
            self.ask(page, "[say x]")
            self.wait(page)
            return bodies[-1].get("temperature"), bodies[-1].get("top_p")
        self.assertEqual(ask(), (0.7, 0.95))  # the fake model says nothing
        page.locator("#settings summary").click()
        page.locator("#temperature").fill("0")
        self.assertEqual(ask(), (0, 0.95))
        page.locator("#temperature").fill("")
        params = {"temperature": 1, "top_p": 1, "top_k": 0, "min_p": 0}  # also where it says what is the default anyway
        page.route("**/props", lambda route: route.fulfill(json={"default_generation_settings": {"params": params}, "has_sampling_defaults": True}))
        page.reload()
        self.until(page, "document.getElementById('model').value === 'fake'")
        self.assertEqual(ask(), (None, None))
        page.locator("#settings summary").click()
        page.locator("#top-p").fill("0.5")
        self.assertEqual(ask(), (None, 0.5))

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
        self.until(first, "document.querySelectorAll('#chat-list li').length === 3")
        first.locator("#chat-list li").last.get_by_text("[say one]").click()
        self.assertGreaterEqual(first.locator(".message").count(), 6)
        before = self.texts(first)
        first.locator("#chat-list [aria-current=true] ~ button").last.click(force=True)
        self.assertEqual((first.locator(".message").count(), first.locator("#chat-list li").count()), (0, 2))
        first.locator("#status button").click()
        self.assertEqual((self.texts(first), first.locator("#chat-list li").count()), (before, 3))
        self.assertEqual(self.errors, [])

    def test_edits_and_new_answers_are_branches(self):
        page = self.open()
        for text in ("[say one]", "[say two]"):
            self.ask(page, text)
            self.wait(page)
        page.get_by_label("Edit this message").first.click(force=True)
        self.ask(page, "[say three]")
        self.wait(page)
        self.assertEqual(self.texts(page), ["[say three]", "three"])
        self.assertEqual(page.locator(".branch").inner_text(), "2/2")
        page.get_by_label("Previous version").click(force=True)
        self.assertEqual(self.texts(page), ["[say one]", "one", "[say two]", "two"])
        page.reload()
        page.wait_for_selector(".message:nth-child(4)")
        page.get_by_label("Next version").click(force=True)
        self.assertEqual(self.texts(page), ["[say three]", "three"])
        page.get_by_label("Answer again").last.click(force=True)
        self.wait(page)
        self.assertEqual(page.locator(".branch").all_inner_texts(), ["2/2", "2/2"])
        self.assertEqual(self.errors, [])

    def test_search_rename_export_import(self):
        page = self.open()
        for text in ("[say apple]", "[say pear]"):
            page.locator("#clear").click()
            self.ask(page, text)
            self.wait(page)
        titles = page.locator("#chat-list li button:first-child")
        self.assertEqual(titles.all_inner_texts(), ["[say pear]", "[say apple]"])
        page.locator("#search").fill("APPLE")
        self.assertEqual(titles.all_inner_texts(), ["[say apple]"])
        page.get_by_label("Rename [say apple]").click(force=True)
        page.locator("#rename").fill("Fruit")
        page.locator("#rename").press("Enter")
        self.assertEqual(titles.all_inner_texts(), ["Fruit"])  # the text still matches
        page.locator("#search").fill("nothing like it")
        self.assertTrue(page.locator("#no-chats").is_visible())
        page.locator("#search").fill("")
        with page.expect_download() as download:
            page.locator("#export").click()
        saved = pathlib.Path(download.value.path()).read_text()
        self.assertEqual(len(json.loads(saved)["chats"]), 2)
        other = self.open()
        with tempfile.TemporaryDirectory() as folder:
            for name, text, shown in (("bad.json", "{}", "does not contain"), ("good.json", saved, "2 conversations were"), ("good.json", saved, "0 conversations were")):
                path = pathlib.Path(folder) / name
                path.write_text(text)
                other.locator("#import-file").set_input_files(path)
                self.until(other, f"document.getElementById('status').textContent.includes('{shown}')")
        self.assertEqual(sorted(other.locator("#chat-list li button:first-child").all_inner_texts()), ["Fruit", "[say pear]"])

    def test_files_prompts_and_schema(self):
        page = self.open()
        bodies = []
        page.on("request", lambda r: bodies.append(r.post_data_json) if r.method == "POST" else None)
        with tempfile.TemporaryDirectory() as folder:
            text, binary = pathlib.Path(folder) / "notes.txt", pathlib.Path(folder) / "a.bin"
            text.write_text("some notes")
            binary.write_bytes(b"a\0b")
            page.locator("#file").set_input_files([text, binary])
            self.until(page, "document.querySelectorAll('#files li').length === 1")
        self.assertIn("not a text file", page.locator("#status").inner_text())
        page.locator("#settings summary").click()
        page.locator("#system").fill("Be kind.")
        page.locator("#keep-prompt").click()
        page.locator("#system").fill("")
        page.locator("#prompts").select_option(label="Be kind.")
        page.locator("#schema").fill("{")
        self.assertTrue(page.locator("#schema-error").is_visible())
        self.ask(page, "[say x]")
        self.wait(page)
        self.assertEqual(bodies[0]["messages"][0], {"role": "system", "content": "Be kind."})
        self.assertIn("some notes", bodies[0]["messages"][1]["content"])
        self.assertNotIn("response_format", bodies[0])
        self.assertEqual(page.locator("#files li").count(), 0)
        page.locator("#schema").fill('{"type": "object"}')
        self.assertFalse(page.locator("#schema-error").is_visible())
        self.ask(page, "[say y]")
        self.wait(page)
        self.assertEqual(bodies[1]["response_format"]["json_schema"]["schema"], {"type": "object"})

    def test_thoughts_and_tokens(self):
        page = self.open()
        self.ask(page, "[say <think>first this</think>then that]")
        self.wait(page)
        box = page.locator(".message.assistant details")
        self.assertEqual((box.locator("summary").inner_text(), box.get_attribute("open")), ("Thoughts", None))
        page.get_by_label("Show the probability of each token").click(force=True)
        page.wait_for_selector(".tokens button")
        self.assertEqual("".join(page.locator(".tokens button").all_inner_texts()), "then that")
        page.locator(".tokens button").first.click()
        self.assertIn('"t": 22.3 %', page.locator(".alternatives").inner_text())
        self.assertEqual(self.errors, [])

    def test_the_input_grows_and_tabs_work_by_keyboard(self):
        page = self.open()
        page.locator("#input").fill("word " * 120)
        self.assertGreater(page.evaluate("document.getElementById('input').rows"), 2)
        page.locator("#input").fill("")
        self.assertEqual(page.evaluate("document.getElementById('input').rows"), 1)
        page.locator("#tab-chat").focus()
        page.keyboard.press("ArrowRight")
        self.assertTrue(page.locator("#panel-server").is_visible())
        self.until(page, "document.querySelectorAll('#panel-server figure').length === 8")
        self.until(page, "document.querySelectorAll('.blocks i').length === 200")
        page.keyboard.press("ArrowRight")
        self.until(page, "document.getElementById('panel-plan').textContent.includes('does not show')")
        page.keyboard.press("Home")
        self.assertTrue(page.locator("#input").is_visible())
        # Every control has a name.
        self.assertEqual(page.evaluate("""[...document.querySelectorAll('button, input:not([hidden]), select, textarea')].filter((e) =>
            !(e.textContent.trim() || e.labels?.length || e.getAttribute('aria-label'))).map((e) => e.outerHTML)"""), [])

    def test_what_a_screen_reader_reads(self):
        """Every control has a name, at desktop and phone width; answers and notices are announced."""
        for width in (1100, 390):
            page = self.open(width=width)
            self.ask(page, "[say Hello **there**]")
            page.wait_for_selector("#send:visible")
            page.locator("#settings summary").click()
            tree = page.locator("body").aria_snapshot().splitlines()
            nameless = [line for line in tree if re.match(r"\s*- (button|textbox|combobox|searchbox|spinbutton|tab|tablist|link|img)(:| *$)", line)]
            self.assertEqual(nameless, [], width)
            text = "\n".join(tree)
            for part in ('tab "Chat" [selected]', 'tab "Server"', 'tabpanel "Chat"', 'main "Conversation"', 'textbox "Message"', 'button "Send"',
                         'button "Answer again"', 'combobox "Model"', 'spinbutton "Temperature"', "strong: there"):
                self.assertIn(part, text, width)
            self.assertEqual(page.locator("#log").get_attribute("aria-live"), "polite")
            self.assertEqual([page.locator(i).get_attribute("role") for i in ("#status", "#offline")], ["status", "alert"])
            for tab, panel in (("#tab-server", "Server"), ("#tab-plan", "Model")):
                page.locator(tab).click()
                self.assertIn(f'tabpanel "{panel}"', page.locator("body").aria_snapshot())
            self.assertEqual(page.evaluate("document.documentElement.lang"), "en")

    def test_the_server_goes_and_comes_back(self):
        server = Server()
        port = server.port
        page = self.open()
        page.goto(f"http://127.0.0.1:{port}/")
        self.until(page, "document.getElementById('model').value === 'fake'")
        server.stop()
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")  # also every ten seconds
        page.wait_for_selector("#offline:visible")
        server = Server(port=port)
        page.wait_for_selector("#offline", state="hidden")
        server.stop()
        self.ask(page, "[say hello]")
        page.wait_for_selector("#offline:visible")
        self.assertIn("cannot be reached", page.locator(".message.assistant .error").inner_text())
        server = Server(port=port)
        try:
            page.wait_for_selector("#offline", state="hidden")
            page.get_by_label("Answer again").click(force=True)
            self.until(page, "[...document.querySelectorAll('.message .body')].at(-1).textContent === 'hello'")
        finally:
            page.close()
            server.stop()

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
        # The next message is shown and followed again.
        self.ask(page, "[slow 4] another one")
        page.wait_for_selector(".message.assistant:nth-child(4) p")
        page.wait_for_timeout(150)
        self.assertLess(page.evaluate(bottom), 16)
        page.keyboard.press("Escape")
        page.wait_for_selector("#send:visible")
        self.assertLess(page.evaluate(bottom), 16)

    def test_formulas_and_colours(self):
        """Needs the Debian packages at build time; what is not a formula or code stays text."""
        page = self.open()
        text = "Euler: $e^{i\\pi} + 1 = 0$ and \\(x_1\\), costs $5 or $10, `$a$`, \\$x\\$.\n\n$$\n\\int_0^1 x^2\\,dx = \\frac{1}{3}\n$$\n\n" \
               "$\\badcommand{$ $\\href{javascript:alert(1)}{x}$ $\\sqrt{\\frac{a}{b}}$\n\n```python\ndef f(x): return \"<b>\"  # note\n```\n\n```nonsense\nplain <i>\n```\n"
        saved = {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": text}], "settings": {}}
        page.evaluate("text => localStorage.setItem('tokamak-chat', text)", json.dumps(saved))
        page.reload()
        answer = page.locator(".message.assistant .body").last
        self.until(page, "document.querySelectorAll('.message.assistant .katex').length >= 3")
        self.until(page, "document.querySelector('.message.assistant .hljs-keyword')?.textContent === 'def'")
        self.assertEqual(answer.locator(".formula.display .katex-display").count(), 1)
        self.assertEqual(answer.locator("a[href]").count(), 0)
        self.assertIn("costs $5 or $10, $a$, $x$.", answer.inner_text().replace("\u00a0", " "))
        self.assertEqual(answer.locator("pre code").all_text_contents(), ['def f(x): return "<b>"  # note', "plain <i>"])
        self.assertIn("KaTeX_Main", page.evaluate("[...document.fonts].filter((f) => f.status === 'loaded').map((f) => f.family).join()"))
        self.assertEqual(self.errors, [])

    def test_markdown_on_all_screens(self):
        saved = {"messages": [{"role": "user", "content": "x\ny"}, {"role": "assistant", "content": SHOW}], "settings": {}}
        for width, height, scheme in ((1100, 760, "light"), (390, 800, "dark"), (320, 600, "light")):
            page = self.open(width, height, scheme)
            page.evaluate("text => localStorage.setItem('tokamak-chat', text)", json.dumps(saved))
            page.reload()
            body = page.locator(".message.assistant .body")
            for what, count in (("strong", 1), ("code", 2), ("a", 3), ("ol > li", 2), ("ol ul li", 1), ("td", 3), ("blockquote", 1),
                                ("pre", 1), ("img", 1), ("em", 1), ("td.right", 1), ("td.center", 1), (".task input:checked", 1)):
                self.assertEqual(body.locator(what).count(), count, what)
            self.assertEqual([a.get_attribute("href") for a in body.locator("a").all()],
                             ["https://example.com/a", "https://example.com/b_c", "https://example.com/x.png"])
            self.assertIn("onerror=", body.inner_text())
            page.locator("#settings summary").click()
            box = page.locator("#input").bounding_box()
            self.assertLess(box["y"] + box["height"], height)  # the typed text stays visible
            self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), width)
            header = [page.locator(s).bounding_box() for s in ("#tab-chat", "#tab-plan", "#model", "#theme")]
            for left, right in zip(header, header[1:]):
                below = right["y"] >= left["y"] + left["height"]  # the header may need two rows
                self.assertTrue(below or left["x"] + left["width"] <= right["x"] + 0.5, (left, right))
            self.assertGreater(header[2]["width"], 50)  # of the model's name
            self.shot(page, f"{width}-{scheme}")
            self.assertNotEqual(page.title(), "broken")
            self.assertEqual(self.errors, [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
