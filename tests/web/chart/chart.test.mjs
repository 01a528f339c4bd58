import assert from "node:assert/strict";
import { test } from "node:test";

import { color, draw, layout, reading } from "../../../web/js/lib/chart/chart.mjs";
import { Series } from "../../../web/js/lib/run/series.mjs";

const THEME = { text: "#fff", grid: "#444", ground: "#000", marker: "#aaa" };

function series(values) {
  const made = new Series();
  values.forEach((value, index) => {
    made.add(index + 1, value);
  });
  return made;
}

const view = (values, facts = {}) => ({
  curves: [{ name: "", color: "#123456", loss: series(values) }],
  log: false,
  smoothing: 0,
  ...facts,
});

/** A canvas context that counts what is called. */
function pen() {
  const calls = {};
  const known = {};
  const context = new Proxy(known, {
    get: (_, name) =>
      name in known
        ? known[name]
        : (...args) => {
            calls[name] = [...(calls[name] ?? []), args];
          },
  });
  return { calls, context };
}

test("an empty run has no chart", () => {
  const { calls, context } = pen();
  assert.equal(draw(context, view([]), 400, 200, THEME), null);
  assert.deepEqual(Object.keys(calls), ["clearRect"]);
});

test("every kept point is one dot inside the plot", () => {
  const { calls, context } = pen();
  draw(context, view(Array.from({ length: 500 }, () => Math.random())), 400, 200, THEME);
  assert.equal(calls.fillRect.length, 500);
  for (const [x, y] of calls.fillRect) assert.ok(x >= 40 && x <= 400 && y >= 0 && y <= 185);
});

test("steps that were left out behind the last loss have places of their own", () => {
  const plan = layout(view([0.5, 0.4], { skipped: [{ step: 3 }, { step: 40 }] }), 400, 200);
  assert.ok(plan.x.at(40) <= 400);
  assert.ok(plan.x.at(40) - plan.x.at(3) > 200);
});

test("a single point is drawn too", () => {
  const { calls, context } = pen();
  draw(context, view([0.5]), 400, 200, THEME);
  assert.equal(calls.fillRect.length, 1);
  assert.ok(calls.fillRect[0].every(Number.isFinite));
});

test("on a log axis what is not above zero has no place", () => {
  const { calls, context } = pen();
  draw(context, view([1, 0, -1, 0.1], { log: true }), 400, 200, THEME);
  assert.equal(calls.fillRect.length, 2);
  assert.ok(calls.fillRect.flat().every(Number.isFinite));
});

test("a histogram has a bar for each part of the noise levels", () => {
  const bare = pen();
  draw(bare.context, view([1, 2]), 400, 300, THEME);
  const { calls, context } = pen();
  draw(context, view([1, 2], { timesteps: [1, 0, 3, 2] }), 400, 300, THEME);
  assert.equal(calls.fillRect.length - bare.calls.fillRect.length, 4);
  assert.ok(calls.fillText.some(([text]) => text === "timestep"));
});

test("the axis looks ahead to the end of a run, but not so far that the curve is a stump", () => {
  assert.ok(layout(view(Array(95).fill(1), { steps: 100 }), 400, 200).x.from(390) >= 100);
  assert.ok(layout(view(Array(10).fill(1), { steps: 1000 }), 400, 200).x.from(390) < 13);
});

test("steps are whole numbers", () => {
  const { xTicks } = layout(view([1, 2, 3]), 900, 200);
  assert.ok(xTicks.every(Number.isInteger));
});

test("the reading under the cursor is of the nearest step", () => {
  const shown = view([0.1, 0.2, 0.3]);
  shown.curves[0].evaluation = series([0.5]);
  assert.equal(reading(shown, 2.2), "step 2: loss 0.2, evaluation loss 0.5 at step 1");
  assert.equal(reading({ ...shown, curves: [] }, 1), "");
});

test("neighbouring curves differ, on dark and on light ground", () => {
  for (const dark of [true, false]) {
    assert.equal(new Set(Array.from({ length: 8 }, (_, i) => color(i, dark))).size, 8);
  }
});

test("the suggested step has a star on its evaluation, and what over-fits is shaded to the end", () => {
  const shown = view([0.5, 0.4, 0.3, 0.2], { best: 2, overfitsFrom: 3 });
  shown.curves[0].evaluation = series([0.6, 0.4]);
  const { calls, context } = pen();
  const plan = draw(context, shown, 400, 200, THEME);
  const star = calls.lineTo.filter(
    ([x, y]) => Math.hypot(x - plan.x.at(2), y - plan.y.at(0.4)) < 9.01,
  );
  assert.ok(star.length >= 10);
  const [left, , width] = calls.fillRect[0];
  assert.equal(left, plan.x.at(3));
  assert.ok(left + width >= plan.x.at(4));
});
