import assert from "node:assert/strict";
import { test } from "node:test";

import { comparedLines, curvesOf } from "../../../web/js/lib/run/curves.mjs";
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
  assert.equal(curvesOf(read(step(3, 0.5)), true).steps, 100);
  assert.equal(curvesOf(read(step(3, 0.5)), false).steps, 0);
  assert.equal(curvesOf(new RunHistory(), true).steps, 0);
});

test("evaluations that name no expert belong to the only one", () => {
  const { lines } = curvesOf(read(step(1, 0.5), evaluated(1, 0.75)), false);
  assert.deepEqual(
    lines.map(({ loss, evaluation }) => [values(loss), values(evaluation)]),
    [[[0.5], [0.75]]],
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
