import assert from "node:assert/strict";
import { test } from "node:test";

import { belongs, runOfNode } from "../../../web/js/lib/run/binding.mjs";

test("a name leads to its folder and to the numbered ones, and to no other", () => {
  assert.equal(belongs("my_lora", "my_lora"), true);
  assert.equal(belongs("my_lora_002", "my_lora"), true);
  assert.equal(belongs("my_lora_1000", "my_lora"), true);
  for (const other of ["my_lora_2", "my_lora_two", "my_lora2", "my_loras", "your_lora"]) {
    assert.equal(belongs(other, "my_lora"), false, other);
  }
});

test("letters that mean something elsewhere mean nothing here", () => {
  assert.equal(belongs("aXb_002", "a.b"), false);
  assert.equal(belongs("a.b_002", "a.b"), true);
});

test("the live run is shown, else the one changed last, else none", () => {
  const runs = [
    { id: "a", updated: 9 },
    { id: "a_002", updated: 5, live: true },
    { id: "b", updated: 99 },
  ];
  assert.equal(runOfNode(runs, "a").id, "a_002");
  assert.equal(runOfNode(runs.slice(0, 1), "a").id, "a");
  assert.equal(runOfNode(runs, "c"), null);
});
