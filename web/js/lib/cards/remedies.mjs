// @ts-check
/** Remedies for files without a caption: changes the dataset node or its settings node. */

import { asOneStep, turn } from "../page/graph.mjs";
import { kindOf } from "../page/ids.mjs";

/** @typedef {import("../page/graph.mjs").GraphNode} GraphNode */

/** Values of missing_captions (wan_core/dataset/config.py). */
export const SKIP = "skip the file";
export const EMPTY = "empty caption";

const SETTINGS = "WanDatasetSettings";
const ALWAYS = 0;
/** Gap between the dataset node and a new settings node next to it, in canvas pixels. */
const APART = 40;

/**
 * Makes a trigger word the caption of files without a caption.
 * @param {GraphNode} node a dataset node
 * @param {string} word
 * @returns {boolean} whether it worked
 */
export function setTriggerWord(node, word) {
  return asOneStep(node, () => turn(node, "trigger_word", word.trim()));
}

/**
 * Sets missing_captions; creates a settings node if there is none.
 * @param {GraphNode} node a dataset node
 * @param {string} value SKIP or EMPTY
 * @param {(kind: string) => GraphNode | null} create creates a node outside any graph
 * @returns {boolean} whether it worked
 */
export function setMissingCaptions(node, value, create) {
  return asOneStep(node, () => {
    const slot = node.inputs?.findIndex((input) => input.name === "settings") ?? -1;
    if (slot < 0) return false;
    const linked = node.getInputNode?.(slot) ?? null;
    if (linked && kindOf(linked) !== SETTINGS) return false; // another pack's node is in between
    const settings = linked ?? beside(node, slot, create(SETTINGS));
    if (linked) linked.mode = ALWAYS; // it may be bypassed
    if (settings && !linked) turn(settings, "held_out_ratio", 0); // the default without a settings node
    return settings !== null && turn(settings, "missing_captions", value);
  });
}

/** @param {GraphNode} node @param {number} slot @param {GraphNode | null} made */
function beside(node, slot, made) {
  if (!made || !node.graph) return null;
  const [left, top] = node.pos ?? [0, 0];
  made.pos = [left - (made.size?.[0] ?? 0) - APART, top];
  node.graph.add?.(made);
  made.connect?.(0, node, slot);
  return made;
}
