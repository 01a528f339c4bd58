import assert from "node:assert/strict";
import { test } from "node:test";

import { fill, write } from "../../../web/js/lib/page/dom.mjs";

test("what is not there is not shown as a word or as an empty text", () => {
  const shown = [];
  const place = { replaceChildren: (...children) => shown.push(children) };
  fill(place, null, "a", undefined, "", "b");
  fill(place, null);
  assert.deepEqual(shown, [["a", "b"], []]);
});

test("a text is written when it differs, and only then", () => {
  let written = 0;
  const place = {
    text: "a",
    get textContent() {
      return this.text;
    },
    set textContent(text) {
      written += 1;
      this.text = text;
    },
  };
  write(place, "a");
  assert.equal(written, 0);
  write(place, "b");
  assert.deepEqual([place.text, written], ["b", 1]);
});
