import assert from "node:assert/strict";
import { test } from "node:test";

import { bestOf, columnsOf, grouped, named, sorted } from "../../../web/js/lib/tab/differences.mjs";

const run = (id, settings, loss, more = {}) => ({ id, settings, step: 10, loss, ...more });
const RUNS = [
  run("fox_rank_8", { rank: 8, optimizer: "lion", steps: 5 }, 0.3, { seconds_per_step: 2 }),
  run("fox_rank_16", { rank: 16, optimizer: "adamw", steps: 5 }, 0.1, { seconds_per_step: 3 }),
  run("owl", { rank: 8, optimizer: "adamw", steps: 5 }, null),
];
const ids = (runs) => runs.map(({ id }) => id);

test("a column for each setting that is not the same in all, and for what came of the runs", () => {
  const columns = columnsOf(RUNS);
  assert.deepEqual(
    columns.map(({ key }) => key),
    ["optimizer", "rank", "step", "loss", "seconds_per_step"],
  );
  const found = Object.fromEntries(columns.map((column) => [column.key, column]));
  assert.deepEqual(found.rank.values, [8, 16, 8]);
  assert.equal(found.loss.best, 0.1);
  assert.equal(found.step.best, null, "more steps are no better");
});

test("what is the lowest of one run alone is not the best", () => {
  assert.equal(columnsOf(RUNS.slice(1)).find(({ key }) => key === "loss")?.best, null);
});

test("a column sorts by number and groups what is alike; what is not known stands last", () => {
  assert.deepEqual(ids(sorted(RUNS, { key: "rank", down: false })), [
    "fox_rank_8",
    "owl",
    "fox_rank_16",
  ]);
  assert.deepEqual(ids(sorted(RUNS, { key: "loss", down: true })), [
    "fox_rank_8",
    "fox_rank_16",
    "owl",
  ]);
  assert.deepEqual(ids(sorted(RUNS, { key: "id", down: true })), [
    "owl",
    "fox_rank_16",
    "fox_rank_8",
  ]);
  assert.equal(sorted(RUNS, null), RUNS);
});

test("runs are found by every word of their names", () => {
  assert.deepEqual(ids(named(RUNS, "FOX 16")), ["fox_rank_16"]);
  assert.deepEqual(ids(named(RUNS, " ")), ids(RUNS));
});

test("runs of one name stand together: those of a sweep, later ones, and means of saved steps", () => {
  const made = (id) => run(id, { learning_rate: 1e-4, rank: 8 }, 0.1);
  const all = [
    "fox_rank_8",
    "owl",
    "fox_002",
    "fox_ema0.1",
    "fox_learning_rate_5e-05_rank_8_003",
    "fox_red",
  ];
  const groups = grouped(all.map(made)).map(([name, runs]) => [name, ids(runs)]);
  assert.deepEqual(groups, [
    ["fox", ["fox_rank_8", "fox_002", "fox_ema0.1", "fox_learning_rate_5e-05_rank_8_003"]],
    ["owl", ["owl"]],
    ["fox_red", ["fox_red"]],
  ]);
  assert.deepEqual(grouped([]), []);
});

test("the best is the lowest where lower is better", () => {
  assert.equal(bestOf("eval_loss", [0.3, null, 0.2]), 0.2);
  assert.equal(bestOf("eval_loss", [0.2, 0.2]), null);
  assert.equal(bestOf("step", [1, 2]), null);
});
