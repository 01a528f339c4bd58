import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { elsewhere, FIRST, isShown, knownGroup } from "../../../web/js/lib/settings/groups.mjs";

const schemas = JSON.parse(
  readFileSync(new URL("../../nodes/schemas.json", import.meta.url), "utf8"),
);
const widgetsOf = (kind) =>
  schemas[kind].inputs.filter((one) => Object.hasOwn(one, "default")).map(({ name }) => name);
const setting = (name, facts = {}) => ({
  ...{ name, value: 0, usual: 0, text: "", linked: false, group: "optimizer", first: false },
  ...facts,
});
const closed = { open: new Set(), query: "" };

test("the first settings are shown, and what was changed, linked, or is of an open group", () => {
  assert.deepEqual(widgetsOf("WanTrainSettings").slice(0, FIRST), [
    ...["batch_size", "gradient_accumulation_steps", "optimizer", "lr_scheduler"],
    ...["lr_warmup_steps", "timestep_sampling"],
  ]);
  assert.ok(isShown(setting("batch_size", { first: true }), closed));
  assert.ok(!isShown(setting("weight_decay"), closed));
  assert.ok(isShown(setting("weight_decay", { value: 1 }), closed));
  assert.ok(isShown(setting("weight_decay", { linked: true }), closed));
  assert.ok(isShown(setting("weight_decay"), { ...closed, open: new Set(["optimizer"]) }));
  assert.ok(!isShown(setting("weight_decay"), { ...closed, open: new Set(["batch"]) }));
});

test("a group that this page does not know is the last one", () => {
  assert.equal(knownGroup("memory"), "memory");
  assert.equal(knownGroup("a group of tomorrow"), "more");
  assert.equal(knownGroup(undefined), "more");
});

test("a search looks for every word in names, labels and tooltips, and shows nothing else", () => {
  const found = (query, facts) => isShown(setting("ema_decay", facts), { ...closed, query });
  assert.ok(found("DECAY ema", {}));
  assert.ok(found("mean weights", { text: "A running mean of the weights." }));
  assert.ok(!found("ema rank", {}));
  assert.ok(!found("rank", { value: 1 }));
  assert.ok(found("rank", { linked: true }));
});

test("a search names the other node that has the setting", () => {
  const own = new Set(widgetsOf("WanTrainSettings"));
  const others = (kind) => widgetsOf(kind).filter((name) => !own.has(name));
  const where = (query) => elsewhere(query, others);
  assert.deepEqual(where("learning rate"), { name: "learning_rate", kind: "TrainLoRA" });
  assert.deepEqual(where(" Steps"), { name: "steps", kind: "TrainLoRA" });
  assert.deepEqual(where("attention"), { name: "attention", kind: "LoadWanModel" });
  assert.deepEqual(where("held_out"), { name: "held_out_ratio", kind: "WanDatasetSettings" });
  assert.equal(where("weight_decay"), null);
  assert.equal(where("l"), null);
  assert.equal(where(""), null);
});
