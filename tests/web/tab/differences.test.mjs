import assert from "node:assert/strict";
import { test } from "node:test";

import {
  bestOf,
  between,
  columnsOf,
  differing,
  found,
  grouped,
  sorted,
  unknownSetting,
} from "../../../web/js/lib/tab/differences.mjs";

const run = (id, settings, loss, more = {}) => ({
  id,
  settings,
  state: "done",
  step: 10,
  loss,
  ...more,
});
const RUNS = [
  run("fox_rank_8", { rank: 8, optimizer: "lion", steps: 5 }, 0.3, { seconds_per_step: 2 }),
  run("fox_rank_16", { rank: 16, optimizer: "adamw", steps: 5 }, 0.1, { seconds_per_step: 3 }),
  run("owl", { rank: 8, optimizer: "adamw", steps: 5 }, null, { state: "failed" }),
];
const ids = (runs) => runs.map(({ id }) => id);

test("a column for each setting that is not the same in all, and for what came of the runs", () => {
  assert.deepEqual(
    columnsOf([{ name: "", runs: RUNS }]).map(({ key }) => key),
    ["state", "step", "rank", "optimizer", "loss", "seconds_per_step"],
  );
  assert.deepEqual(differing([{ name: "", runs: RUNS }], 1), ["rank"]);
});

test("of groups only what differs inside of one is a column", () => {
  assert.deepEqual(
    differing([RUNS.slice(0, 1), RUNS.slice(1)].map((runs) => ({ name: "", runs }))),
    ["rank"],
  );
  const missing = [run("a", {}, 1), run("b", { alpha: 2 }, 1)];
  assert.deepEqual(differing([{ name: "", runs: missing }]), ["alpha"]);
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

test("runs are found by every word of their names, by settings and by state", () => {
  assert.deepEqual(ids(found(RUNS, "FOX 16")), ["fox_rank_16"]);
  assert.deepEqual(ids(found(RUNS, " ")), ids(RUNS));
  assert.deepEqual(ids(found(RUNS, "rank=8")), ["fox_rank_8", "owl"]);
  assert.deepEqual(ids(found(RUNS, "opt=adam fox")), ["fox_rank_16"]);
  assert.deepEqual(ids(found(RUNS, "rank=1")), [], "a number is meant as a whole");
  assert.deepEqual(ids(found(RUNS, "=8")), []);
  assert.deepEqual(ids(found(RUNS, "", "failed")), ["owl"]);
  assert.deepEqual(ids(found(RUNS, "fox", "failed")), []);
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
  const groups = grouped(all.map(made)).map(({ name, runs }) => [name, ids(runs)]);
  assert.deepEqual(groups, [
    ["fox", ["fox_rank_8", "fox_002", "fox_ema0.1", "fox_learning_rate_5e-05_rank_8_003"]],
    ["owl", ["owl"]],
    ["fox_red", ["fox_red"]],
  ]);
  assert.deepEqual(grouped([]), []);
});

test("the best is the lowest where lower is better, and not all are alike", () => {
  const evaluated = (...losses) => losses.map((eval_best) => ({ eval_best, step: eval_best }));
  assert.equal(bestOf("eval_best", evaluated(0.3, null, 0.2)), 0.2);
  assert.equal(bestOf("eval_best", evaluated(0.2, 0.2)), null);
  assert.equal(bestOf("step", evaluated(1, 2)), null);
});

test("settings that all runs share are found too, under the names that people write", () => {
  const common = { learning_rate: 1e-4, rank_dropout: 8 };
  assert.deepEqual(ids(found(RUNS, "lr:1e-4", "", common)), ids(RUNS));
  assert.deepEqual(ids(found(RUNS, "lr:2e-4", "", common)), []);
  assert.deepEqual(ids(found(RUNS, "rank:8 owl", "", common)), ["owl"]);
  assert.deepEqual(ids(found(RUNS, "rank:16", "", common)), ["fox_rank_16"], "not rank_dropout");
  assert.equal(unknownSetting(RUNS, "fox rank:8 foo:1", common), "foo");
  assert.equal(unknownSetting(RUNS, "lr:1 fox opt=", common), "");
});

test("of two runs only what differs is shown, results first, and nothing of when they ended", () => {
  const [one, other] = RUNS;
  assert.deepEqual(between({ ...one, updated: 1 }, { ...other, updated: 2 }), [
    "loss",
    "seconds_per_step",
    "rank",
    "optimizer",
  ]);
  assert.deepEqual(between(one, one), []);
});
