"""The tabs of the page that show the server and the compiler, in headless Chromium at desktop and phone width."""
import re
import unittest

from browser import NEEDS_BROWSER, Browser

KERNELS = [{"name": f"layer.*.{op}", "kernel": op, "calls": 4, "bound_us": 10.0 * (i + 1), "overhead_us": 1.0, "bytes": 1000 * i + 1, "flops": 5000,
            "bound": "memory" if i % 2 else "compute", "ops": [], "why": "the only one"} for i, op in enumerate(("matmul", "attention", "norm"))]
NODES = [{"op": "input", "name": "x", "type": "f32[T, 64]"}, {"op": "norm", "name": "a", "type": "f32[T, 64]", "from": [0]},
         {"op": "matmul", "name": "q", "type": "f32[T, 64]", "from": [1], "weights": ["wq"], "why": "fast"}, {"op": "matmul", "name": "k", "type": "f32[T, 64]", "from": [1], "weights": ["wk"]},
         {"op": "attention", "name": "o", "type": "f32[T, 64]", "from": [2, 3, "kv cache"]}, {"op": "add", "name": "sum", "type": "f32[T, 64]", "from": [0, 4]}]
PLAN = {"model": "tiny", "backend": "cpu", "isa": "x", "shape": {"T": 1}, "totals": {"calls": 12, "kinds": 3, "bytes": 5, "bound_us": 80.0, "overhead_us": 4.0}, "kernels": KERNELS,
        "calls": [{"name": f"layer.{i // 3}.{KERNELS[i % 3]['kernel']}", "kernel": i % 3, "layer": i // 3} for i in range(12)],
        "graphs": [{"stage": "import", "function": "decode", "nodes": 6, "segments": [{"title": "whole", "count": 1, "nodes": NODES}]},
                   {"stage": "fuse", "function": "decode", "nodes": 26, "segments": [{"title": "head", "count": 1, "nodes": NODES[:2]}, {"title": "layers 0-3", "count": 4, "nodes": NODES}]}]}


@NEEDS_BROWSER
class Explorer(Browser):
    def test_the_tree_of_prefixes(self):
        for width, scheme in ((1100, "light"), (390, "dark")):
            page = self.open(width=width, scheme=scheme)
            page.locator("#tab-server").click()
            page.wait_for_selector(".prefixes [role=treeitem]")
            items = page.locator(".prefixes [role=treeitem]")
            self.assertEqual([items.nth(i).get_attribute("aria-level") for i in range(4)], ["1", "2", "2", "1"])
            self.assertEqual(page.locator(".prefixes i").evaluate_all("(bars) => bars.map((b) => b.className)"), ["used", "used", "computing", "cached"])
            boxes = [page.locator(".prefixes i").nth(i).bounding_box() for i in range(3)]
            self.assertAlmostEqual(boxes[1]["x"], boxes[0]["x"] + boxes[0]["width"], delta=2)  # a bar begins where its parent ends
            self.assertIn("7 answers ended", items.nth(3).inner_text())
            items.first.focus()
            for key in ("ArrowDown", "End", "ArrowUp"):
                page.keyboard.press(key)
            self.assertIn("being computed", page.evaluate("document.activeElement.ariaLabel"))
            self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), width)
            page.locator(".prefixes").scroll_into_view_if_needed()
            self.shot(page, f"tree-{width}")
            self.assertEqual(self.errors, [])

    def test_the_explorer_is_searched_and_zoomed(self):
        for width, scheme in ((1100, "light"), (390, "dark")):
            page = self.open(width=width, scheme=scheme)
            page.route("**/plan/**", lambda route: route.fulfill(json=PLAN))
            page.locator("#tab-plan").click()
            page.wait_for_selector(".graph g[role=button]")
            ops = page.locator(".graph g[role=button]")
            self.assertEqual(ops.count(), 7)  # the repeated layer, with the cache that is outside of it
            self.assertEqual(page.get_by_label("Part of the graph").locator("option:checked").inner_text(), "layers 0-3, 4 times (6 ops)")
            inside = page.locator(".graph").bounding_box()
            for i in range(7):
                box = ops.nth(i).bounding_box()
                self.assertTrue(inside["x"] <= box["x"] and box["x"] + box["width"] <= inside["x"] + inside["width"], i)
            scale = lambda: float(re.search(r"scale\(([^)]+)", page.locator(".graph > g").get_attribute("transform")).group(1))
            fitted = scale()
            page.get_by_label("Zoom in: layers 0-3").click()
            self.assertGreater(scale(), fitted)
            page.locator(".graph").focus()
            page.keyboard.press("0")
            self.assertEqual(scale(), fitted)
            page.get_by_label("Find an op in the graph").fill("matmul")
            self.assertEqual((page.locator(".graph .found").count(), page.locator(".drawing .scale").first.inner_text()), (2, "1 of 2"))
            page.keyboard.press("Enter")
            self.assertEqual(page.locator(".drawing .scale").first.inner_text(), "2 of 2")
            self.assertIn("weights wk", page.locator(".drawing .note").first.inner_text())
            page.keyboard.press("Enter")
            self.assertIn("fast", page.locator(".drawing .note").first.inner_text())
            self.shot(page, f"graph-{width}")
            self.assertEqual(page.locator(".timeline rect").count(), 12)
            first = page.locator(".timeline rect").first
            before = first.bounding_box()["width"]
            page.get_by_label("Zoom in: timeline").click()
            self.assertAlmostEqual(first.bounding_box()["width"] / before, 1.4, delta=0.1)
            page.locator(".timeline").scroll_into_view_if_needed()
            self.shot(page, f"timeline-{width}")
            self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), width)
            nameless = [line for line in page.locator("#panel-plan").aria_snapshot().splitlines() if re.match(r"\s*- (button|combobox|searchbox|img)(:| *$)", line)]
            self.assertEqual(nameless, [])
            self.assertEqual(self.errors, [])

    def test_roofline_memory_and_why(self):
        more = {"memory": {"peak": 4096, "lower_bound": 2048, "weights": 1 << 20, "values": [{"name": "a", "bytes": 2048, "offset": 0, "first": 0, "last": 3},
                                                                                       {"name": "b", "bytes": 1024, "offset": 2048, "first": 2, "last": 11}]},
                "not_fused": [{"producer": "matmul", "consumer": "norm", "count": 4, "reason": "two readers", "detail": "x", "saving_us": 2.0}],
                "passes": [{"function": "decode", "name": "fuse", "what": "groups nodes", "class": "exact", "ms": 1.5, "nodes_before": 40, "nodes_after": 26}]}
        for width in (1100, 390):
            page = self.open(width=width)
            page.route("**/plan/**", lambda route: route.fulfill(json={**PLAN, **more}))
            page.locator("#tab-plan").click()
            part = lambda title: page.locator("#panel-plan section", has=page.get_by_role("heading", name=title, exact=True))
            part("Roofline").wait_for()
            self.assertEqual(part("Roofline").locator("circle").count(), 3)
            self.assertIn("layer.*.norm: compute bound", part("Roofline").locator("circle title").last.text_content())
            boxes = [part("Memory").locator("rect").nth(i).bounding_box() for i in range(2)]
            self.assertAlmostEqual(boxes[1]["y"] + boxes[1]["height"], boxes[0]["y"], delta=1)  # b lies above a
            self.assertGreater(boxes[1]["width"], 2 * boxes[0]["width"])
            self.assertIn("the only one", part("Kernels").inner_text())
            self.assertIn("two readers", part("Not fused").inner_text())
            part("Kernels").get_by_label("Filter Kernels").fill("attention")
            self.assertIn("1 of 3", part("Kernels").inner_text())
            self.assertIn("40 → 26", part("Passes").inner_text())
            self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), width)
            self.assertEqual(self.errors, [])

    def test_one_lane_for_each_thread(self):
        for width, scheme in ((1100, "light"), (390, "dark")):
            page = self.open(width=width, scheme=scheme)
            page.route("**/plan/**", lambda route: route.fulfill(json=PLAN))
            page.locator("#tab-plan").click()
            page.get_by_role("button", name="Measure one step").click()
            page.wait_for_selector(".timeline >> nth=1")
            lanes = page.locator(".timeline").nth(1)
            self.assertEqual(lanes.locator(".row-name").all_text_contents(), ["thread 0: 90.0 % busy", "thread 1: 40.0 % busy"])
            bars = lanes.locator("rect")
            self.assertEqual([bars.nth(i).locator("title").text_content() for i in range(5)],
                             ["layer.0.matmul: 29.0 µs", "layer.0.attention: 18.0 µs", "head: 43.0 µs", "layer.0.matmul: 18.0 µs", "layer.0.attention: 22.0 µs"])
            first, second = bars.nth(0).bounding_box(), bars.nth(3).bounding_box()
            self.assertGreater(second["y"], first["y"] + first["height"])
            self.assertEqual([bars.nth(i).get_attribute("class") for i in range(2)], ["compute", "memory"])  # the colours of the plan
            self.assertIn("threads computed 65.0 % of it", page.locator("#panel-plan").inner_text())
            lanes.focus()
            page.keyboard.press("+")
            self.assertAlmostEqual(bars.nth(0).bounding_box()["width"] / first["width"], 1.4, delta=0.1)
            lanes.scroll_into_view_if_needed()
            self.shot(page, f"threads-{width}")
            page.locator("details:has-text('Slowest thread') summary").click()
            row = page.locator("table:has-text('Slowest thread') tbody tr").nth(2)
            self.assertEqual(row.locator("td").all_inner_texts(), ["2", "head", "matmul", "55.0 µs", "43.0 µs", "21.5 µs", "2.5 µs"])
            self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), width)
            page.route("**/timeline/**", lambda route: route.fulfill(status=404, json={"error": {"message": "This backend does not measure its threads."}}))
            page.get_by_role("button", name="Measure one step").click()
            self.until(page, "document.getElementById('panel-plan').textContent.includes('does not measure its threads')")
            self.assertEqual([e for e in self.errors if "404" not in e], [])


if __name__ == "__main__":
    unittest.main()
