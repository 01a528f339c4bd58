import assert from "node:assert/strict";
import { test } from "node:test";

import {
  blocksText,
  coverText,
  deviceRows,
  mapText,
  planned,
  runsOf,
} from "../../../web/js/lib/cards/split.mjs";

const GIB = 2 ** 30;
const two = {
  model: "2.1 T2V-14B",
  mode: "split blocks",
  control_blocks: 0,
  devices: [
    { name: "cuda:0", title: "Card A" },
    { name: "cuda:1", title: "" },
  ],
  copies: [[...Array(20).fill(0), ...Array(20).fill(1)]],
  memory: {
    "cuda:0": { weights: 16 * GIB, total: 24 * GIB },
    "cuda:1": { weights: 12 * GIB, total: 24 * GIB },
  },
};

test("neighbouring blocks of a device are one run", () => {
  assert.deepEqual(runsOf([0, 0, 1, 0]), [
    { device: 0, from: 0, to: 1 },
    { device: 1, from: 2, to: 2 },
    { device: 0, from: 3, to: 3 },
  ]);
  assert.deepEqual(runsOf(undefined), []);
  assert.deepEqual(runsOf([5]).map(blocksText), ["0"]);
});

test("the map reads as a sentence", () => {
  assert.equal(
    mapText(two, two.copies[0]),
    "embeddings on cuda:0, head on cuda:1, blocks 0–19 on cuda:0, blocks 20–39 on cuda:1",
  );
});

test("every device says what it holds and how much of it the weights take", () => {
  assert.deepEqual(deviceRows(two), [
    {
      name: "cuda:0",
      title: "Card A",
      holds: "embeddings, blocks 0–19",
      text: "16.0 GiB weights · of 24.0 GiB",
      now: 16 / 24,
      predicted: null,
    },
    {
      name: "cuda:1",
      title: "",
      holds: "head, blocks 20–39",
      text: "12.0 GiB weights · of 24.0 GiB",
      now: 0.5,
      predicted: null,
    },
  ]);
});

test("the peak that a plan predicts is drawn, also above what the device has", () => {
  const known = { ...two, memory: { "cuda:0": two.memory["cuda:0"] } };
  const needs = ["cuda:0", "cuda:7"].map((name) => ({ name, needed: 32 * GIB, room: 0, total: 0 }));
  const predicted = planned(known, needs);
  const [row, bare] = deviceRows(predicted);
  assert.equal(row.text, "16.0 GiB weights · 32.0 GiB predicted peak · of 24.0 GiB");
  assert.deepEqual([row.now, row.predicted], [0.5, 1]);
  assert.deepEqual([bare.text, bare.now], ["", null], "nothing is made up");
  assert.deepEqual(planned(known, []), known);
  assert.notEqual(coverText(predicted), coverText(two));
});

test("copies on one device are counted, and control blocks named", () => {
  const copies = {
    ...two,
    devices: [{ name: "cpu" }],
    copies: [
      [0, 0],
      [0, 0],
    ],
    control_blocks: 2,
  };
  assert.equal(
    deviceRows(copies)[0].holds,
    "embeddings, head, 2 control blocks, blocks 0–1, 2 copies",
  );
  const each = {
    ...two,
    copies: [
      [0, 0],
      [1, 1],
    ],
  };
  assert.deepEqual(
    deviceRows(each).map((row) => row.holds),
    ["embeddings, head, blocks 0–1", "embeddings, head, blocks 0–1"],
  );
});

test("facts of another kind are shown as nothing, and throw nothing", () => {
  for (const odd of [{}, { devices: 3, copies: "x", memory: null }, { devices: [null] }]) {
    assert.ok(Array.isArray(deviceRows(odd)));
    assert.equal(typeof mapText(odd, odd.copies), "string");
    assert.equal(typeof coverText(odd), "string");
  }
});
