import assert from "node:assert/strict";
import { test } from "node:test";

import { trainersOf } from "../../../web/js/lib/cards/trainers.mjs";

/** A node whose inputs come from other nodes. */
function made(comfyClass, widgets = {}, from = {}) {
  const names = Object.keys(from);
  return {
    comfyClass,
    widgets: Object.entries(widgets).map(([name, value]) => ({ name, value })),
    inputs: names.map((name) => ({ name })),
    getInputNode: (slot) => from[names[slot]],
  };
}

const HIGH = "2.2 I2V-A14B high noise";

test("a trainer's expert and model are found through the nodes between", () => {
  const model = made("LoadWanModel", { variant: HIGH });
  const split = made("SplitAcrossGPUs", {}, { model: made("Fp8Quantize", {}, { model }) });
  const settings = made("WanTrainSettings");
  const train = made("TrainLoRA", { expert: "high" }, { model: split, settings });
  const other = made("TrainLoRA", { expert: "low" }, { model, settings: made("WanTrainSettings") });
  const inside = { nodes: [train] };
  const root = { nodes: [settings, other, { subgraph: inside }] };
  assert.deepEqual(trainersOf(root, settings), [
    { expert: "high", model: { boundary: 0.9, expert: "high_noise", shift: 5 } },
  ]);
});

test("what a model said when it ran counts more than its widgets", () => {
  const model = made("LoadWanModel", { variant: "auto" });
  model.wanTrainerFacts = { asked: { variant: "auto" }, boundary: 0.875, expert: "low_noise" };
  model.wanTrainerFacts.training_shift = 12;
  const settings = made("WanTrainSettings");
  const root = { nodes: [made("TrainLoRA", {}, { model, settings })] };
  assert.deepEqual(trainersOf(root, settings), [
    { expert: "auto", model: { boundary: 0.875, expert: "low_noise", shift: 12 } },
  ]);
});

test("without a link, and in a circle, nothing is known of the model", () => {
  const settings = made("WanTrainSettings");
  const circle = made("Fp8Quantize", {}, { model: null });
  circle.getInputNode = () => circle;
  const root = {
    nodes: [
      made("TrainLoRA", { expert: "auto" }, { settings }),
      made("TrainLoRA", { expert: "low" }, { settings, model: circle }),
    ],
  };
  assert.deepEqual(trainersOf(root, settings), [
    { expert: "auto", model: null },
    { expert: "low", model: null },
  ]);
  assert.deepEqual(trainersOf(undefined, settings), []);
});
