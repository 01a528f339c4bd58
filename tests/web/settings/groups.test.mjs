import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import {
  ELSEWHERE,
  elsewhere,
  GROUPS,
  groupOf,
  isShown,
} from "../../../web/js/lib/settings/groups.mjs";

const schemas = JSON.parse(
  readFileSync(new URL("../../nodes/schemas.json", import.meta.url), "utf8"),
);
const names = schemas.WanTrainSettings.inputs.map(({ name }) => name);
const setting = (name, facts = {}) => ({
  ...{ name, value: 0, usual: 0, text: "", linked: false },
  ...facts,
});
const closed = { open: new Set(), query: "" };

test("every group is of settings that the node has, each in one group", () => {
  const grouped = Object.values(GROUPS).flat();
  assert.deepEqual(
    grouped.filter((name) => !names.includes(name)),
    [],
  );
  assert.equal(new Set(grouped).size, grouped.length);
  assert.equal(groupOf("a setting of tomorrow"), "more");
});

test("the first settings are shown, and what was changed, linked, or is of an open group", () => {
  assert.ok(isShown(setting("batch_size"), closed));
  assert.ok(!isShown(setting("weight_decay"), closed));
  assert.ok(isShown(setting("weight_decay", { value: 1 }), closed));
  assert.ok(isShown(setting("weight_decay", { linked: true }), closed));
  assert.ok(isShown(setting("weight_decay"), { ...closed, open: new Set(["optimizer"]) }));
});

test("a search looks for every word in names, labels and tooltips, and shows nothing else", () => {
  const found = (query, facts) => isShown(setting("ema_decay", facts), { ...closed, query });
  assert.ok(found("DECAY ema", {}));
  assert.ok(found("mean weights", { text: "A running mean of the weights." }));
  assert.ok(!found("ema rank", {}));
  assert.ok(!found("rank", { value: 1 }));
  assert.ok(found("rank", { linked: true }));
});

test("who looks for a setting of another node is told which", () => {
  for (const [kind, found] of Object.entries(ELSEWHERE)) {
    const there = schemas[kind].inputs.map(({ name }) => name);
    assert.deepEqual(
      found.filter((name) => !there.includes(name) || names.includes(name)),
      [],
    );
  }
  assert.deepEqual(elsewhere("learning rate"), { name: "learning_rate", kind: "TrainLoRA" });
  assert.deepEqual(elsewhere(" Steps"), { name: "steps", kind: "TrainLoRA" });
  assert.equal(elsewhere("weight_decay"), null);
  assert.equal(elsewhere("l"), null);
  assert.equal(elsewhere(""), null);
});
