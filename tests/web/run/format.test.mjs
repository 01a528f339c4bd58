import assert from "node:assert/strict";
import { test } from "node:test";

import { ago, clock, gib, median, secondsLeft, short } from "../../../web/js/lib/run/format.mjs";

test("seconds read as a clock", () => {
  assert.equal(clock(0), "0:00");
  assert.equal(clock(7.4), "0:07");
  assert.equal(clock(725), "12:05");
  assert.equal(clock(59.7), "1:00");
  assert.equal(clock(3 * 3600 + 121), "3:02:01");
  assert.equal(clock(50 * 3600), "2 d 2 h");
});

test("an unknown number is no text, never a made up one", () => {
  for (const unknown of [null, undefined, Number.NaN, Number.POSITIVE_INFINITY, "5"]) {
    for (const format of [clock, short, gib, ago]) assert.equal(format(unknown), "");
  }
  assert.equal(clock(-3), "");
});

test("time left follows from pace and steps, and is unknown before there is a pace", () => {
  assert.equal(secondsLeft(2.5, 640, 1500), 2150);
  assert.equal(secondsLeft(2.5, 1500, 1500), 0);
  assert.equal(secondsLeft(2.5, 1600, 1500), 0);
  assert.equal(secondsLeft(2.5, 640, 1500, 60), 60);
  assert.equal(secondsLeft(2.5, 1499, 1500, 60), 2.5);
  assert.equal(secondsLeft(2.5, 1499, 1500, null, 40), 42.5, "saves and previews count");
  assert.equal(secondsLeft(null, 1, 2), null);
  assert.equal(secondsLeft(0, 1, 2), null);
  assert.equal(secondsLeft(1, undefined, 2), null);
});

test("numbers have few digits", () => {
  assert.equal(short(0.031249, 3), "0.0312");
  assert.equal(short(1e-4), "1e-4");
  assert.equal(short(1.25e-5), "1.25e-5");
  assert.equal(short(12), "12");
  assert.equal(short(0), "0");
  assert.equal(short(-0.5), "-0.5");
  assert.equal(short(123456), "1.23e5");
});

test("bytes are GiB, small ones MiB", () => {
  assert.equal(gib(9 * 2 ** 30), "9.0 GiB");
  assert.equal(gib(50 * 2 ** 20), "50 MiB");
});

test("how long ago is rough", () => {
  assert.equal(ago(20), "just now");
  assert.equal(ago(150), "2 min ago");
  assert.equal(ago(7300), "2 h ago");
  assert.equal(ago(86400 * 3), "3 d ago");
});

test("the median passes over a slow first step", () => {
  assert.equal(median([90, 2, 2.1]), 2.1);
  assert.equal(median([]), null);
});
