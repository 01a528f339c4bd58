// @ts-check
/** Shows the outputs of the low noise expert only if the model has two experts, or if such an output is linked. */

import { modelOf, sourceOf } from "../fit/asked.mjs";
import { kindOf } from "../page/ids.mjs";

/** @typedef {import("../page/graph.mjs").GraphNode} GraphNode */

/** Class of node -> number of its last outputs that belong to the low noise expert. @type {Record<string, number>} */
const LAST = { TrainLoRA: 2, ApplyWanLoRA: 1 };
/** Removed outputs. @type {WeakMap<GraphNode, any[]>} */
const hidden = new WeakMap();

/** @param {GraphNode} node of any class, with its links */
export function showLowNoise(node) {
  const last = LAST[kindOf(node)];
  if (!last || !node.outputs) return;
  const shown = hasTwo(node);
  const away = hidden.get(node) ?? [];
  if (shown && away.length) {
    hidden.delete(node);
    node.outputs = [...node.outputs, ...away];
  } else if (!shown && !away.length) {
    const outputs = node.outputs.slice(-last);
    if (outputs.some(({ links }) => links?.length)) return;
    hidden.set(node, outputs);
    node.outputs = node.outputs.slice(0, -last);
  } else return;
  // Frontends as old as 1.32 draw Vue nodes from a copy of the slots; this event refreshes the copy.
  node.graph?.trigger?.("node:slot-errors:changed", { nodeId: node.id });
  node.setDirtyCanvas?.(true, true);
}

/** Whether the model of a training has two experts, or is unknown. @param {GraphNode} node */
function hasTwo(node) {
  const trainer = kindOf(node) === "TrainLoRA" ? node : sourceOf(node, "run");
  const model = trainer && modelOf(trainer);
  const low = model?.widgets?.find(({ name }) => name === "low_noise_model")?.value;
  return low === undefined ? Boolean(model) : low !== "none";
}
