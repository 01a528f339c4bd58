import assert from "node:assert/strict";
import { test } from "node:test";

import { reading } from "../../../web/js/lib/chart/chart.mjs";
import { Plot } from "../../../web/js/lib/chart/plot.mjs";
import { chartFacts, comparedLines } from "../../../web/js/lib/run/chart_facts.mjs";
import { RunHistory } from "../../../web/js/lib/run/history.mjs";

const step = (number, loss, expert = "auto") => ({
  event: "step",
  step: number,
  steps: 100,
  loss,
  expert,
});
const evaluated = (number, loss, expert) => ({
  event: "evaluated",
  step: number,
  eval_loss: loss,
  expert,
});
const read = (...records) => {
  const history = new RunHistory();
  history.take(0, { next: records.length, records });
  return history;
};
const values = (series) => series?.points.map((point) => point.value);
const pair = () =>
  read(
    step(1, 0.5, "high"),
    step(2, 0.25, "low"),
    evaluated(2, 0.75, "high"),
    evaluated(2, 1, "low"),
  );

test("a run that trains shows how far it has to go, one that has ended how far it came", () => {
  assert.equal(chartFacts(read(step(3, 0.5)), true).steps, 100);
  assert.equal(chartFacts(read(step(3, 0.5)), false).steps, 0);
  assert.equal(chartFacts(new RunHistory(), true).steps, 0);
});

test("evaluations that name no expert belong to the only one", () => {
  const { lines } = chartFacts(read(step(1, 0.5), evaluated(1, 0.75)), false);
  assert.deepEqual(
    lines.map(({ loss, evaluation }) => [values(loss), values(evaluation)]),
    [[[0.5], [0.75]]],
  );
});

test("what keeps the model as it was has a curve of its own for each expert", () => {
  const kept = (number, expert) => ({ ...step(number, 0.5, expert), prior_loss: number / 100 });
  const shown = (...records) =>
    chartFacts(read(...records), false).priors.map(({ name, place, loss }) => [
      name,
      place,
      values(loss),
    ]);
  assert.deepEqual(shown(kept(1), step(2, 0.4), kept(3)), [
    ["prior preservation", 2, [0.01, 0.03]],
  ]);
  assert.deepEqual(shown(kept(1, "high"), kept(2, "low"), kept(4, "low")), [
    ["high noise, prior preservation", 2, [0.01]],
    ["low noise, prior preservation", 3, [0.02, 0.04]],
  ]);
  assert.deepEqual(shown(step(1, 0.5)), []);
  assert.equal(comparedLines(new Map([["cat", read(kept(1))]])).length, 1, "runs compare losses");

  const plot = Object.assign(Object.create(Plot.prototype), { byLevel: false, cursor: null });
  const { curves } = plot.look(chartFacts(read(kept(1), evaluated(1, 1, "auto")), false), true);
  assert.equal(new Set(curves.map(({ color }) => color)).size, 2);
  assert.equal(
    reading({ curves }, 1),
    "step 1: loss 0.5, evaluation loss 1 at step 1, prior preservation step 1: loss 0.01",
  );
});

test("compared runs have a line for each expert, called by its run", () => {
  const lines = comparedLines(
    new Map([
      ["cat", pair()],
      ["dog", read(step(1, 2), evaluated(1, 3))],
    ]),
  );
  assert.deepEqual(
    lines.map(({ run, name, loss, evaluation }) => [run, name, values(loss), values(evaluation)]),
    [
      ["cat", "cat · high noise", [0.5], [0.75]],
      ["cat", "cat · low noise", [0.25], [1]],
      ["dog", "dog", [2], [3]],
    ],
  );
});

test("a compared run has a line before it has a curve", () => {
  const [line] = comparedLines(new Map([["cat", new RunHistory()]]));
  assert.deepEqual(
    [line.run, line.name, line.loss, line.evaluation],
    ["cat", "cat", undefined, undefined],
  );
});
