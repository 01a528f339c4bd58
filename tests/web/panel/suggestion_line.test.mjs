import assert from "node:assert/strict";
import { test } from "node:test";

import { textOf } from "../../../web/js/lib/panel/suggestion_line.mjs";

const why = "No step is suggested: no evaluation loss was measured.";

test("a suggested step has a star, none has only its sentence", () => {
  assert.equal(textOf(null, null), "");
  assert.equal(textOf({ best: null, why, overfitsFrom: null }, null), why);
  assert.equal(textOf({ best: 4, why: "Because.", overfitsFrom: null }, null), "★ Because.");
});

test("over-fitting and the chosen step are said too", () => {
  const text = textOf({ best: 4, why: "Because.", overfitsFrom: 4 }, 2);
  assert.match(text, /^★ Because\. After step 4 .* it over-fits\. Step 2 is the run's LoRA now\.$/);
});
