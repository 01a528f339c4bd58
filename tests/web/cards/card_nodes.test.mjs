import assert from "node:assert/strict";
import { test } from "node:test";

import { CardNodes } from "../../../web/js/lib/cards/card_nodes.mjs";
import { Frames } from "../../../web/js/lib/page/pacing.mjs";

/** A graph of nodes whose cards throw at facts marked as broken. */
function page(nodes) {
  for (const node of nodes) {
    node.shown = [];
    node.wanTrainerCard = {
      show(facts) {
        if (facts.broken) throw new TypeError("no bucket");
        node.shown.push(facts.count);
      },
      tellChanged() {},
      draw() {},
    };
  }
  const graph = {
    id: "g1",
    nodes,
    getNodeById: (id) => nodes.find((node) => String(node.id) === String(id)) ?? null,
  };
  graph._nodes = nodes;
  const stored = new Map();
  const storage = {
    getItem: (key) => stored.get(key) ?? null,
    setItem: (key, value) => stored.set(key, value),
  };
  const api = { fetchApi: async () => new Response("{}") };
  const frames = new Frames(() => {});
  return { stored, cards: new CardNodes({ app: {}, api, frames, root: () => graph, storage }) };
}

const node = (id) => ({ id, comfyClass: "WanVideoDataset", widgets: [] });
const ran = (id, facts) => ({ node: id, output: { wan_dataset: [facts] } });
const hush = (context) => context.mock.method(console, "warn", () => {});

test("facts that cannot be shown are not kept for the next reload", (context) => {
  const said = hush(context);
  const { cards, stored } = page([node("1")]);
  cards.onExecuted(ran("1", { broken: true }));
  assert.equal(stored.size, 0);
  assert.equal(said.mock.callCount(), 1);
  cards.onExecuted(ran("1", { count: 3 }));
  assert.match([...stored.values()][0], /"count":3/);
});

test("a node whose facts cannot be shown does not keep them from the others", async (context) => {
  hush(context);
  const nodes = [node("1"), node("2")];
  const { cards } = page(nodes);
  cards.kept.put(JSON.stringify(["g1", "1", "WanVideoDataset"]), { broken: true });
  cards.kept.put(JSON.stringify(["g1", "2", "WanVideoDataset"]), { count: 7 });
  await cards.readHistory();
  assert.deepEqual(
    nodes.map((one) => one.shown),
    [[], [7]],
  );
});

test("nor when they are in the history", async (context) => {
  hush(context);
  const nodes = [node("1"), node("2")];
  const { cards } = page(nodes);
  const graph = { 1: { class_type: "WanVideoDataset" }, 2: { class_type: "WanVideoDataset" } };
  const extra = { extra_pnginfo: { workflow: { id: "g1" } } };
  const outputs = { 1: { wan_dataset: [{ broken: true }] }, 2: { wan_dataset: [{ count: 8 }] } };
  const history = { p: { prompt: [0, "p", graph, extra], outputs } };
  cards.api.fetchApi = async () => new Response(JSON.stringify(history));
  await cards.readHistory();
  assert.deepEqual(nodes[1].shown, [8]);
});
