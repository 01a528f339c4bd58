import assert from "node:assert/strict";
import { test } from "node:test";

import {
  isOurs,
  kindOf,
  learnIds,
  renameClasses,
  renameNodes,
  takenIds,
} from "../../../web/js/lib/page/ids.mjs";

const OWN = "custom_nodes.ComfyUI-WanTrainer";
const loader = {
  python_module: OWN,
  input: { optional: { diffusion_model: ["COMBO"], device: ["COMBO"] } },
  output: ["WAN_TRAIN_MODEL", "STRING"],
};
const quantize = {
  python_module: OWN,
  input: { required: { model: ["WAN_TRAIN_MODEL"] } },
  output: ["WAN_TRAIN_MODEL"],
};
const theirs = {
  python_module: "custom_nodes.VideoX-Fun",
  input: { required: { model: ["COMBO"], precision: ["COMBO"] } },
  output: ["FunModels"],
};

/** The server with our nodes under both ids; `other` has the id of the loader. */
function server(other = loader) {
  const all = {
    LoadWanModel: other,
    WanTrainer_LoadWanModel: { ...loader },
    Fp8Quantize: quantize,
    WanTrainer_Fp8Quantize: { ...quantize },
    KSampler: { python_module: "nodes", output: ["LATENT"] },
  };
  learnIds(all);
  return all;
}

const saved = (type, output) => ({ type, inputs: [], outputs: [{ type: output }] });

test("a second id is in menus only where another pack has the first", () => {
  const hidden = (all) =>
    [all.WanTrainer_LoadWanModel, all.WanTrainer_Fp8Quantize].map((one) => one.deprecated);
  assert.deepEqual(hidden(server()), [true, true]);
  assert.deepEqual(takenIds(), []);
  assert.deepEqual(hidden(server(theirs)), [false, true]);
  assert.deepEqual(takenIds(), [{ id: "LoadWanModel", pack: "VideoX-Fun" }]);
});

test("a node of ours is known under both ids, another pack's of that id is not ours", () => {
  const kinds = () =>
    ["LoadWanModel", "WanTrainer_LoadWanModel", "Fp8Quantize"].map((comfyClass) =>
      kindOf({ comfyClass }),
    );
  server();
  assert.deepEqual(kinds(), ["LoadWanModel", "LoadWanModel", "Fp8Quantize"]);
  server(theirs);
  assert.deepEqual(kinds(), ["", "LoadWanModel", "Fp8Quantize"]);
  assert.equal(isOurs({ comfyClass: "LoadWanModel" }), false);
  assert.equal(isOurs({ comfyClass: "WanTrainer_LoadWanModel" }), true);
  assert.equal(isOurs({ comfyClass: "KSampler" }), false);
});

test("a server without second ids is left as it is", () => {
  learnIds({ LoadWanModel: theirs, KSampler: {} });
  const workflow = { nodes: [saved("LoadWanModel", "WAN_TRAIN_MODEL")] };
  renameNodes(workflow);
  assert.equal(workflow.nodes[0].type, "LoadWanModel");
  assert.equal(kindOf({ comfyClass: "LoadWanModel" }), "LoadWanModel");
});

test("workflows of ours open with the id that is ours here, those of the other pack keep theirs", () => {
  const workflow = () => ({
    nodes: [
      saved("LoadWanModel", "WAN_TRAIN_MODEL"),
      saved("LoadWanModel", "FunModels"),
      saved("WanTrainer_Fp8Quantize", "WAN_TRAIN_MODEL"),
      saved("KSampler", "LATENT"),
    ],
    definitions: { subgraphs: [{ nodes: [saved("LoadWanModel", "WAN_TRAIN_MODEL")] }] },
  });
  const types = (graph) => {
    renameNodes(graph);
    return [...graph.nodes, ...graph.definitions.subgraphs[0].nodes].map(({ type }) => type);
  };
  server(theirs);
  const [mine, other] = ["WanTrainer_LoadWanModel", "LoadWanModel"];
  assert.deepEqual(types(workflow()), [mine, other, "Fp8Quantize", "KSampler", mine]);
  server();
  assert.deepEqual(types({ ...workflow(), nodes: [saved(mine, "WAN_TRAIN_MODEL")] }), [
    other,
    other,
  ]);
});

test("graphs in API format are told apart by the names of their inputs", () => {
  const classes = (...inputs) => {
    const graph = Object.fromEntries(
      inputs.map((one, at) => [at, { class_type: "LoadWanModel", inputs: one }]),
    );
    renameClasses(graph);
    return Object.values(graph).map((node) => node.class_type);
  };
  server(theirs);
  const found = classes(
    { diffusion_model: "a", device: "default" },
    { model: "a", precision: "b" },
    {},
  );
  assert.deepEqual(found, ["WanTrainer_LoadWanModel", "LoadWanModel", "LoadWanModel"]);
  for (const odd of [null, "text", { 1: null }]) renameClasses(odd);
});

test("a damaged workflow is nothing to rename", () => {
  server(theirs);
  for (const odd of [null, 5, { nodes: "many" }, { nodes: [null, { type: 3 }] }]) renameNodes(odd);
});
