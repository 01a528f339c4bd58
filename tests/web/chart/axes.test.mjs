import assert from "node:assert/strict";
import { test } from "node:test";

import { range, scale, ticks } from "../../../web/js/lib/chart/axes.mjs";

test("a range shows every value with a little air", () => {
  const { low, high } = range([2, 1, 3, Number.NaN], false);
  assert.ok(low < 1 && low > 0.8);
  assert.ok(high > 3 && high < 3.2);
});

test("without a value to show there is no range", () => {
  assert.equal(range([], false), null);
  assert.equal(range([Number.NaN, Number.POSITIVE_INFINITY], false), null);
  assert.equal(range([0, -1], true), null);
});

test("one single value has a range around it", () => {
  for (const log of [false, true]) {
    const { low, high } = range([0.5], log);
    assert.ok(low < 0.5 && high > 0.5);
  }
  const zero = range([0], false);
  assert.ok(zero.low < 0 && zero.high > 0);
});

test("linear ticks are round and inside", () => {
  assert.deepEqual(ticks({ low: 0, high: 100, log: false }, 5), [0, 20, 40, 60, 80, 100]);
  assert.deepEqual(ticks({ low: 0.11, high: 0.32, log: false }, 4), [0.15, 0.2, 0.25, 0.3]);
  assert.deepEqual(ticks({ low: 5, high: 5, log: false }, 4), [5]);
});

test("log ticks are powers of ten, with 2 and 5 when there are few", () => {
  assert.deepEqual(ticks({ low: 1e-6, high: 1, log: true }, 3), [1e-6, 1e-4, 1e-2, 1]);
  assert.deepEqual(ticks({ low: 0.09, high: 1.1, log: true }, 6), [0.1, 0.2, 0.5, 1]);
});

test("a log axis within one decade still has ticks", () => {
  const found = ticks({ low: 0.31, high: 0.42, log: true }, 4);
  assert.ok(found.length >= 2, String(found));
  assert.ok(found.every((tick) => tick >= 0.3 && tick <= 0.43));
});

test("a linear scale puts values where they belong, and back", () => {
  const { at, from } = scale({ low: 0, high: 10, log: false }, 100, 0);
  assert.equal(at(0), 100);
  assert.equal(at(10), 0);
  assert.equal(at(2.5), 75);
  assert.equal(from(at(7)), 7);
});

test("a log scale gives every decade the same room", () => {
  const { at, from } = scale({ low: 0.01, high: 1, log: true }, 0, 200);
  assert.ok(Math.abs(at(0.1) - 100) < 1e-9);
  assert.ok(Math.abs(from(100) - 0.1) < 1e-12);
});
