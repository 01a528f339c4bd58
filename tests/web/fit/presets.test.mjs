import assert from "node:assert/strict";
import { test } from "node:test";

import { sentence, titleOf } from "../../../web/js/lib/fit/presets.mjs";

const VALUES = { width: 480, height: 320, num_frames: 33, steps: 400, blocks_to_swap: 20 };

test("what a preset filled is one line", () => {
  const found = { settings: VALUES, seconds: 4200, card: "RTX 4080" };
  assert.equal(
    sentence(found),
    "33 frames of 480x320, 20 blocks in RAM, 400 steps: about 1 h 10 min (predicted for RTX 4080)",
  );
  assert.match(sentence({ ...found, seconds: 5 }), /about 1 min /);
  const stills = { ...VALUES, num_frames: 1, blocks_to_swap: -1 };
  assert.equal(
    sentence({ ...found, settings: stills, card: null }),
    "Images of 480x320, 400 steps",
  );
});

test("a preset is named by the memory of its card and what it is for", () => {
  assert.deepEqual(["16 GB, quick look", "80 GB, good"].map(titleOf), [
    "16 GB, quick look",
    "80 GB, good",
  ]);
});
