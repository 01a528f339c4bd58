import assert from "node:assert/strict";
import { test } from "node:test";

import {
  EMPTY,
  SKIP,
  setMissingCaptions,
  setTriggerWord,
} from "../../../web/js/lib/cards/remedies.mjs";

/** A graph of a dataset node and, linked or not, a node before its settings input. */
function canvas({ linked = null, offers = true } = {}) {
  const told = [];
  const graph = {
    nodes: [],
    beforeChange: () => told.push("before"),
    afterChange: () => told.push("after"),
    add: (node) => graph.nodes.push(node),
  };
  const node = {
    comfyClass: "WanVideoDataset",
    graph,
    pos: [500, 80],
    inputs: [{ name: "model" }, ...(offers ? [{ name: "settings" }] : [])],
    widgets: [{ name: "trigger_word", value: "" }],
    getInputNode: (slot) => (slot === 1 ? linked : null),
  };
  const create = (kind) => ({ ...settings(), comfyClass: kind, connect: (...to) => told.push(to) });
  return { node, graph, told, create };
}

const settings = () => ({
  comfyClass: "WanDatasetSettings",
  mode: 4,
  size: [300, 200],
  widgets: [
    { name: "missing_captions", value: "refuse" },
    { name: "held_out_ratio", value: -1 },
  ],
});

test("a trigger word is set in the node, as one step of undo", () => {
  const { node, told } = canvas();
  const heard = [];
  node.widgets[0].callback = (value) => heard.push(value);
  assert.equal(setTriggerWord(node, "  ohwx "), true);
  assert.deepEqual([node.widgets[0].value, heard, told], ["ohwx", ["ohwx"], ["before", "after"]]);
});

test("the settings node that is linked says what becomes of files without a caption, and is switched on", () => {
  const linked = settings();
  const { node, graph, create } = canvas({ linked });
  assert.equal(setMissingCaptions(node, SKIP, create), true);
  assert.deepEqual([linked.widgets[0].value, linked.mode], ["skip the file", 0]);
  assert.equal(linked.widgets[1].value, -1, "it is the user's");
  assert.deepEqual(graph.nodes, []);
});

test("where there is no settings node one is made, beside the node and linked to it", () => {
  const { node, graph, told, create } = canvas();
  assert.equal(setMissingCaptions(node, EMPTY, create), true);
  const [made] = graph.nodes;
  assert.deepEqual([made.widgets[0].value, made.pos], ["empty caption", [160, 80]]);
  assert.equal(made.widgets[1].value, 0, "no file that was trained is held out by it");
  assert.deepEqual(told, ["before", [0, node, 1], "after"]);
});

test("what cannot be set is said, and nothing is touched", () => {
  const foreign = { ...settings(), comfyClass: "SomebodysNode" };
  for (const [options, create] of [
    [{ linked: foreign }, undefined],
    [{ offers: false }, undefined],
    [{}, () => null],
  ]) {
    const made = canvas(options);
    assert.equal(setMissingCaptions(made.node, SKIP, create ?? made.create), false);
    assert.deepEqual(made.graph.nodes, []);
  }
  assert.equal(foreign.widgets[0].value, "refuse");
  const { node } = canvas();
  node.widgets = [];
  assert.equal(setTriggerWord(node, "x"), false);
});
