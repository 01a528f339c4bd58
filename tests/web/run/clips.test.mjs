import assert from "node:assert/strict";
import { test } from "node:test";

import {
  caption,
  channels,
  lastWithClip,
  position,
  stops,
} from "../../../web/js/lib/run/clips.mjs";

const A = "validate-aaaaaaaaaaaa";
const B = "validate-bbbbbbbbbbbb";
const clip = (step, more = {}) => ({
  id: `${step}`,
  step,
  prompt: 0,
  strength: null,
  rendering: "",
  ...more,
});

test("the slider stops at every saved step and every clip", () => {
  const samples = [
    clip(20),
    clip(0),
    clip(20, { prompt: 1 }),
    clip(30, { rendering: A, strength: 1 }),
  ];
  const saves = [
    { step: 10, eval_loss: null },
    { step: 20, eval_loss: 0.125 },
    { step: 30, eval_loss: null },
  ];
  const found = stops(samples, saves);
  assert.deepEqual(
    found.map((stop) => [stop.step, [...stop.clips.keys()]]),
    [
      [0, ["0"]],
      [10, []],
      [20, ["0", "1"]],
      [30, [`${A}/0/1`]],
    ],
  );
  assert.deepEqual(
    found.map((stop) => caption(stop, "0")),
    ["before training", "step 10 · no preview", "step 20 · eval 0.125", "step 30 · no preview"],
  );
  assert.equal(
    caption(found[2], "0", 20, "mean of both experts"),
    "★ step 20 · eval 0.125 (mean of both experts)",
  );
  assert.equal(caption(found[3], `${A}/0/1`), "step 30");
  assert.equal(caption(found[0], `${A}/0`), "base model");
});

test("a preview between saves says that nothing was saved", () => {
  assert.equal(caption(stops([clip(5)], [])[0], "0"), "step 5 · not saved");
});

test("previews can be chosen by prompt, renderings also by strength, each beside its own base model", () => {
  const samples = [
    clip(0, { rendering: B }),
    clip(9, { rendering: B, strength: 0.5 }),
    clip(0, { prompt: 1 }),
    clip(0),
    clip(9),
    clip(9, { prompt: 1 }),
    clip(0, { rendering: A }),
    clip(9, { rendering: A, strength: 0.5 }),
    clip(9, { rendering: A, strength: 1 }),
    clip(18, { rendering: A, strength: 1 }),
    clip(0, { rendering: A, seed: "7" }),
    clip(18, { rendering: A, strength: 1, seed: "7" }),
  ];
  assert.deepEqual(
    channels(samples).map(({ key, base, title }) => [key, base, title]),
    [
      ["1", "1", "prompt 2"],
      ["0", "0", "prompt 1"],
      [`${B}/0/0.5`, `${B}/0`, "validation 1 · prompt 1 · strength 0.5"],
      [`${A}/0/0.5`, `${A}/0`, "validation 2 · prompt 1 · strength 0.5"],
      [`${A}/0/1`, `${A}/0`, "validation 2 · prompt 1 · strength 1"],
      [`${A}/0,7/1`, `${A}/0,7`, "validation 2 · prompt 1 · seed 7 · strength 1"],
    ],
  );
});

test("a prompt with a nickname is chosen by it", () => {
  const samples = [clip(0, { name: "red-ball" }), clip(9, { name: "red-ball" })];
  assert.deepEqual(
    channels(samples).map(({ title }) => title),
    ["prompt 1: red-ball"],
  );
});

test("answers of earlier servers, which say less of a sample, are previews of one prompt", () => {
  assert.deepEqual(
    channels([
      { id: "a", step: 0 },
      { id: "b", step: 4 },
    ]).map(({ key }) => key),
    ["0"],
  );
});

test("the newest clip is shown, also while a newer step is saved and not yet rendered", () => {
  const saves = [10, 20].map((step) => ({ step }));
  const before = stops([clip(10)], saves);
  assert.equal(lastWithClip(before, "0"), 0);
  assert.equal(position(before, "0", undefined), 0);
  assert.equal(position(stops([clip(10), clip(20)], saves), "0", undefined), 1);
  assert.equal(position(stops([], saves), "0", undefined), 1);
  assert.equal(position([], "0", undefined), 0);
});

test("a step that was chosen stays chosen as long as it is there", () => {
  const all = stops([clip(10), clip(20), clip(30)], []);
  assert.equal(position(all, "0", 20), 1);
  assert.equal(position(all, "0", 25), 2);
});
