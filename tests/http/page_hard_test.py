"""The chat page when things go wrong: a server that dies, hostile texts, full storage, very much of everything, no pointer."""
import json
import unittest

from browser import NEEDS_BROWSER, Browser
from harness import Server


@NEEDS_BROWSER
class Hard(Browser):
    def test_the_server_dies_during_an_answer(self):
        """What had arrived is kept and said to be incomplete; the page finds the new server by itself."""
        server = Server()
        port = server.port
        page = self.open()
        page.goto(f"http://127.0.0.1:{port}/")
        self.until(page, "document.getElementById('model').value === 'fake'")
        self.ask(page, "[slow 20] go on")
        page.wait_for_selector(".message.assistant:nth-child(2) p")
        server.process.kill()
        server.process.wait()
        for stream in (server.process.stdout, server.process.stderr):
            stream.close()
        page.wait_for_selector("#offline:visible")
        part = self.texts(page)[-1]
        self.assertGreater(len(part), 3)
        self.assertIn("cannot be reached", page.locator(".message.assistant .error").inner_text())
        server = Server(port=port)
        try:
            page.wait_for_selector("#offline", state="hidden")
            page.reload()
            page.wait_for_selector(".message.assistant")
            self.assertEqual(self.texts(page)[-1].split()[0], part.split()[0])
            self.ask(page, "[say well]")
            self.until(page, "[...document.querySelectorAll('.message .body')].at(-1).textContent === 'well'")
        finally:
            page.close()
            server.stop()

    def answers(self, page, *events):
        """The server sends these events instead of an answer."""
        body = "".join(f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n" for event in events)
        page.route("**/v1/chat/completions", lambda route: route.fulfill(content_type="text/event-stream", body=body))

    def test_an_answer_without_an_end_is_not_taken_for_whole(self):
        page = self.open()
        part = {"choices": [{"index": 0, "delta": {"content": "half an"}, "finish_reason": None}]}
        self.answers(page, part)
        self.ask(page, "x")
        self.wait(page)
        self.assertIn("before the answer was complete", page.locator(".message.assistant .error").inner_text())
        self.answers(page, part, {"error": {"message": "The engine broke."}}, "[DONE]")
        self.ask(page, "y")
        self.wait(page)
        self.assertIn("The engine broke.", page.locator(".message.assistant .error").last.inner_text())
        self.answers(page, part, {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}, "[DONE]")
        self.ask(page, "z")
        self.wait(page)
        self.assertEqual(self.texts(page)[-1], "half an")

    def test_calls_are_folded_and_messages_copied(self):
        page = self.open()
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        call = {"index": 0, "id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
        delta = {"reasoning_content": "hm", "content": "an **answer**", "tool_calls": [call]}
        self.answers(page, {"choices": [{"index": 0, "delta": delta, "finish_reason": "tool_calls"}]}, "[DONE]")
        self.ask(page, "x")
        self.wait(page)
        boxes = page.locator(".message.assistant details")
        self.assertEqual(boxes.locator("summary").all_inner_texts(), ["Thoughts", "Calls add"])
        self.assertEqual([boxes.nth(i).get_attribute("open") for i in range(2)], [None, None])
        boxes.nth(1).locator("summary").click()
        self.assertEqual(boxes.nth(1).locator("code").inner_text(), '{\n  "a": 1\n}')
        page.get_by_label("Copy this message").last.click(force=True)
        self.until(page, "navigator.clipboard.readText().then((text) => text === 'an **answer**')")
        self.assertEqual(self.errors, [])

    def test_live_numbers_have_a_history(self):
        page = self.open()
        page.locator("#tab-server").click()
        titles = " | ".join(page.locator("#panel-server figcaption").all_inner_texts())
        for part in ("Requests", "Sequences per step", "KV cache used", "Time to first token", "Time between tokens"):
            self.assertIn(part, titles)
        line = "document.querySelector('#panel-server figure path').getAttribute('d')"
        self.until(page, f"({line} ?? '').length > 0")
        before = page.evaluate(line)
        self.until(page, f"{line} !== {json.dumps(before)}")  # it grows by itself
        self.assertIn("in use", page.locator("#panel-server .facts").inner_text())
        policy = page.request.get(self.url).headers["content-security-policy"]
        self.assertTrue(policy.startswith("default-src 'none'"))
        self.assertNotIn("unsafe", policy)
        self.assertEqual(self.errors, [])

    HOSTILE = ["<script>hacked=1</script>", "<img src=x onerror=hacked=1>", "<svg onload=hacked=1>", "<iframe srcdoc='<script>parent.hacked=1</script>'></iframe>", "[a](javascript:hacked=1)",
               "[a](JaVaScRiPt&colon;hacked=1)", "[a](java\tscript:hacked=1)", "[a](\x01javascript:hacked=1)", "[a](data:text/html,<script>hacked=1</script>)", "[a](vbscript:x)", "[a](//evil.example/x)",
               "![a](javascript:hacked=1)", "![a](data:text/html,<script>hacked=1</script>)", "![a](data:image/svg+xml,<svg onload=hacked=1>)", "![a](https://evil.example/track.png)", "<a href=javascript:hacked=1>x</a>",
               "[a]: javascript:hacked=1\n\n[a]", "`<img src=x onerror=hacked=1>`", "```html\n<script>hacked=1</script>\n```", "```\"><img src=x onerror=hacked=1>\nx\n```", "| <img src=x onerror=hacked=1> |\n|---|\n| [x](javascript:hacked=1) |",
               "$\\href{javascript:hacked=1}{x}$", "$\\html{<img src=x onerror=hacked=1>}$", "$$\n\\includegraphics{https://evil.example/x.png}\n$$", "$\\url{javascript:hacked=1}$", "> <style>body{display:none}</style>",
               "<form action=https://evil.example><input name=a></form>", "<base href=https://evil.example/>", "<meta http-equiv=refresh content='0;url=https://evil.example'>", "\u202e\u2066x\u2069 https://evil.example/\"onmouseover=hacked=1"]

    def test_hostile_text_stays_text(self):
        """In answers, thoughts, calls, questions, titles, names of files, imported conversations and the model's name."""
        page = self.open()
        text = "\n\n".join(self.HOSTILE)
        events = [{"choices": [{"index": 0, "delta": {"reasoning_content": text, "content": text, "tool_calls": [{"index": 0, "function": {"name": text[:99], "arguments": text}}]}, "finish_reason": "stop"}]}]
        self.answers(page, *events)
        self.ask(page, text)
        self.wait(page)
        for line in self.HOSTILE:
            page.locator("#clear").click()
            self.ask(page, line)
            self.wait(page)
        nodes = [{"id": "a\"]<img src=x onerror=hacked=1>", "parent": None, "role": "user", "content": text, "files": [{"name": text[:50], "text": text}]},
                 {"id": "b", "parent": "a\"]<img src=x onerror=hacked=1>", "role": "assistant", "content": text, "thoughts": text, "error": text, "calls": [{"name": text, "arguments": text}], "stats": {"tokens": text}},
                 {"id": "c", "parent": "b", "role": text, "content": text}, {"id": "d", "parent": "b", "role": "user", "content": "last", "files": [{}], "calls": [None], "thoughts": {}, "error": []}]
        page.evaluate("saved => localStorage.setItem('tokamak-chat:hostile', saved)", json.dumps({"title": text, "revision": "1", "updated": 9e15, "nodes": nodes, "leaf": "d"}))
        page.evaluate("sessionStorage.clear()")
        page.route("**/v1/models", lambda route: route.fulfill(json={"data": [{"id": text[:80]}]}))
        page.reload()
        page.wait_for_selector(".message")
        self.assertEqual((page.locator(".message").count(), self.texts(page)[-1]), (3, "last"))
        for tab in ("server", "plan", "chat"):
            page.locator(f"#tab-{tab}").click()
        page.wait_for_timeout(200)
        self.assertEqual(page.evaluate("typeof hacked"), "undefined")
        self.assertEqual(page.locator("script:not([src]), iframe, object, embed, base, meta[http-equiv], #log form, #log style").count(), 0)
        self.assertEqual(page.evaluate("[...document.querySelectorAll('*')].filter((e) => [...e.attributes].some((a) => a.name.startsWith('on'))).length"), 0)
        for link in page.locator("#log a[href]").all():
            self.assertRegex(link.get_attribute("href"), "^https?://")
            self.assertIn("noopener", link.get_attribute("rel") or "")
        for image in page.locator("#log img").all():
            self.assertRegex(image.get_attribute("src"), "^data:image/(png|jpeg|gif|webp)")
        self.assertEqual([e for e in self.errors if "evil" in e or "Content Security" in e], [])
        policy = self.server.request("GET", "/")[1]["content-security-policy"]
        self.assertNotIn("unsafe", policy.replace("style-src 'self' 'unsafe-inline'", ""))

    def test_hundreds_of_conversations_and_a_very_long_message(self):
        page = self.open()
        page.evaluate("""() => { for (let i = 0; i < 200; i++) localStorage.setItem(`tokamak-chat:c${i}`, JSON.stringify({revision: 'r', updated: 1e12 + i, leaf: 'b',
            nodes: [{id: 'a', parent: null, role: 'user', content: `Question number ${i} on q${i}x`}, {id: 'b', parent: 'a', role: 'assistant', content: 'An answer. '.repeat(300)}]})); }""")
        page.evaluate("sessionStorage.clear()")
        page.reload()
        page.wait_for_selector("#chat-list li:nth-child(200)")
        self.assertEqual(page.locator("#chat-list li button").first.inner_text(), "Question number 199 on q199x")
        page.locator("#search").fill("question q42x")
        self.assertEqual(page.locator("#chat-list li").count(), 1)
        page.locator("#search").press("Tab")
        page.keyboard.press("Enter")
        self.assertEqual(self.texts(page)[0], "Question number 42 on q42x")
        page.locator("#search").fill("")
        line = "word " * 40 + "`code` and **more**\n\n"
        long = line * 700 + "x" * 60000 + "\n\n```\n" + "y = 1\n" * 4000 + "```\n"
        self.assertGreater(len(long), 200000)
        self.answers(page, *({"choices": [{"index": 0, "delta": {"content": long[i:i + 20000]}, "finish_reason": None}]} for i in range(0, len(long), 20000)),
                     {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}, "[DONE]")
        self.ask(page, "z" * 30000)
        self.wait(page)
        self.assertEqual(len(self.texts(page)[-2]), 30000)
        self.ask(page, "z" * 250000)
        self.wait(page)
        self.assertIn("z…\n(150,000 more characters", self.texts(page)[-2])
        page.get_by_label("Edit this message").last.click(force=True)
        self.assertEqual(len(page.locator("#input").input_value()), 250000)
        page.keyboard.press("Escape")
        self.assertEqual(page.locator(".message.assistant strong").count(), 1400)
        self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), 1100)
        self.assertEqual(self.errors, [])

    def test_a_full_storage_loses_nothing(self):
        """What the browser cannot store stays on the page, and is stored once there is room: not twice."""
        page = self.open()
        self.ask(page, "[say one]")
        self.wait(page)
        page.evaluate("() => { window.put = Storage.prototype.setItem; Storage.prototype.setItem = () => { throw new DOMException('full', 'QuotaExceededError'); }; }")
        self.ask(page, "[say two]")
        self.wait(page)
        self.assertIn("cannot save", page.locator("#status").inner_text())
        self.assertEqual(self.texts(page)[1::2], ["one", "two"])
        page.evaluate("() => { Storage.prototype.setItem = window.put; }")
        self.ask(page, "[say three]")
        self.wait(page)
        page.reload()
        page.wait_for_selector(".message:nth-child(6)")
        self.assertEqual((self.texts(page)[1::2], page.locator("#chat-list li").count()), (["one", "two", "three"], 1))

    def test_a_browser_that_keeps_no_data(self):
        """Where site data is blocked every access to the storage throws."""
        page = self.open()
        page.add_init_script("for (const name of ['localStorage', 'sessionStorage']) Object.defineProperty(window, name, {get() { throw new DOMException('denied', 'SecurityError'); }});")
        page.reload()
        self.until(page, "document.getElementById('model').value === 'fake'")
        self.assertIn("conversations end with the tab", page.locator("#status").inner_text())
        for text in "one", "two":
            self.ask(page, f"[say {text}]")
            self.wait(page)
        self.assertEqual((self.texts(page)[1::2], page.locator("#chat-list li").count()), (["one", "two"], 1))
        with page.expect_download() as download:
            page.locator("#export").click()
        self.assertIn("[say two]", download.value.path().read_text())
        self.assertEqual(self.errors, [])

    def test_a_missing_key_is_told_where_it_belongs(self):
        page = self.open()
        page.route("**/v1/chat/completions", lambda route: route.fulfill(status=401, json={"error": {"message": "x", "code": "invalid_api_key"}}))
        self.ask(page, "y")
        self.wait(page)
        self.assertIn("see Settings", page.locator(".message.assistant .error").inner_text())

    def test_everything_by_keyboard(self):
        """A question, its edit, another answer, the branch before, a copy and a deletion without a pointer."""
        page = self.open()

        def go_to(name, key="Tab"):
            for _ in range(80):
                page.keyboard.press(key)
                label = page.evaluate("document.activeElement.ariaLabel ?? document.activeElement.textContent")
                if name in label:
                    box = page.evaluate("(() => { const e = document.activeElement, r = e.getBoundingClientRect(); return [r.width, r.height, Number(getComputedStyle(e).opacity), getComputedStyle(e).outlineStyle]; })()")
                    self.assertTrue(box[0] > 0 and box[1] > 0 and box[2] > 0.3, (name, box))  # what has the focus is visible
                    return page.keyboard.press("Enter")
            self.fail(f"{name} cannot be reached")

        page.locator("#input").focus()
        page.keyboard.type("[say one]")
        page.keyboard.press("Enter")
        self.until(page, "[...document.querySelectorAll('.message .body')].at(-1)?.textContent === 'one'")
        go_to("Edit this message", "Shift+Tab")
        self.assertEqual(page.evaluate("document.activeElement.id"), "input")
        page.keyboard.press("Control+a")
        page.keyboard.type("[say two]")
        page.keyboard.press("Enter")
        self.until(page, "[...document.querySelectorAll('.message .body')].at(-1)?.textContent === 'two'")
        go_to("Previous version", "Shift+Tab")
        self.until(page, "[...document.querySelectorAll('.message .body')].at(-1)?.textContent === 'one'")
        page.locator("#input").focus()
        page.keyboard.press("Control+k")
        page.keyboard.type("one")
        go_to("Delete")
        self.assertEqual(page.locator(".message").count(), 0)
        go_to("Undo")
        self.until(page, "document.querySelectorAll('.message').length === 2")
        self.assertEqual(self.errors, [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
