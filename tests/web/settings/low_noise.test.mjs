import assert from "node:assert/strict";
import { test } from "node:test";

import { showLowNoise } from "../../../web/js/lib/settings/low_noise.mjs";

const NAMES = ["run", "lora", "lora_low_noise", "lora_name_low_noise"];

/** A trainer behind a loader with that low noise model. */
function trainerOf(low) {
  const widget = { name: "low_noise_model", value: low };
  const loader = { comfyClass: "LoadWanModel", widgets: [widget] };
  const outputs = NAMES.map((name) => ({ name, links: [] }));
  const inputs = [{ name: "model", link: 1 }];
  const node = { id: 1, comfyClass: "TrainLoRA", inputs, outputs, getInputNode: () => loader };
  return { node, widget };
}
const shown = (node) => node.outputs.map(({ name }) => name);

test("outputs of the low noise expert come and go with the second model", () => {
  const { node, widget } = trainerOf("none");
  showLowNoise(node);
  assert.deepEqual(shown(node), NAMES.slice(0, 2));
  showLowNoise(node);
  assert.deepEqual(shown(node), NAMES.slice(0, 2));
  widget.value = "low.safetensors";
  showLowNoise(node);
  assert.deepEqual(shown(node), NAMES);
});

test("a linked output stays, and so do all where the model is not known", () => {
  const { node } = trainerOf("none");
  node.outputs[3].links = [7];
  showLowNoise(node);
  assert.deepEqual(shown(node), NAMES);

  const other = trainerOf("none").node;
  other.getInputNode = () => ({ comfyClass: "SomeSubgraph", widgets: [] });
  showLowNoise(other);
  assert.deepEqual(shown(other), NAMES);
});
