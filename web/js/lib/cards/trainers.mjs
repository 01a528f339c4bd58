// @ts-check
/** Follows the links of the canvas from a settings node to its trainers, and from there to their models. Pure. */

import { nodes } from "../page/graph.mjs";
import { kindOf } from "../page/ids.mjs";
import { modelOf } from "./timesteps.mjs";

/** @typedef {import("../page/graph.mjs").GraphNode} GraphNode */

export const TRAINER = "TrainLoRA";
export const LOADER = "LoadWanModel";
/** Maximum length of a chain of nodes; a longer one is a cycle. */
const LONGEST = 50;

/**
 * The Train Wan LoRA nodes that take their settings from a node.
 * @param {import("../page/graph.mjs").Graph | undefined} root
 * @param {GraphNode} settings
 * @returns {import("./timesteps.mjs").Trainer[]}
 */
export function trainersOf(root, settings) {
  const all = [...nodes(root)].filter((node) => kindOf(node) === TRAINER);
  return all
    .filter((node) => sourceOf(node, "settings") === settings)
    .map((node) => ({
      expert: String(node.widgets?.find((widget) => widget.name === "expert")?.value ?? "auto"),
      model: modelAbove(node),
    }));
}

/** Facts of a trainer's model, found through the nodes in between. @param {GraphNode} trainer */
function modelAbove(trainer) {
  let node = sourceOf(trainer, "model");
  for (let far = 0; node && far < LONGEST; far += 1) {
    if (kindOf(node) === LOADER) {
      return modelOf(node.widgets ?? [], node.wanTrainerFacts ?? null);
    }
    node = sourceOf(node, "model");
  }
  return null;
}

/** @param {GraphNode} node @param {string} input @returns {GraphNode | null} the node linked to that input */
function sourceOf(node, input) {
  const slot = node.inputs?.findIndex((one) => one.name === input) ?? -1;
  return slot < 0 ? null : (node.getInputNode?.(slot) ?? null);
}
