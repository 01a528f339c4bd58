import assert from "node:assert/strict";
import { test } from "node:test";

import { hasEnded, isOld } from "../../../web/js/lib/run/freshness.mjs";

const elsewhere = { live: false, state: "running" };
const live = { live: true, state: "running" };
const ended = ["done", "stopped", "failed"].map((state) => ({ live: false, state }));

test("what a summary said before, an error and nothing give way to every summary", () => {
  for (const origin of ["", "summary", "error"]) {
    for (const summary of [elsewhere, live, ...ended]) assert.equal(isOld(origin, summary), true);
  }
});

test("a line of progress stays while the run goes on, here or elsewhere, and no longer", () => {
  assert.equal(isOld("progress", live), false);
  assert.equal(isOld("progress", { live: true, state: "stopped" }), false, "it is resumed");
  assert.equal(isOld("progress", elsewhere), false);
  for (const summary of [...ended, {}]) assert.equal(isOld("progress", summary), true);
});

test("the last word on a run stays", () => {
  for (const summary of [elsewhere, live, ...ended]) assert.equal(isOld("end", summary), false);
});

test("three states are ends", () => {
  for (const { state } of ended) assert.equal(hasEnded(state), true);
  for (const state of ["start", "running", undefined]) assert.equal(hasEnded(state), false);
});
