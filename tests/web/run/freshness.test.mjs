import assert from "node:assert/strict";
import { test } from "node:test";

import { hasEnded, isOld } from "../../../web/js/lib/run/status.mjs";

const every = [true, false].flatMap((live) => [true, false].map((isNews) => ({ live, isNews })));

test("what a summary said before, an error and nothing give way to every summary", () => {
  for (const origin of ["", "summary", "error"]) {
    for (const summary of every) assert.equal(isOld(origin, summary), true);
  }
});

test("a message of a run that goes on stays while this server trains it, and no longer", () => {
  for (const summary of every) assert.equal(isOld("progress", summary), !summary.live);
});

test("the last word on a run stays", () => {
  for (const summary of every) assert.equal(isOld("end", summary), false);
});

test("the answer to a button stays until there is news", () => {
  for (const isNews of [true, false]) assert.equal(isOld("said", { live: true, isNews }), false);
  assert.equal(isOld("said", { live: false, isNews: false }), false);
  assert.equal(isOld("said", { live: false, isNews: true }), true);
});

test("three states are ends", () => {
  for (const state of ["done", "stopped", "failed"]) assert.equal(hasEnded(state), true);
  for (const state of ["start", "running", undefined]) assert.equal(hasEnded(state), false);
});
