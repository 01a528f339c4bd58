import assert from "node:assert/strict";
import { test } from "node:test";

import { neighbour, tableOf } from "../../../web/js/lib/grid/table.mjs";

const clip = (step, prompt, more = {}) => ({ id: `${step}_${prompt}`, step, prompt, ...more });
const SAVES = [100, 200, 300].map((step) => ({ step, eval_loss: step / 1000 }));
const SAMPLES = [
  clip(0, 0, { text: "a fox" }),
  clip(100, 0, { text: "a fox" }),
  clip(100, 1, { text: "<b>an owl</b>" }),
  clip(300, 0, { text: "a red fox" }),
];
const ids = ({ cells }) => cells.map((one) => one?.id ?? "");

test("prompts are rows and steps with a preview columns, the base model's first", () => {
  const { columns, rows } = tableOf(SAMPLES, SAVES, 300);
  assert.deepEqual(
    columns.map(({ step, title, about }) => [step, title, about]),
    [
      [0, "before training", ""],
      [100, "step 100", "eval 0.1"],
      [300, "★ step 300", "eval 0.3"],
    ],
  );
  assert.deepEqual(rows.map(ids), [
    ["0_0", "100_0", "300_0"],
    ["", "100_1", ""],
  ]);
  assert.deepEqual(
    rows.map(({ title, text }) => [title, text]),
    [
      ["prompt 1", "a red fox"],
      ["prompt 2", "<b>an owl</b>"],
    ],
  );
});

test("a rendering has a row for each strength, each with the base model's clip", () => {
  const rendered = { rendering: "validate-1" };
  const { rows } = tableOf(
    [
      clip(0, 0, { ...rendered, id: "base" }),
      clip(100, 0, { ...rendered, id: "weak", strength: 0.5 }),
      clip(100, 0, { ...rendered, id: "full", strength: 1 }),
    ],
    [],
  );
  assert.deepEqual(rows.map(ids), [
    ["base", "weak"],
    ["base", "full"],
  ]);
});

test("a run without previews is an empty table", () => {
  assert.deepEqual(tableOf([], SAVES), { columns: [], rows: [] });
});

test("keys pass over cells without a clip and stop at the edge", () => {
  const table = tableOf([...SAMPLES, clip(300, 1)], SAVES);
  const at = (row, column) => ({ row, column });
  assert.deepEqual(neighbour(table, at(1, 1), 0, 1), at(1, 2));
  assert.deepEqual(neighbour(table, at(1, 1), 0, -1), at(1, 1), "the base model has no clip there");
  assert.deepEqual(neighbour(table, at(0, 1), 1, 0), at(1, 1));
  assert.deepEqual(neighbour(table, at(0, 0), -1, 0), at(0, 0));
});
