import assert from "node:assert/strict";
import { test } from "node:test";

import { layout } from "../../../web/js/lib/cards/density_plot.mjs";

const whole = { sampling: "shift", shift: 3, scale: 1, low: 0, high: 1 };

test("the highest bin touches the top and nothing goes above it", () => {
  const plan = layout({ draw: whole, whole }, 300, 120);
  const heights = plan.values.map(plan.up);
  assert.ok(Math.abs(Math.min(...heights) - plan.top) < 1e-9);
  assert.ok(heights.every((y) => y >= plan.top - 1e-9 && y <= plan.floor));
  assert.deepEqual(plan.ghost, []);
});

test("a place on the curve is a timestep and back", () => {
  const plan = layout({ draw: whole, whole }, 300, 120);
  for (const sigma of [0, 0.25, 1]) assert.ok(Math.abs(plan.from(plan.at(sigma)) - sigma) < 1e-12);
  assert.deepEqual([plan.ticks[0], plan.ticks.at(-1)], [0, 1000]);
});

test("an expert's draw is shown within that of the pair", () => {
  const draw = { ...whole, low: 0.875 };
  const plan = layout({ draw, whole }, 300, 120);
  assert.equal(plan.ghost.length, plan.values.length);
  assert.ok(plan.values[plan.values.length - 10] > plan.ghost[plan.ghost.length - 10]);
});

test("a needle of a peak leaves room to see the rest", () => {
  const narrow = { ...whole, sampling: "sigmoid", scale: 0.01 };
  const plan = layout({ draw: narrow, whole: narrow }, 300, 120);
  assert.ok(Math.max(...plan.values) > 12);
  assert.ok(plan.values.map(plan.up).every((y) => y >= plan.top - 1e-9));
});
