import assert from "node:assert/strict";
import { test } from "node:test";

import { findNode, nodes, placed, recordHeights } from "../../../web/js/lib/page/graph.mjs";

const graph = (nodes) => ({ getNodeById: (id) => nodes[id] ?? null });

test("a node is found by its id, and inside subgraphs by its path", () => {
  const inner = { name: "inner" };
  const middle = { subgraph: graph({ 1: inner }) };
  const root = graph({ 3: middle });
  assert.equal(findNode(root, 3), middle);
  assert.equal(findNode(root, "3:1"), inner);
});

test("an id that names nothing finds nothing", () => {
  const root = graph({ 3: {} });
  assert.equal(findNode(root, "4"), null);
  assert.equal(findNode(root, "3:1"), null);
  assert.equal(findNode(root, "3:1:2"), null);
  assert.equal(findNode(undefined, "3"), null);
});

test("nodes inside subgraphs are nodes too", () => {
  const inner = { id: 1 };
  const middle = { id: 2, subgraph: { _nodes: [inner] } };
  assert.deepEqual([...nodes({ _nodes: [middle, { id: 3 }] })], [middle, inner, { id: 3 }]);
  assert.deepEqual([...nodes(undefined)], []);
});

test("nodes are named as messages name them", () => {
  const inner = { id: 1, subgraph: { nodes: [{ id: 5 }] } };
  const root = { _nodes: [{ id: 2, subgraph: { _nodes: [inner] } }, { id: 3 }] };
  assert.deepEqual(
    [...placed(root)].map(({ id }) => id),
    ["2", "2:1", "2:1:5", "3"],
  );
  assert.deepEqual([...placed(undefined)], []);
});

test("the height of a node that grew is written into the page's record, in its own subgraph", () => {
  const state = {
    nodes: [{ id: 1, size: [300, 100] }],
    definitions: { subgraphs: [{ id: "inner", nodes: [{ id: 1, size: [300, 50] }] }] },
  };
  recordHeights(state, [
    { id: 1, graph: { id: "root" }, size: [310, 140] },
    { id: 1, graph: { id: "inner" }, size: [300, 80] },
    { id: 7, graph: { id: "root" }, size: [300, 80] },
  ]);
  assert.deepEqual(state.nodes, [{ id: 1, size: [300, 140] }]);
  assert.deepEqual(state.definitions.subgraphs[0].nodes, [{ id: 1, size: [300, 80] }]);
  recordHeights(undefined, [{ id: 1, size: [300, 80] }]);
});
