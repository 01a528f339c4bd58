import assert from "node:assert/strict";
import { test } from "node:test";

import { chipOf, StageClock } from "../../../web/js/lib/run/stages.mjs";

test("every stage of the engine that takes time has a chip", () => {
  const chips = ["load", "train", "evaluate", "sample", "save"].map(chipOf);
  assert.deepEqual(chips, ["Load", "Train", "Validate", "Validate", "Save"]);
  assert.equal(chipOf("done"), null);
  assert.equal(chipOf(undefined), null);
});

test("time spent adds up over visits", () => {
  const clock = new StageClock();
  clock.enter("Train", 1000);
  clock.enter("Save", 4000);
  clock.enter("Train", 5000);
  assert.equal(clock.seconds("Train", 7000), 5);
  assert.equal(clock.seconds("Save", 7000), 1);
  clock.enter(null, 8000);
  assert.equal(clock.seconds("Train", 99_000), 6);
});

test("a stage nobody saw has no time", () => {
  const clock = new StageClock();
  clock.enter("Train", 0);
  assert.equal(clock.seconds("Load", 10), null);
});
