import assert from "node:assert/strict";
import { test } from "node:test";

import { halfLife, Series, smooth } from "../../../web/js/lib/run/series.mjs";

const steps = (series) => series.points.map((point) => point.step);
const values = (series) => series.points.map((point) => point.value);

test("a short run keeps every step", () => {
  const series = new Series();
  for (let step = 1; step <= 2000; step++) series.add(step, 1 / step);
  assert.equal(series.length, 2000);
  assert.deepEqual(steps(series).slice(0, 3), [1, 2, 3]);
});

test("100,000 steps are kept in at most 2,000 points, with the highest and the lowest of all", () => {
  const series = new Series();
  for (let step = 1; step <= 100_000; step++) {
    const value = step === 54_321 ? 9 : step === 777 ? -9 : Math.sin(step);
    series.add(step, value);
  }
  assert.equal(series.length, 100_000);
  assert.ok(series.points.length <= 2002, "the ends beside the extremes");
  assert.deepEqual([series.points[0].step, series.points.at(-1).step], [1, 100_000]);
  assert.ok(series.points.length > 500, "a coarse curve");
  const kept = Object.fromEntries(series.points.map((point) => [point.step, point.value]));
  assert.equal(kept[54_321], 9);
  assert.equal(kept[777], -9);
  assert.deepEqual(
    steps(series),
    steps(series).toSorted((a, b) => a - b),
  );
});

test("every part of a long run is kept equally fine", () => {
  const series = new Series();
  for (let step = 0; step < 64_000; step++) series.add(step, Math.random());
  const inQuarter = [0, 1, 2, 3].map(
    (quarter) => steps(series).filter((step) => Math.floor(step / 16_000) === quarter).length,
  );
  assert.ok(Math.max(...inQuarter) <= 1.1 * Math.min(...inQuarter), String(inQuarter));
});

test("of a step trained twice the newest value counts", () => {
  const series = new Series();
  for (const step of [1, 2, 3, 4, 5]) series.add(step, step);
  for (const step of [3, 4]) series.add(step, 10 * step);
  assert.deepEqual(steps(series), [1, 2, 3, 4, 5]);
  assert.deepEqual(values(series), [1, 2, 30, 40, 5]);
  assert.equal(series.length, 5);
});

test("a long run that goes back forgets the spikes it trains again", () => {
  const series = new Series();
  for (let step = 0; step < 8000; step++) series.add(step, step === 6001 ? 50 : 1);
  for (let step = 6000; step < 8000; step++) series.add(step, 2);
  assert.equal(Math.max(...values(series)), 2);
  const means = series.means.filter((mean) => mean.step >= 6000);
  assert.ok(means.every((mean) => mean.value === 2));
});

test("what is not a number leaves a gap", () => {
  const series = new Series();
  for (const value of [1, null, Number.NaN, undefined, "2", 3])
    series.add(series.length + 1, value);
  series.add(Number.NaN, 1);
  assert.deepEqual(values(series), [1, 3]);
});

test("the mean of a bucket is of all its steps", () => {
  const series = new Series();
  for (let step = 0; step < 4000; step++) series.add(step, step % 4 ? 1 : 9);
  assert.equal(series.means.length, 1000);
  assert.deepEqual(series.means[1], { step: 5.5, value: 3 });
});

test("smoothing of nothing is the points themselves", () => {
  const points = [
    { step: 1, value: 3 },
    { step: 2, value: 5 },
  ];
  assert.deepEqual(smooth(points, 0), points);
  assert.deepEqual(smooth([], 10), []);
});

test("a constant stays itself, from the first point on", () => {
  const points = Array.from({ length: 50 }, (_, step) => ({ step, value: 0.25 }));
  for (const point of smooth(points, 12)) assert.ok(Math.abs(point.value - 0.25) < 1e-12);
});

test("a jump is half forgotten after its half-life", () => {
  const points = Array.from({ length: 1100 }, (_, step) => ({ step, value: step < 1000 ? 1 : 0 }));
  const line = smooth(points, 50);
  assert.ok(Math.abs(line[1049].value - 0.5) < 0.01, String(line[1049].value));
});

test("smoothing looks the same however many points stand for the steps", () => {
  const all = Array.from({ length: 1000 }, (_, step) => ({ step, value: Math.exp(-step / 300) }));
  const few = all.filter((point) => point.step % 4 === 0);
  const fine = smooth(all, 80);
  const coarse = smooth(few, 80);
  for (const { step, value } of coarse) {
    if (step > 20) assert.ok(Math.abs(value - fine[step].value) < 0.01, `step ${step}`);
  }
});

test("the slider smooths nothing at its start and a quarter of the chart at its end", () => {
  assert.equal(halfLife(0, 400), 0);
  assert.equal(halfLife(1, 400), 100);
  assert.ok(halfLife(0.5, 400) < 50);
});
