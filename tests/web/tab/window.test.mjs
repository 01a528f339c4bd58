import assert from "node:assert/strict";
import { test } from "node:test";

import { inView, scrolledTo } from "../../../web/js/lib/tab/window.mjs";

test("of thousands of rows those in view are drawn, and some beyond", () => {
  const { first, end, above, below } = inView(2000, 36, 36_000, 400);
  assert.ok(first <= 1000 && end >= 1012 && end - first < 40, `${first} ${end}`);
  assert.equal(above + below + (end - first) * 36, 2000 * 36, "the scroll bar stays as it is");
});

test("the ends are drawn to the last row, and too short a table as it is", () => {
  assert.deepEqual(inView(3, 36, 0, 400), { first: 0, end: 3, above: 0, below: 0 });
  assert.equal(inView(2000, 36, 2000 * 36 - 400, 400).end, 2000);
  assert.deepEqual(inView(0, 36, 500, 400), { first: 0, end: 0, above: 0, below: 0 });
  const after = inView(5, 36, 70_000, 400);
  assert.ok(after.first <= 5 && after.above + after.below + (after.end - after.first) * 36 === 180);
});

test("a row is scrolled to by no more than it takes", () => {
  assert.equal(scrolledTo(5, 36, 0, 400), 0);
  assert.equal(scrolledTo(5, 36, 300, 400), 180);
  assert.equal(scrolledTo(20, 36, 0, 400, 28), 20 * 36 + 36 - 400 + 28);
});
