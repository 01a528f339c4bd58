import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { RunHistory } from "../../../web/js/lib/run/history.mjs";

const FIXTURE = new URL("../../fixtures/condensed.json", import.meta.url);

/** As tests/wan_core/metrics/test_history.py makes it. */
const stepLine = (step, facts = {}) => ({
  event: "step",
  step,
  loss: ((step * 7919) % 1000) / 1000,
  expert: "auto",
  seconds: 0.5,
  timestep_mean: (step * 37) % 1001,
  ...facts,
});

const marked = { event: "marked", step: 40, kind: "explosion", text: "Too much." };
const OTHERS = {
  40: [{ event: "skipped", step: 40 }, marked],
  41: [marked],
  50: [
    { event: "stage_ended", stage: "save", seconds: 1.5, step: 50 },
    { event: "stage_ended", stage: "load", seconds: 2, step: 50 },
  ],
  900: [{ event: "suggested", step: 900, best: 500, why: "It is the lowest.", overfits_from: 700 }],
  3000: [{ event: "stage_ended", stage: "save", seconds: 0.25, step: 3000 }],
};

/** The lines of the run from which the fixture was condensed. */
function* linesOfARun() {
  for (let number = 1; number <= 3100; number++) {
    const step = number <= 2600 ? number : number - 100;
    const prior = step % 3 ? {} : { prior_loss: step / 1e5 };
    yield stepLine(step, [7, 9].includes(step) ? { expert: "high", loss: 0.5, ...prior } : prior);
    yield* OTHERS[step] ?? [];
    if (step % 500) continue;
    const levels = { 200: step / 10000, 800: step / 5000 };
    yield {
      event: "evaluated",
      step,
      eval_loss: step === 3000 ? null : 1000 / step,
      held_out: true,
      per_timestep: levels,
    };
    yield { event: "saved", step, updates: { "blocks.0": 0.5 }, modules: 3 };
    yield { event: "sample", step, sample_id: `s${step}`, measures: { flicker: 0.25 } };
  }
}

const curves = (of) =>
  [...of].map(([name, series]) => [name, series.points, series.means, series.width]);

const shown = (history) => ({
  losses: curves(history.losses),
  priors: curves(history.priors),
  evaluations: curves(history.evaluations),
  levels: curves(history.levels),
  saves: history.saves.points,
  samples: history.samples.points,
  skipped: history.skipped.points,
  looks: [...history.looks],
  measures: [...history.measures],
  marks: history.marks,
  suggestion: history.suggestion,
  heldOut: history.heldOut,
  notFinite: history.notFinite,
  newest: [history.newest.step, history.newest.loss],
  trained: history.trained,
  stages: [...history.stages],
  timesteps: history.timesteps,
  furthest: history.furthest,
  pace: history.pace,
  lines: history.lines,
});

test("a long run that comes condensed is as one whose lines were all read, and goes on alike", () => {
  const [read, opened] = [new RunHistory(), new RunHistory()];
  const lines = [...linesOfARun()];
  read.take(0, { next: lines.length, records: lines });
  const condensed = JSON.parse(readFileSync(FIXTURE, "utf8"));
  opened.take(0, { next: lines.length, records: condensed.records, condensed });
  assert.deepEqual(shown(opened), shown(read));
  assert.ok(read.losses.get("auto").width > 1);
  assert.equal(read.priors.get("auto").newest.step, 3000);

  const records = Array.from({ length: 900 }, (_, index) => stepLine(2900 + index));
  for (const history of [read, opened])
    history.take(lines.length, { next: lines.length + 900, records });
  assert.deepEqual(shown(opened), shown(read));
});

test("the first and the newest point of a long curve are those that were measured", () => {
  const history = new RunHistory();
  const records = Array.from({ length: 9001 }, (_, index) => stepLine(index + 1));
  history.take(0, { next: records.length, records });
  const { points } = history.losses.get("auto");
  assert.deepEqual(
    [points[0], points.at(-1)],
    [records[0], records.at(-1)].map(({ step, loss: value }) => ({ step, value })),
  );
});
