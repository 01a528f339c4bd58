import assert from "node:assert/strict";
import { test } from "node:test";

import {
  changedSince,
  factsIn,
  factsInHistory,
  nameOf,
} from "../../../web/js/lib/cards/card_facts.mjs";
import { Kept } from "../../../web/js/lib/cards/tab_memory.mjs";

const widgets = [
  { name: "devices", value: "cpu" },
  { name: "mode", value: "auto" },
];
const place = { workflow: "w", id: "3:1", kind: "Split", key: "wan_split", widgets };

const entry = (facts, { workflow = "w", kind = "Split", id = "3:1" } = {}) => ({
  prompt: [
    1,
    "p",
    { [id]: { class_type: kind } },
    { extra_pnginfo: { workflow: { id: workflow } } },
  ],
  outputs: { [id]: { wan_split: [facts] } },
});

test("widgets changed since the run are named, what was linked or is gone is not", () => {
  assert.deepEqual(changedSince({ devices: "cpu", mode: "copy", gone: 1 }, widgets), ["mode"]);
  assert.deepEqual(changedSince({ devices: "cpu", mode: "auto" }, widgets), []);
  const named = [{ name: "mode", label: "モード", value: "auto" }];
  assert.deepEqual(changedSince({ mode: "copy" }, named), ["モード"]);
  for (const nothing of [null, undefined, "x", 7])
    assert.deepEqual(changedSince(nothing, widgets), []);
});

test("the newest entry of the node in its workflow is found", () => {
  const history = {
    a: entry({ n: 1 }),
    b: entry({ n: 2 }),
    c: entry({ n: 3 }, { workflow: "other" }),
  };
  assert.deepEqual(factsInHistory(history, place), { n: 2 });
  assert.equal(factsInHistory({ c: history.c }, place), null);
  assert.equal(factsInHistory({ a: entry({ n: 1 }, { kind: "Other" }) }, place), null);
  assert.equal(factsInHistory({ a: entry({ n: 1 }, { id: "4" }) }, place), null);
});

test("of a queue entry without a workflow only facts that fit the node are shown", () => {
  const fitting = entry({ asked: { devices: "cpu" } }, { workflow: undefined });
  const other = entry({ asked: { devices: "cuda:0" } }, { workflow: undefined });
  for (const one of [fitting, other]) one.prompt[3] = {};
  assert.deepEqual(factsInHistory({ fitting, other }, place), { asked: { devices: "cpu" } });
  assert.equal(factsInHistory({ other }, place), null);
});

test("a graph that was never given a name has none", () => {
  assert.equal(nameOf("00000000-0000-0000-0000-000000000000"), "");
  for (const none of [undefined, null, "", 3]) assert.equal(nameOf(none), "");
  assert.equal(nameOf("0f1e-22"), "0f1e-22");
});

test("an answer that is no history has no facts", () => {
  for (const answer of [null, "no", [], {}, { a: null }, { a: { prompt: 3, outputs: [] } }]) {
    assert.equal(factsInHistory(answer, place), null);
  }
});

test("an output without facts has none", () => {
  assert.deepEqual(factsIn({ k: [{ n: 1 }], images: [] }, "k"), { n: 1 });
  for (const output of [null, {}, { k: [] }, { k: ["text"] }]) {
    assert.equal(factsIn(output, "k"), null);
  }
});

class Drawer {
  items = new Map();
  getItem(key) {
    return this.items.get(key) ?? null;
  }
  setItem(key, value) {
    if (this.full) throw new Error("quota");
    this.items.set(key, value);
  }
}

test("a tab keeps the newest facts of a few nodes over a reload", () => {
  const storage = new Drawer();
  for (let n = 0; n < 20; n += 1) new Kept(storage).put(`node ${n}`, { n });
  new Kept(storage).put("node 19", { n: "newer" });
  const kept = new Kept(storage);
  assert.deepEqual(kept.get("node 19"), { n: "newer" });
  assert.deepEqual(kept.get("node 4"), { n: 4 });
  assert.equal(kept.get("node 3"), null, "the oldest goes");
});

test("a full or broken storage is no reason to fail", () => {
  const storage = new Drawer();
  storage.full = true;
  new Kept(storage).put("a", {});
  storage.items.set("wan_trainer.cards", "{broken");
  assert.equal(new Kept(storage).get("a"), null);
  storage.items.set("wan_trainer.cards", '{"a": 1}');
  assert.equal(new Kept(storage).get("a"), null);
});
