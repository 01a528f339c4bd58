import assert from "node:assert/strict";
import { test } from "node:test";

import { rows, shape } from "../../../web/js/lib/cards/clips.mjs";

const clip = (step, strength) => ({ step, strength, file: { filename: "a" }, still: null });
const labels = (facts) => rows(facts).map((row) => row.clips.map((one) => one.label));

test("every clip says its step and strength, the one without a LoRA that it is the base model's", () => {
  const clips = [clip(null, null), clip(250, 0.5), clip(250, 1)];
  assert.deepEqual(labels({ rows: [{ prompt: "a cat", clips }] }), [
    ["base model", "step 250 · strength 0.5", "step 250 · strength 1"],
  ]);
});

test("a prompt stands above its clips, with a number where there are several", () => {
  const titles = (...prompts) =>
    rows({ rows: prompts.map((prompt) => ({ prompt })) }).map(({ title }) => title);
  assert.deepEqual(titles("a cat"), ["a cat"]);
  assert.deepEqual(titles(""), [""]);
  assert.deepEqual(titles("a cat", ""), ["prompt 1: a cat", "prompt 2"]);
  const seeded = [
    ["a", 1],
    ["a", 2],
    ["b", 1],
  ].map(([prompt, seed]) => ({ prompt, seed }));
  assert.deepEqual(
    rows({ rows: seeded }).map(({ title }) => title),
    ["prompt 1, seed 1: a", "prompt 1, seed 2: a", "prompt 2, seed 1: b"],
  );
});

test("what is damaged is left out", () => {
  assert.deepEqual(rows({ rows: "many" }), []);
  assert.deepEqual(rows({ rows: [null, { prompt: 5, clips: [null, 3] }] }), [
    { title: "", clips: [] },
  ]);
  assert.deepEqual(labels({ rows: [{ clips: [clip("1", "<b>")] }] }), [["base model"]]);
});

test("the shape of a clip is known before it is read", () => {
  assert.equal(shape({ width: 832, height: 480 }), "832 / 480");
  assert.equal(shape({ width: "url(x)", height: 480 }), "16 / 9");
});
