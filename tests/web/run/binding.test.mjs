import assert from "node:assert/strict";
import { test } from "node:test";

import { belongs, Prompts, runOfNode, takers } from "../../../web/js/lib/run/binding.mjs";

test("a name leads to its folder and to the numbered ones, and to no other", () => {
  assert.equal(belongs("my_lora", "my_lora"), true);
  assert.equal(belongs("my_lora_002", "my_lora"), true);
  assert.equal(belongs("my_lora_1000", "my_lora"), true);
  for (const other of ["my_lora_2", "my_lora_two", "my_lora2", "my_loras", "your_lora"]) {
    assert.equal(belongs(other, "my_lora"), false, other);
  }
});

test("a name in another case or normal form leads to the run, and its own spelling first", () => {
  assert.equal(belongs("Größe_002", "GRÖSSE"), true);
  assert.equal(belongs("größe".normalize("NFD"), "größe"), true);
  assert.equal(belongs("Алиса_v1", "алиса_V1"), true);
  assert.equal(belongs("动漫风格_002", "动漫风格"), true);
  assert.equal(belongs("动漫", "動漫"), false);
  const runs = [
    { id: "Alice", updated: 9 },
    { id: "ALICE", updated: 5 },
  ];
  assert.equal(runOfNode(runs, "ALICE").id, "ALICE");
  assert.equal(runOfNode(runs, "alice").id, "Alice");
});

test("letters that mean something elsewhere mean nothing here", () => {
  assert.equal(belongs("aXb_002", "a.b"), false);
  assert.equal(belongs("a.b_002", "a.b"), true);
});

test("the live run is shown, else the one changed last, else none", () => {
  const runs = [
    { id: "a", updated: 9 },
    { id: "a_002", updated: 5, live: true },
    { id: "b", updated: 99 },
  ];
  assert.equal(runOfNode(runs, "a").id, "a_002");
  assert.equal(runOfNode(runs.slice(0, 1), "a").id, "a");
  assert.equal(runOfNode(runs, "c"), null);
});

test("two nodes of one name each show what they train", () => {
  const runs = [
    { id: "pair", updated: 5, expert: "high", live: false, node: null },
    { id: "pair_002", updated: 9, expert: "low", live: true, node: "8" },
  ];
  const of = (id, others, expert) => runOfNode(runs, "pair", { id, others, expert })?.id;
  assert.equal(of("8", ["7"], "low"), "pair_002");
  assert.equal(of("7", ["8"], "high"), "pair");
  assert.equal(of("7", ["8"], "auto"), "pair", "the other node trains the other one");
  runs[1].live = false;
  assert.equal(of("7", ["8"], "high"), "pair", "by the expert, once it has ended");
  assert.equal(of("7", [], "auto"), "pair_002", "the newest, where nothing tells them apart");
});

const node = (id, name, run = null) => ({ id, name, run });
const message = (run, id = "7") => ({ node: id, run, text: "" });

test("a message is for the node that trains the run, when its name leads there", () => {
  assert.deepEqual(takers(message("cat"), [node("7", "cat"), node("8", "dog")], true), ["7"]);
  assert.deepEqual(takers(message("cat_002"), [node("7", "cat", "cat")], true), ["7"]);
});

test("another graph's run is not drawn in a node that has the same id", () => {
  assert.deepEqual(takers(message("cat"), [node("7", "dog", "dog")], false), []);
  assert.deepEqual(takers(message("cat"), [node("7", "dog")], true), []);
  assert.deepEqual(takers(message("cats"), [node("7", "cat")], false), []);
});

test("a run started head-less is drawn wherever its name leads, whatever the node's id", () => {
  assert.deepEqual(takers(message("cat", "train"), [node("7", "cat"), node("8", "dog")], false), [
    "7",
  ]);
  const both = [node("7", "cat"), node("8", "cat_002")];
  assert.deepEqual(takers(message("cat_002", "train"), both, false), ["8"], "the exact name wins");
});

test("two nodes of one name are told apart by their id", () => {
  const both = [node("7", "pair", "pair"), node("8", "pair")];
  assert.deepEqual(takers(message("pair_002", "8"), both, true), ["8"]);
  assert.deepEqual(takers(message("pair", "7"), both, true), ["7"]);
});

test("a node renamed while its run trains goes on showing it", () => {
  assert.deepEqual(takers(message("cat"), [node("7", "dog", "cat")], true), ["7"]);
});

test("a node renamed after it was queued still shows what it trains", () => {
  const renamed = { ...node("7", "dog", "dog"), queued: new Set(["cat"]) };
  assert.deepEqual(takers(message("cat_002"), [renamed], true), ["7"]);
  assert.deepEqual(takers(message("cat_002", "8"), [renamed], true), [], "another node trains it");
  assert.deepEqual(takers(message("cat_002"), [renamed], false), [], "another graph");
  assert.deepEqual(takers(message("cow"), [renamed], true), []);
});

test("every node that shows a run is told of it", () => {
  const copies = [node("7", "cat", "cat"), node("12", "cat", "cat")];
  assert.deepEqual(takers(message("cat"), copies, true), ["7", "12"]);
});

test("a run that a node shows already is not given to another one that its name leads to", () => {
  const nodes = [node("7", "dog", "cat_002"), node("12", "cat")];
  assert.deepEqual(takers(message("cat_002", "99"), nodes, false), ["7"]);
  assert.deepEqual(takers(message("cat_002", "99"), nodes.slice(1), false), ["12"]);
});

test("a name that comes over a wire is nobody's guess: the graph and the id decide", () => {
  assert.deepEqual(takers(message("cat"), [node("7", null)], true), ["7"]);
  assert.deepEqual(takers(message("cat"), [node("7", null)], false), []);
  assert.deepEqual(takers(message("cat"), [node("8", null)], true), []);
});

test("a message without a run is for no trainer", () => {
  assert.deepEqual(takers({ node: "7", text: "" }, [node("7", "cat", "cat")], true), []);
});

test("a message comes from here when the graph on the page was queued, by whomever", () => {
  const prompts = new Prompts();
  assert.equal(prompts.isHere({ graph: "g1", prompt_id: "p" }, "g1"), true);
  assert.equal(prompts.isHere({ graph: "g2", prompt_id: "p" }, "g1"), false);
  prompts.started("p");
  assert.equal(
    prompts.isHere({ graph: "g2", prompt_id: "p" }, "g1"),
    false,
    "the other tab of this page",
  );
});

test("a message that names no graph is told by what was said of its queue entry, else by who queued", () => {
  const prompts = new Prompts();
  assert.equal(prompts.isHere({ prompt_id: "p" }, "g1"), false);
  prompts.started("p");
  assert.equal(prompts.isHere({ prompt_id: "p" }, "g1"), true);
  prompts.learn({ prompt_id: "p", graph: "g2" });
  assert.equal(prompts.isHere({ prompt_id: "p" }, "g1"), false);
  assert.equal(prompts.isHere({}, "g1"), false, "head-less, from a server that says nothing");
});

test("graphs without an id of their own are not one graph", () => {
  const none = "00000000-0000-0000-0000-000000000000";
  const prompts = new Prompts();
  assert.equal(prompts.isHere({ graph: none, prompt_id: "p" }, none), false);
  prompts.started("p");
  assert.equal(prompts.isHere({ graph: none, prompt_id: "p" }, none), true);
});

test("a page that stays open for weeks does not remember every queue entry", () => {
  const prompts = new Prompts();
  for (let i = 0; i < 5000; i++) {
    prompts.started(`p${i}`);
    prompts.learn({ prompt_id: `p${i}`, graph: "g" });
  }
  assert.ok(prompts.mine.size <= 1000 && prompts.graphs.size <= 1000);
  assert.equal(prompts.isHere({ prompt_id: "p4999" }, "g"), true);
});
