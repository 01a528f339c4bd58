import assert from "node:assert/strict";
import { test } from "node:test";

import { deviceBars, manyText } from "../../../web/js/lib/run/devices.mjs";

const GIB = 2 ** 30;
const card = (index, more = {}) => ({
  rank: 0,
  host: "alpha",
  device: `cuda:${index}`,
  name: "NVIDIA GeForce RTX 4090",
  now: (19 + index) * GIB,
  peak: 21 * GIB,
  total: 24 * GIB,
  busy: 98,
  silent: null,
  ...more,
});

test("two cards of one process have a line each, with what the plan predicted", () => {
  const memory = { "cuda:0": { peak: 22 * GIB, predicted: 23 * GIB } };
  const [first, second] = deviceBars([card(0), card(1, { busy: null })], memory, null);
  assert.equal(first.device, "cuda:0");
  assert.equal(first.text, "RTX 4090 · 19.0 GiB of 24.0 GiB · 98 % busy");
  assert.equal(first.title, "NVIDIA GeForce RTX 4090, alpha");
  assert.deepEqual([first.now, first.peak, first.predicted], [19 / 24, 22 / 24, 23 / 24]);
  assert.equal(second.text, "RTX 4090 · 20.0 GiB of 24.0 GiB");
  assert.equal(second.predicted, null);
});

test("ranks of several machines are named, the slowest and a silent one marked", () => {
  const other = card(0, { rank: 1, host: "beta", silent: 45, now: null, busy: null });
  const [first, second] = deviceBars([card(0), other], { "cuda:0": { predicted: GIB } }, 0);
  assert.equal(first.device, "rank 0 · alpha cuda:0");
  assert.equal(first.predicted, null, "the memory of all ranks together is that of none");
  assert.ok(first.text.endsWith(" · slowest"));
  assert.equal(second.device, "rank 1 · beta cuda:0");
  assert.equal(second.text, "⚠ no response for 0:45 · RTX 4090 · 21.0 GiB peak of 24.0 GiB");
});

test("more than four devices are one line", () => {
  const ranks = Array.from({ length: 32 }, (_, rank) =>
    card(0, { rank, now: (21.4 + (1.5 * rank) / 31) * GIB }),
  );
  assert.equal(manyText(ranks, 7), "32 devices, 21.4 to 22.9 of 24.0 GiB · slowest rank 7");
  ranks[3].silent = 60;
  assert.ok(manyText(ranks, null).endsWith(" · ⚠ 1 rank does not respond"));
  const first = deviceBars(ranks, undefined, 7).slice(0, 3);
  assert.deepEqual(
    first.map((bar) => bar.device),
    ["rank 3 · cuda:0", "rank 7 · cuda:0", "rank 0 · cuda:0"],
  );
  assert.equal(manyText(ranks.slice(0, 4), 1), "");
});

test("a device without figures says what is known", () => {
  const bare = { rank: null, host: "", device: "cuda:0", name: "" };
  const [bar] = deviceBars([bare], undefined, undefined);
  assert.deepEqual([bar.device, bar.text, bar.now], ["cuda:0", "", null]);
  assert.equal(manyText(Array(5).fill(bare), undefined), "5 devices");
});
