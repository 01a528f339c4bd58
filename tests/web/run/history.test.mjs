import assert from "node:assert/strict";
import { test } from "node:test";
import { chartFacts } from "../../../web/js/lib/run/chart_facts.mjs";

import { RunHistory } from "../../../web/js/lib/run/history.mjs";

const step = (number, facts = {}) => ({
  event: "step",
  step: number,
  steps: 100,
  loss: 1 / number,
  lr: 1e-4,
  grad_norm: 0.5,
  seconds: 2,
  expert: "auto",
  timestep_mean: 500,
  ...facts,
});

const answer = (next, records, facts = {}) => ({ version: 1, next, records, ...facts });

const read = (records) => {
  const history = new RunHistory();
  history.take(0, answer(records.length, records));
  return history;
};

test("every step is a point, and the next question starts after it", () => {
  const history = read([step(1), step(2), step(3)]);
  assert.equal(history.points, 3);
  assert.equal(history.lines, 3);
  assert.equal(history.newest.step, 3);
});

test("a run that was killed and resumed has each step once, with the newest loss", () => {
  const history = read([step(1), step(2), step(3, { loss: 7 }), step(3), step(4)]);
  assert.equal(history.points, 4);
  assert.deepEqual(
    history.losses.get("auto").points.map((point) => point.value),
    [1, 1 / 2, 1 / 3, 1 / 4],
  );
});

test("a step trained twice draws its noise level once", () => {
  const history = read([step(1), step(2), step(2), step(3)]);
  assert.equal(
    history.timesteps.reduce((a, b) => a + b),
    3,
  );
});

test("noise levels fall into their twentieths, the ends included", () => {
  const history = read([0, 49, 50, 999, 1000].map((t, i) => step(i + 1, { timestep_mean: t })));
  assert.equal(history.timesteps[0], 2);
  assert.equal(history.timesteps[1], 1);
  assert.equal(history.timesteps[19], 2);
});

test("evaluations, saves, previews and skipped steps are kept apart from the loss", () => {
  const history = read([
    { event: "sample", step: 0, sample_id: "a" },
    step(1),
    { event: "skipped", step: 2, reason: "not finite" },
    { event: "evaluated", step: 2, eval_loss: 0.25 },
    { event: "saved", step: 2, folder: "x" },
    { event: "something newer", step: 3 },
    { event: "step" },
    null,
  ]);
  assert.equal(history.points, 1);
  assert.equal(history.evaluation, 0.25);
  assert.deepEqual(
    history.saves.points.map((point) => point.step),
    [2],
  );
  assert.equal(history.samples.length, 1);
  assert.equal(history.skipped.length, 1);
});

test("two experts are two curves", () => {
  const history = read([step(1, { expert: "high" }), step(2, { expert: "low" })]);
  assert.deepEqual([...history.losses.keys()], ["high", "low"]);
});

test("the pace is the median of the last twenty steps", () => {
  const slow = Array.from({ length: 30 }, (_, i) => step(i + 1, { seconds: 50 }));
  const fast = Array.from({ length: 20 }, (_, i) => step(i + 31, { seconds: 2 }));
  assert.equal(read([...slow, ...fast]).secondsPerStep, 2);
  assert.deepEqual(read([...slow, ...fast]).trained, { seconds: 30 * 50 + 20 * 2, count: 50 });
});

test("a step before the last twenty has no say in the pace, each of the twenty has", () => {
  const paces = [0, ...Array.from({ length: 20 }, (_, i) => 20 - i)];
  const history = read(paces.map((seconds, i) => step(i + 1, { seconds })));
  assert.equal(history.secondsPerStep, 11);
});

test("times of stages add up over sessions, and what is no time does not count", () => {
  const ended = (stage, seconds) => ({ event: "stage_ended", stage, seconds, step: 0 });
  const odd = [null, -1, "3", Number.NaN, undefined].map((seconds) => ended("load", seconds));
  const history = read([ended("load", 4), ended("sample", 2), ended("load", 6), ...odd]);
  assert.deepEqual(Object.fromEntries(history.stages), {
    load: { seconds: 10, count: 2 },
    sample: { seconds: 2, count: 1 },
  });
});

test("an answer that came too late changes nothing", () => {
  const history = read([step(1), step(2)]);
  assert.equal(history.take(0, answer(1, [step(1)])), true);
  assert.equal(history.lines, 2);
});

test("a file that became shorter is another run: everything is read anew", () => {
  const history = read([step(1), step(2), step(3)]);
  assert.equal(history.take(3, answer(1, [], { restarted: true })), true);
  assert.equal(history.points, 0);
  assert.equal(history.lines, 0);
});

test("more lines are asked for at once", () => {
  const history = new RunHistory();
  assert.equal(history.take(0, answer(1, [step(1)], { more: true })), true);
  assert.equal(history.take(1, answer(2, [step(2)])), false);
});

test("10,000 steps in two answers are drawn by at most 2,000 points", () => {
  const history = new RunHistory();
  const lines = Array.from({ length: 10_000 }, (_, i) => step(i + 1, { loss: Math.random() }));
  history.take(0, answer(5000, lines.slice(0, 5000), { more: true }));
  history.take(5000, answer(10_000, lines.slice(5000)));
  assert.equal(history.newest.step, 10_000);
  const drawn = history.losses.get("auto").points.length;
  assert.equal(history.points, 10_000);
  assert.ok(drawn <= 2000 && drawn > 500);
});

test("evaluations are kept by timestep, say whose clips they are of, and the newest suggestion counts", () => {
  const history = read([
    {
      event: "evaluated",
      step: 0,
      eval_loss: 1,
      held_out: true,
      per_timestep: { 100: 0.5, 900: 1.5 },
    },
    { event: "suggested", step: 2, best: 2, why: "a", overfits_from: null },
    {
      event: "evaluated",
      step: 4,
      eval_loss: 2,
      held_out: true,
      per_timestep: { 100: null, 900: 2 },
    },
    { event: "suggested", step: 4, best: null, why: "b", overfits_from: 2 },
  ]);
  assert.deepEqual([...history.levels.keys()], [100, 900]);
  assert.deepEqual(history.levels.get(100).points, [{ step: 0, value: 0.5 }]);
  assert.equal(history.heldOut, true);
  assert.deepEqual(history.suggestion, { best: null, why: "b", overfitsFrom: 2 });
});

test("a damaged suggestion suggests nothing", () => {
  const history = read([{ event: "suggested", step: 2, best: "2", why: 7, overfits_from: [] }]);
  assert.deepEqual(history.suggestion, { best: null, why: "", overfitsFrom: null });
});

test("what is wrong is remembered once at its step, and shown in the chart with the steps left out", () => {
  const mark = { event: "marked", step: 7, kind: "explosion", text: "Training diverges." };
  const history = read([mark, mark, { event: "skipped", step: 9, reason: "x", in_a_row: 1 }]);
  assert.deepEqual(history.marks, [{ step: 7, kind: "explosion", text: "Training diverges." }]);
  const shown = chartFacts(history, false);
  assert.deepEqual([shown.marks, shown.skipped], [history.marks, [{ step: 9, value: 0 }]]);
  for (let step = 0; step < 200; step += 1) history.add({ ...mark, step });
  assert.equal(history.marks.length, 50);
  assert.deepEqual(read([{ event: "marked", step: 1, kind: 5 }]).marks[0].text, "");
});

/** As MetricsPages of wan_core/metrics/pages.py sends a step before the last thousand lines. */
const thin = ({ event, step, loss, seconds, expert, timestep_mean, prior_loss }) =>
  JSON.parse(JSON.stringify({ event, step, loss, seconds, expert, timestep_mean, prior_loss }));

test("thin steps make the same curves, times and histogram as complete ones", () => {
  const lines = Array.from({ length: 9000 }, (_, i) =>
    step(i < 6000 ? i + 1 : i - 99, {
      loss: ((i * 7919) % 1000) / 1000,
      expert: i % 7 ? "high" : "low",
      timestep_mean: (i * 37) % 1001,
      ...(i % 3 ? {} : { prior_loss: i / 1e5 }),
    }),
  );
  const [complete, sent] = [lines, [...lines.slice(0, -1000).map(thin), ...lines.slice(-1000)]];
  assert.deepEqual(read(sent), read(complete));
  assert.deepEqual(read(sent).newest, lines.at(-1));
  assert.ok(read(sent).losses.get("high").points.length < 2000);
});
