import assert from "node:assert/strict";
import { test } from "node:test";

import { reasonText } from "../../../web/js/lib/panel/suggestion_line.mjs";

test("the reason of a suggestion is the run's own, and says where the run begins to over-fit", () => {
  assert.equal(reasonText(null), "");
  assert.equal(reasonText({ best: null, why: "Because.", overfitsFrom: null }), "Because.");
  const text = reasonText({ best: 4, why: "Because.", overfitsFrom: 4 });
  assert.match(text, /^Because\. After step 4 the held-out loss rose .* it over-fits\.$/);
});
